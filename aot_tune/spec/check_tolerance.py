"""Checks an operator's tolerance: numbers for dtypes that round, steps for integers, and nothing without effect."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aot_tune.spec.dtypes import DType, dtype
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.tensors import Tensor
from aot_tune.spec.tolerance import FLOATING, INTERMEDIATES, OffBy
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["check_tolerance"]


def check_tolerance(op: OperatorFields, where: str) -> None:
    """Check the tolerance of an operator, its intermediates, and which inputs are finite.

    Raises:
        SpecError: for an invalid tolerance, and for anything that would have no effect.
    """
    given = op.tolerance
    if isinstance(given, Mapping):
        names = {t.name for t in op.outputs}
        for name, one in given.items():
            if name not in names:
                raise SpecError(
                    f"{where}: tolerance names {name!r}, which is not an output", fix=did_you_mean(str(name), names)
                )
            _check_one(op, f"{where}: tolerance of {name!r}", one, [t for t in op.outputs if t.name == name])
    elif given is not None:
        _check_one(op, f"{where}: tolerance", given, list(op.outputs))
    _check_intermediates(op, where)
    for tensor in op.tensors:
        if tensor.finite and (tensor.output or not _are_floating(op, tensor)):
            raise SpecError(
                f"{where}: finite=True of tensor {tensor.name!r} has no effect",
                why="NaN and infinities are put only into floating-point inputs",
                fix="leave it out",
            )


def _check_one(op: OperatorFields, place: str, given: object, outputs: list[Tensor]) -> None:
    if isinstance(given, OffBy):
        if not any(_are_whole(op, t) for t in outputs):
            raise SpecError(
                f"{place}: off_by has no effect",
                why="it is for integers, and no output here is of an integer dtype",
                fix="give a number: how many times the error of the yardstick a result may be off",
            )
        return
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
        raise SpecError(
            f"{place} {given!r} is not a positive number",
            fix="leave it out for 4.0, or give off_by(1) where it is for integers",
        )
    if not any(_are_floating(op, t) for t in outputs):
        raise SpecError(
            f"{place} {given!r} has no effect",
            why="integers are compared as they are, and no output here is of a floating dtype",
            fix="leave it out, or give off_by(1, share=0.01)",
        )


def _check_intermediates(op: OperatorFields, where: str) -> None:
    if not op.intermediates:
        return
    if op.intermediates not in INTERMEDIATES:
        raise SpecError(
            f"{where}: intermediates cannot be {op.intermediates!r}",
            fix=did_you_mean(str(op.intermediates), INTERMEDIATES) or f"use one of {', '.join(INTERMEDIATES)}",
        )
    others = op.roundings(declared=False)
    if set(others) == {op.intermediates} or not any(_are_floating(op, t) for t in op.outputs):
        raise SpecError(
            f"{where}: intermediates={op.intermediates!r} has no effect",
            why=f"{op.intermediates} is the narrowest floating dtype of its tensors, or no output is floating",
            fix="leave it out",
        )


def _choices(op: OperatorFields, tensor: Tensor) -> list[DType]:
    return [dtype(n) for n in op.dtypes.get(tensor.dtype_name, (tensor.dtype_name,))]


def _are_floating(op: OperatorFields, tensor: Tensor) -> bool:
    return any(d.code in FLOATING for d in _choices(op, tensor))


def _are_whole(op: OperatorFields, tensor: Tensor) -> bool:
    return any(d.code not in FLOATING for d in _choices(op, tensor))
