"""y = 2 * x for the tests on a GPU: a good kernel, and one that goes wrong in the way that FAULT names."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import Call, Kernel, Operator, Parameter, Tensor, dims, problem, stride

R, D = dims("R D")

FAULTS = (
    "endless",
    "illegal",
    "misaligned",
    "past_end",
    "reads_past",
    "shared_race",
    "before_start",
    "half",
    "one_wrong",
    "mutates",
    "keeps_larger",
    "zeros",
    "stale_workspace",
    "past_workspace",
    "other_stream",
    "refuses",
    "early",
    "too_much_shared",
)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    del xp
    return {"y": 2 * call.x}


operator = Operator(
    name="twice",
    dims=("R", "D"),
    dtypes={"T": ("f32", "bf16")},
    tensors=(Tensor("x", (R, D), "T"), Tensor("y", (R, D), "T", output=True)),
    reference=reference,
    flops=R * D,
    workload={"cpu": (problem(R=8, D=64),), "cuda": (problem(R=256, D=4096), problem(R=64, D=1024))},
    kernels=(
        Kernel("generic", "twice/generic.cpp.j2", generic=True, dtypes={"T": ("f32",)}),
        Kernel("cuda_generic", "twice/generic.cu.j2", backend="nvcc", generic=True),
        Kernel(
            "good",
            "twice/kernel.cu.j2",
            backend="nvcc",
            parameters=(Parameter("THREADS", (128, 256)), Parameter("FAULT", ("none",))),
            requires=(stride("x", 1) == 1, stride("y", 1) == 1),
        ),
        Kernel(
            "bad",
            "twice/kernel.cu.j2",
            backend="nvcc",
            parameters=(Parameter("THREADS", (128,)), Parameter("FAULT", FAULTS)),
            requires=(stride("x", 1) == 1, stride("y", 1) == 1),
        ),
    ),
)
