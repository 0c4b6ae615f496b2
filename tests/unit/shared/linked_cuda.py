"""A library for CPUs and CUDA in two dtypes, for the tests of link, with stand-ins for kernels and the driver."""

import functools
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import linked
import msgspec
import numpy as np
from compiled import PRELUDE
from dltensors import OnDevice
from stand_ins import StandIn, build

from aot_tune.compile.toolchain import toolchain_for
from aot_tune.link import LibrarySpec, OperatorTable, RegimeCalls, TargetTable
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, dim, problem, stride
from aot_tune.support.errors import ToolchainError

N = dim("N")

HOST = (
    PRELUDE
    + """
#include <unistd.h>
extern "C" __attribute__((weak)) void spend(int mark);
#define ARGS const DLTensor *x, const DLTensor *bias, const DLTensor *out, float factor
EXPORT int32_t SYMBOL_workspace(ARGS, size_t* size) {
  *size = SCRATCH;
  return UNAVAILABLE;
}
EXPORT int32_t SYMBOL_launch(ARGS, void* memory, size_t size, void* stream) {
  if (size != SCRATCH || (SCRATCH > 0) != (memory != nullptr)) return 90;
  if (spend != nullptr) spend(MARK);
  auto* kept = static_cast<volatile float*>(memory);
  if (kept != nullptr) *kept = factor;
  if (factor >= 1e6f) usleep(50000);  // between two kernels, time for other threads
  if (kept != nullptr && *kept != factor) return 91;
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    const float value = static_cast<const float*>(x->data)[i * x->strides[0]] * factor + MARK;
    static_cast<float*>(out->data)[i * out->strides[0]] = value + 1000 * reinterpret_cast<intptr_t>(stream);
  }
  return FAILURE;
}
"""
)
PRELOAD = """
EXPORT int32_t SYMBOL_preload() {
  if (event != nullptr) event("preload SYMBOL");
  return 0;
}
"""
HOST_CUDA = (
    HOST.replace("#define ARGS", 'extern "C" __attribute__((weak)) void event(const char*);\n#define ARGS') + PRELOAD
)
NOTE = """
EXPORT int32_t SYMBOL_note(ARGS, char* buffer, size_t size) {
  __builtin_snprintf(buffer, size, "the vendor's library 12.3 is not here");
  return 0;
}
"""


def operator() -> Operator:
    return Operator(
        name="scale",
        dims=("N",),
        tensors=(
            Tensor("x", (N,), "T"),
            Tensor("bias", (N,), "T", optional=True),
            Tensor("out", (N,), "T", output=True),
        ),
        scalars=(Scalar("factor", "f32", 1.0),),
        dtypes={"T": ("f32", "bf16")},
        reference=lambda xp, call: {},
        flops=N,
        regimes={"short": (N <= 512,), "long": (N <= 5000,)},
        workload={"cpu": (problem(N=8),), "cuda": (problem(N=8, dtypes={"T": "bf16"}),)},
        kernels=(
            Kernel("plain", "scale/plain.cpp.j2", generic=True, dtypes={"T": ("f32",)}),
            Kernel("cuda_plain", "scale/plain.cu.j2", generic=True, backend="nvcc"),
        ),
        documentation="out = x * factor.",
    )


def table(plain: linked.NamedVariant, variants: dict[str, linked.NamedVariant]) -> OperatorTable:
    """Tables for sm_80, sm_90 and sm_90a; bf16 has generic variants on CUDA only."""
    every = (plain, *variants.values())
    index = {v.name: i for i, v in enumerate(every)}

    def places(*names: str) -> tuple[int, ...]:
        return tuple(index[n] for n in names)

    return OperatorTable(
        operator=operator(),
        variants=every,
        tables=(
            TargetTable(target="cuda-sm_80", level=80, last=89, rest=places("even_80")),
            TargetTable(target="cuda-sm_90", level=90, last=99, rest=places("plain_cuda")),
            TargetTable(
                target="cuda-sm_90a",
                level=90,
                last=90,
                rest=places("vendor_90a", "wide_90a", "fast_90a"),
                tuned=(problem(N=8), problem(N=16, dtypes={"T": "bf16"})),
                exact=((), places("fast_bf16", "plain_bf16")),
                regimes=(
                    RegimeCalls(facts=(("dtype.T", 0),), regime="short", dims={"N": (8, 256)}),
                    RegimeCalls(facts=(("dtype.T", 0),), regime="long", dims={"N": (1024, 1024)}),
                ),
                processors=132,
            ),
        ),
    )


