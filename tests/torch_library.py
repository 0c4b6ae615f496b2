"""A library for the tests of torch's operators: three of a user's own, with all that operators may have.

`blend` works in place, with scalars of every kind, an attribute and optional tensors; `spread` has a dim that an
integer tells, and extents that are worked out; the dtype of `cast` is that of the output which its caller passes.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from module_files import load_module as load_from
from project import Project

BLEND = """
from aot_tune.spec import Attribute, Kernel, Operator, Scalar, Tensor, dims, problem

R, D = dims("R D")
operator = Operator(
    name="blend",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D), "T", inout=True),
        Tensor("w", (D,), "T"),
        Tensor("bias", (D,), "T", optional=True),
        Tensor("calls", (R,), "i32", inout=True, optional=True),
        Tensor("total", (R,), output=True),
        Tensor("doubled", (R, D), "T", output=True, optional=True, layout_of="x"),
        Tensor("least", (R,), output=True, optional=True),
    ),
    scalars=(
        Scalar("a"), Scalar("b", "f64", 0.5), Scalar("steps", "i32", 2), Scalar("small", "u8", 1),
        Scalar("negate", "bool", False), Scalar("cap", "f32", float("inf")),
    ),
    attributes=(Attribute("kind", ("plain", "relu")), Attribute("times", ("one", "two", "three"))),
    dtypes={"T": ("f32", "bf16")},
    reference=lambda xp, call: blend(xp, call),
    fold="R",
    flops=5 * R * D,
    workload=(problem(R=16, D=64),),
    kernels=(Kernel("generic", "blend/generic.cpp.j2", generic=True),),
)


def blend(xp, call):
    x = call.a * call.x * call.w + call.b * call.steps + call.small
    if call.bias is not None:
        x = x + call.bias
    x = xp.where(x > call.cap, 0 * x + call.cap, x)
    x = -x if call.negate else x
    x = xp.maximum(x, 0 * x) if call.kind == "relu" else x
    x = x * {"one": 1, "two": 2, "three": 3}[call.times]
    made = {"x": x, "total": xp.sum(x, axis=1), "doubled": 2 * x, "least": xp.min(x, axis=1)}
    return made if call.calls is None else {**made, "calls": call.calls + 1}
"""
BLEND_ROWS = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ dim("R") }}; ++i) {
    float sum = 0, lowest = __builtin_inff();
    for (int64_t j = 0; j < {{ dim("D") }}; ++j) {
      double r = static_cast<double>(a) * {{ load("x", ["i", "j"]) }} * {{ load("w", ["j"]) }} + b * steps + small;
      if ({{ present("bias") }}) r += {{ load("bias", ["j"]) }};
      if (r > cap) r = cap;
      if (negate) r = -r;
      if (kind == 1 && r < 0) r = 0;
      r *= times + 1;
      {{ store("x", ["i", "j"], "static_cast<float>(r)") }}
      if ({{ present("doubled") }}) { {{ store("doubled", ["i", "j"], "static_cast<float>(2 * r)") }} }
      sum += static_cast<float>(r);
      lowest = r < lowest ? static_cast<float>(r) : lowest;
    }
    {{ store("total", ["i"], "sum") }}
    if ({{ present("least") }}) { {{ store("least", ["i"], "lowest") }} }
    if ({{ present("calls") }}) { {{ store("calls", ["i"], load("calls", ["i"]) ~ " + 1") }} }
  }
  return 0;
}
"""

SPREAD = """
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, ceildiv, dims, problem

N, K = dims("N K")
operator = Operator(
    name="spread",
    dims=("N", "K"),
    tensors=(
        Tensor("x", (2 * N,)),
        Tensor("out", (N, K), output=True),
        Tensor("heads", (ceildiv(N, 4),), output=True),
    ),
    scalars=(Scalar("count", "i64", binds="K"),),
    reference=lambda xp, call: spread(xp, call),
    flops=N * K,
    workload=(problem(N=16, K=3),),
    kernels=(Kernel("generic", "spread/generic.cpp.j2", generic=True),),
    documentation="out[n, k] = x[n] * k + x[N + n], heads[i] = x[4 * i].",
)


def spread(xp, call):
    n = call.x.shape[0] // 2
    steps = xp.arange(call.count, dtype=call.x.dtype)
    return {"out": call.x[:n, None] * steps + call.x[n:, None], "heads": call.x[:n:4]}
"""
SPREAD_ROWS = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  (void)count;
  for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
    const float first = {{ load("x", ["i"]) }}, second = {{ load("x", ["i + " ~ dim("N")]) }};
    for (int64_t k = 0; k < {{ dim("K") }}; ++k) {
      {{ store("out", ["i", "k"], "first * static_cast<float>(k) + second") }}
    }
    if (i % 4 == 0) { {{ store("heads", ["i / 4"], "first") }} }
  }
  return 0;
}
"""

CAST = """
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

(N,) = dims("N")
operator = Operator(
    name="cast",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("y", (N,), "T", output=True), Tensor("back", (N,), output=True)),
    dtypes={"T": ("f32", "bf16", "f16")},
    reference=lambda xp, call: {"y": call.x, "back": call.x},
    flops=N,
    workload=(problem(N=100),),
    kernels=(Kernel("generic", "cast/generic.cpp.j2", generic=True),),
)
"""
CAST_ROWS = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
    {{ store("y", ["i"], load("x", ["i"])) }}
    {{ store("back", ["i"], load("x", ["i"])) }}
  }
  return 0;
}
"""

OWN = {"blend": (BLEND, BLEND_ROWS), "spread": (SPREAD, SPREAD_ROWS), "cast": (CAST, CAST_ROWS)}
NAME = "tested_in_torch"


def build_own(folder: Path) -> None:
    """Build the library with generic variants alone, and with XLA's handlers if there is jaxlib."""
    arguments = f"MODULE {NAME} OUTPUT_NAME {NAME} OPERATORS {' '.join(OWN)}"
    env = {"AOT_TUNE_MODE": "generic", "AOT_TUNE_TARGETS": "cpu-x86-64-v3", "AOT_TUNE_XLA_FFI": "auto"}
    made = Project.make(folder / "project", arguments=arguments, **env)
    for name, (declared, template) in OWN.items():
        (made.templates / name).mkdir()
        (made.templates / name / "operator.py").write_text(declared)
        (made.templates / name / "generic.cpp.j2").write_text(template)
    made.cmake()
    made.make_all()


def own_module(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The Python module of that library, which is built once in a run of the tests."""
    return once("own", build_own) / "project" / "cmake" / f"{NAME}.abi3.so"


def load_module(path: Path, name: str = NAME) -> ModuleType:
    return load_from(path, name)


@contextlib.contextmanager
def shim_cache(config: pytest.Config) -> Iterator[None]:
    """Keep the shim where all tests find it: it is compiled once for a torch."""
    kept = getattr(config, "cache", None)  # there is none with `-p no:cacheprovider`
    with pytest.MonkeyPatch.context() as patch:
        if kept is not None:
            patch.setenv("AOT_TUNE_CACHE_DIR", str(kept.mkdir("torch_shim")))
        patch.setenv("AOT_TUNE_TRUST_CACHE", "1")
        yield


def rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal values, the same for a seed and a shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
