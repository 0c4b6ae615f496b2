"""A session of the CUDA family on the host's tensors, and sources of candidates that go wrong in it. Needs torch."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

from compiled import PRELUDE
from host_engine import HostEngine

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.cuda_engine import CudaEngine
from aot_tune.bench.worker.engine import FaultError
from aot_tune.bench.worker.worker_session import WorkerSession
from aot_tune.spec import Problem

OPERATOR = '''
"""The operator of these tests: y = 2 * x + 1, with weights that are cold."""
from aot_tune.spec import IntegerSums, Kernel, Operator, Tensor, dims, problem

R, D = dims("R D")


def reference(xp, call):
    y = 2 * call.x + 1 + call.w
    return {"y": y if call.bias is None else y + call.bias}


operator = Operator(
    name="axpb",
    dims=("R", "D"),
    dtypes={"T": ("f32", "bf16", "f16")},
    tensors=(
        Tensor("x", (R, D), "T"),
        Tensor("w", (D,), "T", cold=True),
        Tensor("bias", (D,), "T", optional=True),
        Tensor("y", (R, D), "T", output=True),
    ),
    reference=reference,
    exact=IntegerSums(1, thinned="x"),
    flops=3 * R * D,
    workload=(problem(R=16, D=256),),
    kernels=(Kernel("generic", "axpb/generic.cpp.j2", generic=True),),
)
'''

SOURCE = (
    PRELUDE
    + r"""
#include <cstring>
static int calls = 0, preloads = 0;
#if BITS == 32
using T = float;
static float load(const T& x) { return x; }
static T make(float x) { return x; }
#else
using T = uint16_t;
static float load(const T& x) { uint32_t b = uint32_t(x) << 16; float f; std::memcpy(&f, &b, 4); return f; }
static T make(float x) {
    uint32_t b; std::memcpy(&b, &x, 4);
    if ((b & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return uint16_t((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
#endif
static T& at(const DLTensor* t, int64_t i, int64_t j) {
    return static_cast<T*>(t->data)[i * t->strides[0] + (t->ndim > 1 ? j * t->strides[1] : 0)];
}
EXPORT int candidate_preload() { return preloads++ < 100 ? PRELOAD : 1; }
EXPORT int candidate_workspace(const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, size_t* size) {
    *size = WORKSPACE; return 0;
}
EXPORT int candidate_launch(const DLTensor* x, const DLTensor* w, const DLTensor* bias, const DLTensor* y,
                            void* workspace, size_t, void* stream) {
    (void)stream; (void)workspace;
    ++calls;
    const int64_t rows = x->shape[0], columns = x->shape[1];
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) {
            float v = 2 * load(at(x, i, j)) + 1 + load(at(w, j, 0));
            if (bias) v += load(at(bias, j, 0));
            at(y, i, j) = make(v);
        }
    BODY
    return 0;
}
"""
)

GOOD = ""
PAST_END = "at(y, rows - 1, columns) = make(0);"
MUTATES = "at(x, 0, 0) = make(5);"
WRONG = "if (rows > 1) at(y, rows - 1, columns - 1) = make(1000);"
NAN = "at(y, 0, 0) = make(0.0f / 0.0f * 0);"
REFUSES = "return 9;"
FAULTS = "return 700;"
UNSTEADY = "at(y, 0, 0) = make(load(at(y, 0, 0)) * (1 + 1e-7f * (calls % 2)));"
ROUNDED = "at(y, 3, 5) = make(load(at(y, 3, 5)) * (1 + 1.0f / (BITS == 32 ? 1 << 22 : 128)));"
HIDES_NAN = """for (int64_t i = 0; i < rows; ++i) for (int64_t j = 0; j < columns; ++j)
        { const float v = load(at(y, i, j)); if (v != v) at(y, i, j) = 0; }"""
PAST_WORKSPACE = "static_cast<char*>(workspace)[WORKSPACE] = 0;"

WRONG_ONES: tuple[tuple[str, int, str, dict[str, Any], str], ...] = (
    (PAST_END, 32, "0", {}, "oob: guard zone of 'y': 4 bytes written 0 bytes past its end"),
    (MUTATES, 32, "0", {}, "input 'x' was changed, first at byte"),
    (WRONG, 32, "0", {}, "y[12, 36]: got 1000.0, want"),
    (NAN, 32, "0", {}, "y[0, 0]: got nan, want"),
    (PAST_WORKSPACE, 32, "1000", {}, "oob: guard zone of 'workspace': 1 bytes written 0 bytes past its end"),
    (HIDES_NAN, 32, "0", {"special": "x"}, "NaN and infinities in 'x'"),
    (ROUNDED, 32, "0", {"integers": True}, "small integers)"),
    (ROUNDED, 16, "0", {"integers": True}, "small integers)"),
)
"""Bodies, bits of an element, bytes of workspace, what is special of the problem, and what must be said."""


class Engine(HostEngine):
    """The host as a device that a candidate can spoil: a launch that returns 700 does."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False

    def check(self) -> None:
        if self.broken:
            raise FaultError("illegal memory access (700)", by_kernel=True)


class Bed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "templates" / "axpb"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "operator.py").write_text(OPERATOR)
        self.policy = family("cuda").policy(Policy(screen_ns=1_000_000, sample_ns=10_000, copies=4))
        device = device_of(
            name="Host", uuid="", capability=90, sm_count=1, l2_bytes=1 << 16, memory_bytes=1 << 30, driver="1"
        )
        self.engine = Engine()
        self.session = WorkerSession(CudaEngine(self.policy, "candidate", device, lambda: self.engine), "candidate")
        self.references, self.count = folder / "references", 0
        self.references.mkdir()

    def ask(self, request: Any) -> Any:
        return self.session.handle(request, lambda _message: None)

    def name(self, one: Problem, special: str = "", integers: bool = False) -> str:
        self.count += 1
        key, check = f"problem-{self.count}", Check(problem=one, special=special, integers=integers)
        files = str(self.references / key)
        reply = self.ask(messages.Reference(operator_folder=str(self.folder), check=check, folder=files))
        assert isinstance(reply, messages.Done), reply
        self.ask(messages.Work(key=key, operator_folder=str(self.folder), check=check, folder=files))
        return key

    def load(self, path: Path, handle: str = "one") -> Any:
        return self.ask(messages.Load(handle=handle, path=str(path), symbol="candidate"))


def build(folder: Path, body: str, bits: int = 32, workspace: str = "0", preload: int = 0) -> Path:
    """A candidate that does this at its end, compiled once in a folder."""
    flags = [f"-DBITS={bits}", f"-DWORKSPACE={workspace}", f"-DPRELOAD={preload}"]
    path = folder / f"{hashlib.sha256(repr((body, flags)).encode()).hexdigest()[:16]}.so"
    if not path.exists():
        source = path.with_suffix(".cpp")
        source.write_text(SOURCE.replace("BODY", body))
        subprocess.run(["g++", "-O1", "-shared", "-fPIC", *flags, "-o", path, source], check=True, timeout=60)
    return path
