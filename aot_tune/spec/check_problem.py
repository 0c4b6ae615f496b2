"""Checks of one problem: it fits its operator, it is legal, and there is something to compute."""

from __future__ import annotations

import math

from aot_tune.spec.bound_dims import extents_exist
from aot_tune.spec.config_guards import may_serve
from aot_tune.spec.drawn_values import Drawn
from aot_tune.spec.generators import ROWWISE
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.problem import DEFAULT_ALIGNMENT, Problem
from aot_tune.spec.tensors import Tensor
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["check_call", "check_problem", "check_values_of", "check_work", "is_empty"]


def is_empty(op: OperatorFields, problem: Problem) -> bool:
    """Whether no output has elements, so that there is nothing to compute."""
    present = [t for t in op.outputs if op.is_present(problem, t)]
    return not any(math.prod(op.shape(problem, t)) for t in present)


def check_work(op: OperatorFields, problem: Problem, where: str) -> None:
    """Raise SpecError for a problem on which there is nothing to compute. `where` names the list that holds it."""
    if is_empty(op, problem):
        raise SpecError(
            f"{where} lists problem '{problem.id}', on which there is nothing to compute",
            why="no output has elements there, and such a call returns at once",
            fix="leave it out",
        )


def check_call(op: OperatorFields, problem: Problem) -> None:
    """Check that a problem fits the operator and is a legal call, and that everything about it can be evaluated.

    Raises:
        SpecError: naming the problem and the offending value.
    """
    check_problem(op, problem)
    check_values_of(op, problem)


def check_values_of(op: OperatorFields, problem: Problem) -> None:
    """Evaluate everything that tuning asks about a problem, in the same order.

    Raises:
        SpecError: for a problem that is not legal, or if something cannot be evaluated.
    """
    place = "a shape"
    try:
        facts = op.facts(problem)
        for condition in extents_exist(op):
            if not condition.evaluate(facts):
                raise SpecError(f"{condition.key()} does not hold", fix="give a larger dim, or leave the problem out")
        place = "legal"
        for condition in op.legal:
            if not condition.evaluate(facts):
                raise SpecError(f"{condition.key()} does not hold", fix="change the problem, or what is legal")
        place = "flops"
        op.flops.evaluate(facts)
        for kernel in op.kernels:
            place = f"kernel {kernel.name!r}: requires or worthwhile"
            may_serve(kernel, facts, worthwhile=True)
    except SpecError as error:
        raise SpecError(
            f"operator {op.name!r}: {place}: {error.what} on problem '{problem.id}'",
            fix=error.fix or "write maximum(..., 1) for a divisor that may be 0, or leave the problem out",
        ) from error


def check_problem(op: OperatorFields, problem: Problem) -> None:
    """Check that a problem states every dim of the operator and nothing that the operator does not have.

    Raises:
        SpecError: naming the problem and the offending value.
    """
    where = f"operator {op.name!r}: problem '{problem.id}'"
    strange = "".join(f" in place of {n}" for n in problem.dims if n not in op.dims)
    for name in op.dims:
        if name not in problem.dims:
            raise SpecError(f"{where}: dim {name!r} is not bound", fix=f"state {name}=...{strange}")
    for name in problem.dims:
        if name not in op.dims:
            raise SpecError(f"{where}: unknown dim {name!r}", fix=did_you_mean(name, op.dims))
    for variable, name in problem.dtypes.items():
        if name not in op.dtypes.get(variable, ()):
            raise SpecError(
                f"{where}: {variable}={name!r} is not a dtype of the operator",
                fix=did_you_mean(name, op.dtypes.get(variable, op.dtypes)),
            )
    _check_problem_tensors(op, problem, where)
    choices = {a.name: a.choices for a in op.attributes}
    for name, value in problem.attributes.items():
        if name not in choices:
            raise SpecError(f"{where}: unknown attribute {name!r}", fix=did_you_mean(name, choices))
        if value not in choices[name]:
            raise SpecError(f"{where}: attribute {name!r} cannot be {value!r}", fix=did_you_mean(value, choices[name]))


def _check_problem_tensors(op: OperatorFields, problem: Problem, where: str) -> None:
    tensors = {t.name: t for t in op.tensors}
    for name in (*problem.order, *problem.strides, *problem.present, *problem.alignment):
        if name not in tensors:
            raise SpecError(f"{where}: unknown tensor {name!r}", fix=did_you_mean(name, tensors))
    for name in problem.present:
        if not tensors[name].optional:
            raise SpecError(f"{where}: {name!r} is always present", fix="list only optional tensors")
    for name, order in problem.order.items():
        if sorted(order) != list(range(tensors[name].rank)):
            raise SpecError(f"{where}: order {order} of {name!r} is not a permutation of its axes")
    for name, strides in problem.strides.items():
        if len(strides) != tensors[name].rank:
            raise SpecError(f"{where}: {name!r} has {tensors[name].rank} axes, {len(strides)} strides were given")
        _check_strides(tensors[name], strides, where)
    for name, alignment in problem.alignment.items():
        size = op.dtype(problem, tensors[name]).itemsize
        if alignment < size or alignment > DEFAULT_ALIGNMENT or alignment & (alignment - 1):
            raise SpecError(f"{where}: alignment {alignment} of {name!r} is not a power of two from {size} to 64")


def _check_strides(tensor: Tensor, strides: tuple[int, ...], where: str) -> None:
    """Refuse strides of 0 along axes whose elements are written, or drawn, and must be distinct."""
    if tensor.inout and 0 in strides:
        raise SpecError(
            f"{where}: {tensor.name!r} has a stride of 0",
            why="its elements share one place, so they cannot be read and written one by one",
            fix="give that axis another stride",
        )
    if isinstance(tensor.values, Drawn) and 0 in strides and not tensor.output:
        raise SpecError(
            f"{where}: {tensor.name!r} has stride 0 on an axis, and a function draws its values",
            why="the elements that the function draws would share one place",
            fix="give that axis another stride",
        )
    if isinstance(tensor.values, ROWWISE) and strides[-1] == 0 and not tensor.output:
        raise SpecError(
            f"{where}: {tensor.name!r} has stride 0 on its last axis",
            why=f"all elements of a row share one place, so they cannot be {type(tensor.values).__name__}",
            fix="give that axis another stride",
        )
