"""Integer expressions for many calls at once: facts are columns of int64, one element a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.expr.array_values import divided
from aot_tune.expr.integer_expressions import FUNCTIONS, Expr, Facts, python_function


def _power_above(value: Any) -> Any:
    above = np.ones_like(np.asarray(value, dtype=np.int64))
    while np.any(short := above < value):
        above = np.where(short, above * 2, above)
    return above


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "//": partial(divided, np, np.floor_divide),
    "%": partial(divided, np, np.mod),
    "and": np.logical_and,
    "or": np.logical_or,
    "min": np.minimum,
    "max": np.maximum,
    "where": np.where,
    "next_power_of_2": _power_above,
}


class Calls:
    """Facts of an operator's calls. What is asked is computed once for all, in 64 bits, as in dispatch."""

    def __init__(self, facts: Sequence[Facts]) -> None:
        self._facts = facts
        self._columns: dict[str, NDArray[np.int64]] = {}
        self._hold: dict[str, NDArray[np.bool_]] = {}
        self._owned: dict[int, tuple[object, NDArray[np.int64]]] = {}

    def __len__(self) -> int:
        return len(self._facts)

    def __getitem__(self, fact: str) -> NDArray[np.int64]:
        """The fact of each call. Raises KeyError when a call lacks it."""
        column = self._columns.get(fact)
        if column is None:
            column = self._columns[fact] = np.array([f[fact] for f in self._facts], dtype=np.int64)
        return column

    def values(self, expr: Expr) -> NDArray[np.int64]:
        """The value of an expression for each call. A quotient by zero is 0."""
        values = np.asarray(python_function(expr, _FUNCTIONS)(self), dtype=np.int64)
        return values if values.shape else np.full(len(self), values)

    def hold(self, conditions: Iterable[Expr]) -> NDArray[np.bool_]:
        """For which calls all conditions hold."""
        held = np.ones(len(self), dtype=np.bool_)
        for condition in conditions:
            key = condition.key()
            if key not in self._hold:
                self._hold[key] = self.values(condition) != 0
            held &= self._hold[key]
        return held

    def once(self, owner: object, column: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
        """What `column` gives, which is called once for an owner."""
        owned = self._owned.get(id(owner))
        if owned is None:
            owned = self._owned[id(owner)] = (owner, column())  # an owner that is kept keeps its id
        return owned[1]
