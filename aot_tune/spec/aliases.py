"""Outputs that may use an input's memory: whether such a declaration is possible, and on which problems it holds."""

from __future__ import annotations

from collections.abc import Iterator

from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.problem import Problem
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["aliases_on", "check_aliases", "check_layouts"]


def check_aliases(op: OperatorFields, where: str) -> None:
    """Raise SpecError for an output that may alias a non-input, or an input of another shape or dtype."""
    tensors = {t.name: t for t in op.tensors}
    read_only = [t.name for t in op.tensors if not t.written]
    for tensor in op.tensors:
        for name in tensor.may_alias:
            if name not in read_only:
                known = "is written too" if name in tensors else "is not one of its tensors"
                raise SpecError(
                    f"{where}: tensor {tensor.name!r} may alias {name!r}, which {known}",
                    fix=did_you_mean(name, read_only),
                )
            other = tensors[name]
            same = [e.key() for e in tensor.shape] == [e.key() for e in other.shape]
            if not same or tensor.dtype_name != other.dtype_name:
                raise SpecError(
                    f"{where}: tensor {tensor.name!r} may alias {name!r}, which has another shape or dtype",
                    why="both use the same memory, element by element",
                    fix="declare both alike, or leave may_alias out",
                )


def check_layouts(op: OperatorFields, where: str) -> None:
    """Raise SpecError if an output's `layout_of` is not a required input, or has another number of axes."""
    tensors = {t.name: t for t in op.tensors}
    inputs = [t.name for t in op.tensors if not t.output and not t.optional]
    for tensor in (t for t in op.tensors if t.layout_of):
        if tensor.layout_of not in inputs:
            raise SpecError(
                f"{where}: tensor {tensor.name!r} has the layout of {tensor.layout_of!r}, which is not an input that "
                "is always passed",
                fix=did_you_mean(tensor.layout_of, inputs),
            )
        if tensors[tensor.layout_of].rank != tensor.rank:
            raise SpecError(
                f"{where}: tensor {tensor.name!r} has {tensor.rank} axes and the layout of {tensor.layout_of!r}, "
                f"which has {tensors[tensor.layout_of].rank} axes",
                fix="leave layout_of out",
            )


def aliases_on(op: OperatorFields, problem: Problem) -> Iterator[dict[str, str]]:
    """Which outputs can use the memory of which inputs on a problem. All such pairs come up in some of the results.

    Both tensors of a pair have the same layout, and no input is the memory of two outputs.
    """
    pairs = [(t.name, name) for t in op.tensors for name in t.may_alias if _are_alike(op, problem, t.name, name)]
    while pairs:
        chosen: dict[str, str] = {}
        for output, name in pairs:
            if output not in chosen and name not in chosen.values():
                chosen[output] = name
        yield chosen
        pairs = [(o, n) for o, n in pairs if chosen.get(o) != n]


def _are_alike(op: OperatorFields, problem: Problem, one: str, other: str) -> bool:
    first, second = op.tensor(one), op.tensor(other)
    return (
        op.is_present(problem, first)
        and op.is_present(problem, second)
        and op.strides(problem, first) == op.strides(problem, second)
        and problem.alignment.get(one) == problem.alignment.get(other)
    )
