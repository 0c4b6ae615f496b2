"""Which baseline a generic kernel is compiled for, by the dtypes of its tensors; Triton itself is not asked."""

from __future__ import annotations

import pytest

from aot_tune.compile import generic_targets, target_by_name
from aot_tune.compile.cuda.gpu_targets import BASELINE, EIGHT_BIT_BASELINE
from aot_tune.plan.eight_bit_targets import check_instructions, eight_bit_baselines, generic_dtypes
from aot_tune.spec import Buffer, Kernel, Operator, Tensor, TritonFunction, dims, problem
from aot_tune.support.errors import BuildError

(N,) = dims("N")
HOPPER, AMPERE, CPU, AMD = map(target_by_name, ("cuda-sm_90a", "cuda-sm_80", "cpu-x86-64-v2", "hip-gfx942"))


def operator(*dtypes: str, triton: bool = True, buffer: str = "") -> Operator:
    """An operator of these dtypes whose kernel is generic, a Triton function or a template."""
    kernel = Kernel("own", "own.cu.j2", generic=True)
    if triton:
        function = TritonFunction("own.py:own", {"memory": Buffer(buffer, N)} if buffer else {}, grid=(N,))
        kernel = Kernel("own", backend="triton", triton=function, generic=True)
    return Operator(
        name="own",
        dims=("N",),
        tensors=(Tensor("x", (N,), "T"), Tensor("y", (N,), "T", output=True)),
        dtypes={"T": dtypes},
        reference=lambda xp, call: {"y": call.x},
        flops=N,
        workload=(problem(N=8),),
        kernels=(kernel,),
    )


def served(op: Operator) -> tuple[list[str], list[str]]:
    """The dtypes for which the kernel is compiled for the baseline, and for the newer one."""
    first, second = (generic_dtypes(op, op.kernels[0], b) for b in (BASELINE, EIGHT_BIT_BASELINE))
    return [d["T"] for d in first], [d["T"] for d in second]


@pytest.mark.parametrize(
    ("op", "first", "second"),
    [
        (operator("bf16", "f8e5m2", "f8e4m3"), ["bf16", "f8e5m2"], ["f8e4m3"]),
        (operator("bf16", "u16"), ["bf16", "u16"], []),
        (operator("bf16", "f8e4m3", triton=False), ["bf16", "f8e4m3"], []),  # CUDA templates convert in code
        (operator("bf16", buffer="f8e4m3"), [], ["bf16"]),
        (operator("bf16", buffer="f8e5m2"), ["bf16"], []),
    ],
)
def test_each_dtype_has_one_baseline(op: Operator, first: list[str], second: list[str]) -> None:
    assert served(op) == (first, second)
    assert eight_bit_baselines([op], [CPU, HOPPER]) == ((EIGHT_BIT_BASELINE,) if second else ())
    assert eight_bit_baselines([op], [CPU, AMPERE]) == eight_bit_baselines([op], [AMD]) == ()
    assert EIGHT_BIT_BASELINE not in generic_targets([HOPPER])


def test_a_generic_kernel_without_a_gpu_that_has_it_is_refused() -> None:
    named = {"own": operator("bf16", "f8e4m3")}
    for fine in ([CPU], [AMD], [HOPPER], [AMPERE, HOPPER]):
        check_instructions(named, [], fine)
    with pytest.raises(BuildError, match="kernel 'own': cuda-sm_80 cannot have Triton kernels with f8e4m3 tensors"):
        check_instructions(named, [], [CPU, AMPERE])
    check_instructions({"own": operator("f8e4m3", triton=False)}, [AMPERE], [AMPERE])
