"""Checks of what an operator declares for surveys and models of time: ranges of dims, and tiles of kernels."""

from __future__ import annotations

from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["check_ranges"]


def check_ranges(op: OperatorFields, where: str) -> None:
    """Check that ranges and tiles are of existing dims.

    Raises:
        SpecError: naming the dim, or the invalid range.
    """
    for name, between in op.ranges.items():
        if name not in op.dims:
            raise SpecError(f"{where}: ranges name the unknown dim {name!r}", fix=did_you_mean(name, op.dims))
        if len(between) != 2 or not all(isinstance(n, int) for n in between) or not 1 <= between[0] <= between[1]:
            raise SpecError(f"{where}: the range of {name!r} is {between!r}", fix="give the least and largest extent")
    for kernel in op.kernels:
        for name in (*(() if callable(kernel.tile) else kernel.tile), *kernel.cluster):
            if name not in op.dims:
                raise SpecError(
                    f"{where}: the tile or cluster of kernel {kernel.name!r} has the unknown dim {name!r}",
                    fix=did_you_mean(name, op.dims),
                )
