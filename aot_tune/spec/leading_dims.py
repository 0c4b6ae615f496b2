"""The dim that stands for any number of leading dims in calls from Python."""

from __future__ import annotations

from aot_tune.expr.integers import dim
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.tensors import Tensor
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["check_fold", "folds"]


def folds(op: OperatorFields, tensor: Tensor) -> bool:
    """Whether a tensor's first axis stands for leading dims."""
    return bool(op.fold) and tensor.shape[0].key() == dim(op.fold).key()


def check_fold(op: OperatorFields, where: str) -> None:
    """Raise SpecError for a `fold` that is not a dim, or that is not the first axis of any required input."""
    if not op.fold:
        return
    if op.fold not in op.dims:
        raise SpecError(f"{where}: fold={op.fold!r} is not a dim of it", fix=did_you_mean(op.fold, op.dims))
    if not any(folds(op, t) for t in op.tensors if not t.output and not t.optional):
        raise SpecError(
            f"{where}: fold={op.fold!r}, but no input that is always passed has that dim as its first axis",
            why="such a tensor tells the leading dims of a call",
            fix="name another dim, or leave fold out",
        )
