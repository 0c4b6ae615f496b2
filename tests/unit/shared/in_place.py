"""An operator that reads and writes, candidates of it that go wrong, and a session of either family that runs them."""

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import msgspec
from compiled import PRELUDE

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Device, Policy, Role
from aot_tune.bench.worker.worker_session import WorkerSession, session_of
from aot_tune.spec import Problem

OPERATOR = '''
"""state = 2 * state + x; out = x + the old state, in the memory of x if need be; total = the sum of x."""
from aot_tune.spec import Baseline, Kernel, Operator, Tensor, dims, problem

R, D = dims("R D")


def reference(xp, call):
    return {"state": 2 * call.state + call.x, "out": call.x + call.state, "total": xp.sum(call.x, axis=1)}


def in_place(xp, call):
    def run():
        call.out[...] = call.x + call.state
        call.total[...] = call.x.sum(1)
        call.state *= 2
        call.state += call.x

    return run


def twice(xp, call):
    right = in_place(xp, call)
    return lambda: (right(), right())


operator = Operator(
    name="step",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D)),
        Tensor("state", (R, D), inout=True, cold=COLD),
        Tensor("out", (R, D), output=True, may_alias=("x",)),
        Tensor("total", (R,), output=True),
    ),
    reference=reference,
    flops=4 * R * D,
    workload=(problem(R=16, D=256),),
    baselines=tuple(Baseline(f.__name__, "torch", f) for f in (in_place, twice)),
    kernels=(Kernel("generic", "step/generic.cpp.j2", generic=True),),
)
'''

SOURCE = (
    PRELUDE
    + r"""
#include <cmath>
#include <cstdio>
#define ARGS const DLTensor *x, const DLTensor *state, const DLTensor *out, const DLTensor *total
enum { GOOD, IDLE, TWICE, LATE, GAP, UNSTEADY, LATER, MEMO, HIDES, MUTATES, PAST_END, PAST_WORKSPACE, REFUSES };
enum { SPOILS = REFUSES + 1, DECLINES, READS_PAST };
static int calls = 0;
static float& at(const DLTensor* t, int64_t i, int64_t j) {
    return static_cast<float*>(t->data)[i * t->strides[0] + (t->ndim > 1 ? j * t->strides[1] : 0)];
}
static void add_up(const DLTensor* x, const DLTensor* total, int64_t i) {
    float sum = 0;
    for (int64_t j = 0; j < x->shape[1]; ++j) sum += at(x, i, j);
    at(total, i, 0) = sum;
}
// Whether a call is like the last one; one that is not takes its time.
static bool remembered(const DLTensor* x, const DLTensor* state) {
    static float last[2][4096];
    bool same = true;
    for (int64_t i = 0, n = 0; i < x->shape[0]; ++i)
        for (int64_t j = 0; j < x->shape[1]; ++j, ++n) {
            same = same && last[0][n] == at(x, i, j) && last[1][n] == at(state, i, j);
            last[0][n] = at(x, i, j);
            last[1][n] = at(state, i, j);
        }
    for (volatile int wait = 0; !same && wait < 100000; wait = wait + 1) {}
    return same;
}
EXPORT int candidate_preload() { return BODY == REFUSES ? 3 : 0; }
EXPORT int candidate_workspace(ARGS, size_t* size) {
    *size = BODY == PAST_WORKSPACE ? 1000 : 0;
    return BODY == DECLINES && x->shape[0] > 14 ? -100 : 0;
}
EXPORT int candidate_note(ARGS, char* text, size_t size) {
    return std::snprintf(text, size, BODY == DECLINES ? "version 7" : "") < 0;
}
EXPORT int candidate_launch(ARGS, void* workspace, size_t size, void*) {
    ++calls;
    if (BODY == SPOILS) return 700;
    if (BODY == PAST_WORKSPACE) static_cast<char*>(workspace)[size] = 0;
    if (BODY == MEMO) remembered(x, state);
    if (BODY == READS_PAST && static_cast<volatile float*>(x->data)[x->shape[0] * x->shape[1] + 40] == 0.3f) return 9;
    for (int64_t i = 0; i < x->shape[0]; ++i) {
        if (BODY != LATE) add_up(x, total, i);
        for (int64_t j = 0; j < x->shape[1]; ++j) {
            const float old = at(state, i, j), value = at(x, i, j);
            if (std::fabs(old) > 1000 && std::isfinite(old)) return 9;  // it was not restored
            if (BODY != IDLE) at(state, i, j) = 2 * old + value * (BODY == TWICE ? 2 : 1);
            at(out, i, j) = BODY == HIDES && std::isnan(value + old) ? 0 : value + old;
        }
        if (BODY == LATE) add_up(x, total, i);
    }
    if (BODY == GAP && state->strides[0] > x->shape[1]) at(state, 0, x->shape[1]) = 0;
    if (BODY == MUTATES) at(x, 0, 0) = 5;
    if (BODY == PAST_END) at(total, x->shape[0], 0) = 0;
    if (BODY == UNSTEADY) at(state, 0, 0) *= 1 + 1.2e-7f * static_cast<float>(calls % 3);
    if (BODY == LATER && calls > 8) at(state, 0, 0) += 5;
    return 0;
}
"""
)


