"""One form for equal problems, the form of operators' own workloads: equal ones add up and find their measurements."""

from __future__ import annotations

import itertools

import msgspec

from aot_tune.spec.operator import Operator
from aot_tune.spec.problem import DEFAULT_ALIGNMENT, Problem
from aot_tune.spec.strides import canonical_strides, row_major
from aot_tune.spec.tensors import Tensor

__all__ = ["normal_problem"]

_MAX_PERMUTED = 6


def normal_problem(operator: Operator, problem: Problem) -> Problem:
    """An equal problem without defaults. Strides that an order of the axes gives are written as that order.

    The problem must fit the operator, as `check_problem` checks it.
    """
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    for name in sorted({*problem.order, *problem.strides}):
        tensor = operator.tensor(name)
        if operator.is_present(problem, tensor):
            _lay_out(operator, problem, tensor, order, strides)
    aligned = {t: a for t, a in sorted(problem.alignment.items()) if a != DEFAULT_ALIGNMENT}
    defaults = {a.name: a.choices[0] for a in operator.attributes}
    return msgspec.structs.replace(
        problem,
        dims={name: problem.dims[name] for name in operator.dims},
        order=order,
        strides=strides,
        present=tuple(sorted(set(problem.present))),
        attributes={a: c for a, c in sorted(problem.attributes.items()) if c != defaults[a]},
        alignment={t: a for t, a in aligned.items() if operator.is_present(problem, operator.tensor(t))},
        dtypes={v: d for v, d in sorted(problem.dtypes.items()) if d != operator.dtypes[v][0]},
    )


def _lay_out(
    operator: Operator,
    problem: Problem,
    tensor: Tensor,
    order: dict[str, tuple[int, ...]],
    strides: dict[str, tuple[int, ...]],
) -> None:
    """Note how a tensor lies in memory, if it is not row-major."""
    shape = operator.shape(problem, tensor)
    given = operator.canonical_strides(problem, tensor)
    axes = range(len(shape))
    for permuted in itertools.permutations(axes) if len(shape) <= _MAX_PERMUTED else [tuple(axes)]:
        if canonical_strides(shape, row_major(shape, permuted)) == given:
            if permuted != tuple(axes):
                order[tensor.name] = permuted
            return
    strides[tensor.name] = given
