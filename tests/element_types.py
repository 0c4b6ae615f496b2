"""Operators with element types and scalars that few have, as an author writes them: f8, u64, i16, u16, bool, u8."""

from pathlib import Path

NAMES = ("quantise", "rescale", "mix")

_QUANTISE = '''
from aot_tune.spec import Kernel, Operator, Parameter, Scalar, Tensor, dims, problem, stride

(N,) = dims("N")


def reference(xp, call):
    """Values in the units of a scale, in which they are stored; what is too large is the largest one."""
    return {"q": call.x / call.scale}


operator = Operator(
    name="quantise",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("q", (N,), "f8e4m3", output=True)),
    scalars=(Scalar("scale", "f32", 0.25, other=0.001),),
    reference=reference,
    flops=N,
    workload=(problem(N=20000),),
    kernels=(
        Kernel("generic", "quantise/generic.cpp.j2", generic=True),
        Kernel(
            "vectors",
            "quantise/vectors.cpp.j2",
            parameters=(Parameter("W", (4,)),),
            requires=(stride("x", 0) == 1, stride("q", 0) == 1),
        ),
    ),
)
'''
_RESCALE = """
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, dims, problem

(N,) = dims("N")

operator = Operator(
    name="rescale",
    dims=("N",),
    tensors=(Tensor("x", (N,), "T"), Tensor("y", (N,), "T", output=True)),
    dtypes={"T": ("f8e5m2", "f8e4m3")},
    scalars=(Scalar("factor", "f64"),),
    reference=lambda xp, call: {"y": call.x * call.factor},
    flops=N,
    workload=(problem(N=5000), problem(N=5000, dtypes={"T": "f8e4m3"})),
    kernels=(Kernel("generic", "rescale/generic.cpp.j2", generic=True),),
)
"""
_MIX = '''
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, dims, integers, problem

(N,) = dims("N")


def reference(xp, call):
    """A hash of keys, which needs all bits of 64, and what a table of 16 bits adds to it."""
    mixed = (call.keys ^ (call.keys >> 33)) * 0xFF51AFD7ED558CCD if call.mixes else call.keys
    return {"out": mixed + call.added.astype("uint64") + call.seed, "low": (mixed >> 7).astype("uint16")}


operator = Operator(
    name="mix",
    dims=("N",),
    tensors=(
        Tensor("keys", (N,), "u64", values=integers(0, 2**64)),
        Tensor("added", (N,), "i16", values=integers(-(2**15), 2**15)),
        Tensor("out", (N,), "u64", output=True),
        Tensor("low", (N,), "u16", output=True),
    ),
    scalars=(Scalar("mixes", "bool", True), Scalar("seed", "u8", 255)),
    reference=reference,
    flops=4 * N,
    workload=(problem(N=3000),),
    kernels=(Kernel("generic", "mix/generic.cpp.j2", generic=True),),
)
'''
_LOOP = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
    BODY
  }
  return 0;
}
"""
_VECTORS = """
{{ prelude() }}
{% include "common/simd.h.j2" %}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  const int64_t n = {{ dim("N") }};
  int64_t i = 0;
  for (; i + {{ W }} <= n; i += {{ W }}) {
    {{ store("q", ["i"], load("x", ["i"], W) ~ " / scale", W) }}
  }
  {{ store("q", ["i"], load("x", ["i"], W, "n - i") ~ " / scale", W, "n - i") }}
  return 0;
}
"""
_GENERIC = {
    "quantise": """{{ store("q", ["i"], load("x", ["i"]) ~ " / scale") }}""",
    "rescale": """{{ store("y", ["i"], load("x", ["i"]) ~ " * static_cast<float>(factor)") }}""",
    "mix": """const uint64_t key = {{ load("keys", ["i"]) }};
    const uint64_t mixed = mixes ? (key ^ (key >> 33)) * UINT64_C(0xFF51AFD7ED558CCD) : key;
    {{ store("out", ["i"], "mixed + static_cast<uint64_t>(" ~ load("added", ["i"]) ~ ") + seed") }}
    {{ store("low", ["i"], "mixed >> 7") }}""",
}


def write_operators(templates: Path) -> Path:
    for name, text in zip(NAMES, (_QUANTISE, _RESCALE, _MIX), strict=True):
        folder = templates / name
        folder.mkdir(parents=True)
        (folder / "operator.py").write_text(text)
        (folder / "generic.cpp.j2").write_text(_LOOP.replace("BODY", _GENERIC[name]))
    (templates / "quantise" / "vectors.cpp.j2").write_text(_VECTORS)
    return templates