def on_host(policy: Policy, role: Role, device: Device) -> tuple[WorkerSession, Any]:
    """A session of the CUDA family on the host's memory and clock, and its stream. Needs torch."""
    from host_engine import HostEngine

    from aot_tune.bench.worker.cuda_engine import CudaEngine

    stream = HostEngine()
    return WorkerSession(CudaEngine(policy, role, device, lambda: stream), role), stream


class Bed:
    """A worker's session of a family; the host is the GPU. `cold` says so of what is read and written."""

    def __init__(
        self, folder: Path, name: str, role: Any = "candidate", *, cold: bool = False, copies: int = 64
    ) -> None:
        self.handles: list[str] = []
        self.folder, self.references, self.count = folder / "templates" / "step", folder / "references", 0
        self.folder.mkdir(parents=True)
        self.references.mkdir()
        (self.folder / "operator.py").write_text(OPERATOR.replace("COLD", str(cold)))
        policy = family(name).policy(Policy(screen_ns=1_000_000, sample_ns=10_000))
        device = Device(family="cpu", name="CPU", slug="cpu", identity={})
        if name == "cuda":
            device = device_of(
                name="Host", uuid="", capability=90, sm_count=1, l2_bytes=1 << 16, memory_bytes=1 << 30, driver="1"
            )
        policy = msgspec.structs.replace(policy, copies=copies)
        self.stream = None
        if name == "cuda":
            self.session, self.stream = on_host(policy, role, device)
        else:
            self.session = session_of(policy, role, device)

    def ask(self, request: Any) -> Any:
        return self.session.handle(request, lambda _message: None)

    def name(self, one: Problem, **given: Any) -> str:
        self.count += 1
        key, check = f"problem-{self.count}", Check(problem=one, **given)
        files = str(self.references / key)
        reply = self.ask(messages.Reference(operator_folder=str(self.folder), check=check, folder=files))
        assert isinstance(reply, messages.Done), reply
        self.ask(messages.Work(key=key, operator_folder=str(self.folder), check=check, folder=files))
        return key

    def load(self, path: Path, handle: str = "one") -> None:
        reply = self.ask(messages.Load(handle=handle, path=str(path), symbol="candidate"))
        assert isinstance(reply, messages.Done), reply
        self.handles.append(handle)

    def close(self) -> None:
        """Unload all, so that a candidate counts its calls anew when it is loaded the next time."""
        for handle in self.handles:
            self.ask(messages.Unload(handle=handle))

    def verify(self, key: str, handle: str = "one", **given: Any) -> Any:
        return self.ask(messages.Verify(handle=handle, keys=(key,), **given))


def build(folder: Path, body: str) -> Path:
    path = folder / f"{hashlib.sha256(body.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        source = path.with_suffix(".cpp")
        source.write_text(SOURCE)
        argv = ["g++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", f"-DBODY={body}", "-o", path, source]
        subprocess.run(argv, check=True, timeout=60)
    return path
