"""Fragments: named formulas of an operator that its kernels apply where they choose, such as to attention scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot_tune.expr.formulas import FormulaLike, as_formula
from aot_tune.expr.integers import Expr, ExprLike, as_expr
from aot_tune.spec.names import check_identifier
from aot_tune.support.errors import SpecError

__all__ = ["EPILOGUE", "Fragment", "FragmentOf", "fragment"]

EPILOGUE = "epilogue"
"""The name of the operator's epilogue among its fragments."""


class Fragment:
    """A formula of a computed value and of its place.

    Args:
        indices: the names of the indices of a value's place: as a text, `"b h q k"`, or as a mapping of each to its
            extent, `{"b": B, "h": H, "q": Q, "k": K}`. With extents, kernels promise to apply it only within these, so
            that tensors with such axes are read without a check of bounds.
        formula: see `spec.elementwise`. `index("q")` is an index, and `element("slopes", "h")` the element at it.
    """

    def __init__(self, indices: str | Sequence[str] | Mapping[str, ExprLike | None], formula: FormulaLike) -> None:
        if isinstance(indices, Mapping):
            named = {n: None if e is None else as_expr(e, f"index {n!r} of a fragment") for n, e in indices.items()}
        else:
            names = indices.replace(",", " ").split() if isinstance(indices, str) else list(indices)
            named = dict.fromkeys(names)
            if len(named) != len(names):
                raise SpecError(f"a fragment lists an index twice: {' '.join(names)}", fix="rename one")
        for name in named:
            check_identifier(name, "index of a fragment")
        self.indices: dict[str, Expr | None] = named
        self.formula = as_formula(formula, "what a fragment computes")

    def key(self) -> str:
        """A canonical text: equal for equal fragments, stable across processes."""
        extents = (f"{n}={'' if e is None else e.key()}" for n, e in self.indices.items())
        return f"{' '.join(extents)}: {self.formula.key()}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fragment) and other.key() == self.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"Fragment({' '.join(self.indices)!r}, {self.formula!r})"


class FragmentOf:
    """A fragment of the operator as a constexpr of a Triton function, which calls it. `fragment` makes it."""

    def __init__(self, name: str) -> None:
        self.name = check_identifier(name, "fragment")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FragmentOf) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"fragment({self.name!r})"


def fragment(name: str) -> FragmentOf:
    """An argument for a Triton function to call: the operator's fragment of that name, or its `epilogue`."""
    return FragmentOf(name)