LAYOUT: dict[str, dict[str, Any]] = {
    "plain_cuda": {"target": "cuda-ptx_80", "generic": True, "mark": "100"},
    "plain_bf16": {"target": "cuda-ptx_80", "generic": True, "mark": "150", "dtype": "bf16"},
    "even_80": {"target": "cuda-sm_80", "last": 89, "mark": "200", "requires": (N % 2 == 0, stride("x", 0) == 1)},
    "vendor_90a": {"target": "cuda-sm_90a", "last": 90, "mark": "250", "notes": True},
    "wide_90a": {"target": "cuda-sm_90a", "last": 90, "mark": "300", "scratch": 1 << 20},
    "fast_90a": {"target": "cuda-sm_90a", "last": 90, "mark": "400", "requires": (N % 4 == 0,)},
    "fast_bf16": {"target": "cuda-sm_90a", "last": 90, "mark": "500", "dtype": "bf16", "requires": (N % 8 == 0,)},
}


@functools.cache
def cuda_runtime() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders of the CUDA runtime's header and what it is linked by; empty without a CUDA compiler."""
    toolchain = toolchain_for("nvcc")
    try:
        return toolchain.include_folders(), toolchain.link_arguments()
    except ToolchainError:
        return (), ()


def level_of(target: str) -> int:
    """The level of a target of LAYOUT, or of the baseline of CPUs."""
    return int(target.partition("_")[2].rstrip("a") or 1)


def stand_in_variant(folder: Path, name: str, row: Mapping[str, Any]) -> linked.NamedVariant:
    """A variant of a row of LAYOUT, for a host: a stand-in for one by nvcc."""
    notes = bool(row.get("notes"))
    source = (HOST_CUDA + NOTE * notes).replace("UNAVAILABLE", "-100" if notes else "0")
    made = linked.variant(
        folder,
        source,
        name,
        target=row["target"],
        level=row.get("level", level_of(row["target"])),
        generic=row.get("generic", False),
        requires=row.get("requires", ()),
        mark=row["mark"],
        scratch=row.get("scratch", 0),
    )
    made = linked.changed(made, dtypes={"T": row.get("dtype", "f32")}, config={})
    return msgspec.structs.replace(made, target=msgspec.structs.replace(made.target, last=row.get("last", 0)))


def host_variant(folder: Path, name: str, dtype: str = "f32", **how: Any) -> linked.NamedVariant:
    made = linked.variant(folder, HOST.replace("UNAVAILABLE", "0"), name, generic=True, **how)
    return linked.changed(made, dtypes={"T": dtype})


def stand_in(folder: Path) -> linked.Built:
    """`scale` for CPUs (f32) and CUDA (f32, bf16), an operator for CPUs alone, and a stand-in for the driver."""
    objects, fake = folder / "objects", folder / "libcuda.so.1"
    objects.mkdir(parents=True, exist_ok=True)
    norm = OperatorTable(
        operator=linked.norm_operator(), variants=(linked.variant(objects, linked.NORM, "norm", generic=True),)
    )
    variants = {name: stand_in_variant(objects, name, row) for name, row in LAYOUT.items()}
    scale = table(host_variant(objects, "plain_cpu"), variants)
    spec = LibrarySpec(output="linked_cuda", operators=(scale, norm))
    if not fake.exists():
        build(folder, fake.name)
    found = ["-Wl,--no-as-needed", str(fake), "-Wl,-rpath,$ORIGIN/.."]  # so that dlopen gets this one
    return linked.link_library(spec, folder / "out", families=["cuda"], libraries=found)


def call(module: ModuleType, n: int, device: int, **more: object) -> float:
    """The mark of the variant that a call of `n` elements gets, plus 1000 times its stream."""
    out = np.zeros(n, np.float32)
    module.scale(OnDevice(np.zeros(n, np.float32), (2, device)), out=OnDevice(out, (2, device)), **more)
    return float(out[0])


def driver_of(module: Path) -> StandIn:
    return StandIn(module.parent.parent / "libcuda.so.1")
