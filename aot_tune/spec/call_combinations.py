"""Facts of calls that have few values (optional tensors, attributes and dtypes), and their legal combinations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from aot_tune.expr.integers import Expr, all_of
from aot_tune.spec.operator_fields import OperatorFields

__all__ = ["is_of_combination", "legal_combinations", "values_of_fact"]

_KINDS = ("present.", "attribute.", "dtype.")


def is_of_combination(expr: Expr) -> bool:
    """Whether an expression depends only on optional tensors, attributes and dtypes."""
    return all(fact.startswith(_KINDS) for fact in expr.facts())


def values_of_fact(op: OperatorFields, fact: str) -> Sequence[int]:
    """The possible values of such a fact: 0 before 1, and indices of choices in their order."""
    kind, _, name = fact.partition(".")
    if kind == "present":
        return (0, 1) if op.tensor(name).optional else (1,)
    if kind == "attribute":
        return range(len(next(a.choices for a in op.attributes if a.name == name)))
    return range(len(op.dtypes[name]))


def legal_combinations(
    op: OperatorFields, facts: Sequence[str], values: Sequence[Sequence[int]]
) -> Iterator[dict[str, int]]:
    """The combinations of values that facts may have, as far as `legal` restricts only them."""
    about = tuple(c for c in op.legal if c.facts() and c.facts() <= set(facts))
    for row in itertools.product(*values):
        call = dict(zip(facts, row, strict=True))
        if all_of(about, call):
            yield call
