"""Fragments: named formulas of an operator, which its kernels apply where they will, such as to scores of attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot_tune.spec.expr import Expr, ExprLike, as_expr
from aot_tune.spec.formula import FormulaLike, as_formula
from aot_tune.spec.names import check_identifier
from aot_tune.support.errors import SpecError

__all__ = ["EPILOGUE", "Fragment", "FragmentOf", "fragment"]

EPILOGUE = "epilogue"
"""What the operator's epilogue is called among its fragments."""


class Fragment:
    """A formula of a computed value and of where it is.

    Args:
        indices: the names of what says where a value is, as a text, `"b h q k"`, or as a mapping of each to its extent,
            `{"b": B, "h": H, "q": Q, "k": K}`: kernels promise to apply it within these only, so that elements of
            tensors with such axes are read without a look at their bounds.
        formula: see `spec.elementwise`; `index("q")` is an index, and `element("slopes", "h")` what lies there.
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
    """A fragment of the operator as a constexpr of a Triton function, which calls it: made by `fragment`."""

    def __init__(self, name: str) -> None:
        self.name = check_identifier(name, "fragment")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FragmentOf) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"fragment({self.name!r})"


def fragment(name: str) -> FragmentOf:
    """What a Triton function's argument is: the operator's fragment of that name, or its `epilogue`, to be called."""
    return FragmentOf(name)
