"""Where Triton kernels with tensors of f8e4m3 run: GPUs convert it in instructions from sm_89 on.

Triton has no other code for it. For f8e5m2 it has short code for every GPU. CUDA templates have code for both types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aot_tune.compile.device_targets import BASELINE, EIGHT_BIT_BASELINE
from aot_tune.render.triton.binding import resolved
from aot_tune.spec import Buffer, Kernel, Operator, Target
from aot_tune.support.errors import BuildError, Mistakes

__all__ = ["check_instructions", "eight_bit_baselines", "generic_dtypes"]

_WHY = (
    f"GPUs convert f8e4m3 in instructions from sm_{EIGHT_BIT_BASELINE.level} on, and Triton has no code for older GPUs"
)


def generic_dtypes(operator: Operator, kernel: Kernel, baseline: Target) -> list[dict[str, str]]:
    """The dtypes for which a generic kernel is compiled for a baseline."""
    every = operator.dtype_choices(kernel)
    if baseline.family != "cuda":
        return every
    return [d for d in every if _baseline(operator, kernel, d) == baseline]


def eight_bit_baselines(operators: Iterable[Operator], wanted: Sequence[Target]) -> tuple[Target, ...]:
    """The baseline of generic kernels that need instructions for f8e4m3, if the target's devices can run it."""
    needed = any(_needs(op, k, d) for op in operators for k in op.generics for d in op.dtype_choices(k))
    return (EIGHT_BIT_BASELINE,) if needed and any(map(EIGHT_BIT_BASELINE.meets, wanted)) else ()


def check_instructions(operators: Mapping[str, Operator], targets: Sequence[Target], wanted: Sequence[Target]) -> None:
    """Check that Triton kernels with f8e4m3 tensors are only for targets whose GPUs have instructions for it.

    Args:
        targets: the targets that kernels are tuned for.
        wanted: the targets of the library. Its generic kernels run on their devices.

    Raises:
        BuildError: naming the kernels, the targets and what to do.
    """
    mistakes = Mistakes()
    gpus = [t for t in wanted if t.family == "cuda"]
    able = any(map(EIGHT_BIT_BASELINE.meets, gpus))
    for operator in operators.values():
        for kernel in operator.kernels:
            if not any(_needs(operator, kernel, d) for d in operator.dtype_choices(kernel)):
                continue
            old = gpus if not able else []
            if not kernel.generic:
                old = [t for t in targets if _is_too_old(t) and _is_for(kernel, t)]
            with mistakes.gather():
                _refuse(operator, kernel, old)
    mistakes.tell()


def _refuse(operator: Operator, kernel: Kernel, old: Sequence[Target]) -> None:
    if not old:
        return
    names = " and ".join(t.name for t in old)
    leave = f"leave {names} out of AOT_TUNE_TARGETS"
    constraint = f'give it the constraint target("capability") >= {EIGHT_BIT_BASELINE.level}'
    template = "write the generic kernel as a CUDA template, which has code for such GPUs"
    raise BuildError(
        f"operator {operator.name!r}: kernel {kernel.name!r}: {names} cannot have Triton kernels with f8e4m3 tensors",
        why=_WHY,
        fix=f"{leave}, or {template if kernel.generic else constraint}",
    )


def _baseline(operator: Operator, kernel: Kernel, dtypes: Mapping[str, str]) -> Target:
    return EIGHT_BIT_BASELINE if _needs(operator, kernel, dtypes) else BASELINE


def _needs(operator: Operator, kernel: Kernel, dtypes: Mapping[str, str]) -> bool:
    """Whether a kernel uses f8e4m3 in a way that needs instructions for it."""
    if kernel.triton is None:
        return False
    buffers = [a.dtype_name for a in kernel.triton.arguments.values() if isinstance(a, Buffer)]
    return "f8e4m3" in (*(t.dtype_name for t in operator.concrete(dtypes).tensors), *buffers)


def _is_too_old(target: Target) -> bool:
    return target.family == "cuda" and target.level < EIGHT_BIT_BASELINE.level


def _is_for(kernel: Kernel, target: Target) -> bool:
    """Whether the kernel has a config for the target. Its constraints may restrict it to newer ones."""
    assert kernel.triton is not None
    if target.name not in kernel.triton.inspections:
        return False
    return next(resolved(kernel, target.name).configs(target.facts), None) is not None
