"""Formulas of an operator, as data: its epilogue, applied just before values are stored, and fragments with names."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import reduce

from aot_tune.expr.formulas import Formula, FormulaLike, as_formula
from aot_tune.expr.integer_expressions import Expr, ExprLike, as_expr, attribute, present
from aot_tune.spec.names import check_identifier
from aot_tune.support.errors import SpecError

EPILOGUE = "epilogue"
"""The name of the operator's epilogue among its fragments."""


@dataclass(frozen=True)
class AddTensor:
    """Add an optional tensor. `axes` names the output axes whose indices it is read at, in the tensor's order."""

    tensor: str
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_identifier(self.tensor, "epilogue tensor")


@dataclass(frozen=True)
class Activate:
    """Apply the function that an attribute names. The choice `none` leaves the value as it is."""

    attribute: str

    def __post_init__(self) -> None:
        check_identifier(self.attribute, "epilogue attribute")


@dataclass(frozen=True)
class Compute:
    """Replace the value by the result of a formula; see `spec.elementwise`."""

    formula: Formula = field(compare=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "formula", as_formula(self.formula, "what an epilogue computes"))
        object.__setattr__(self, "key", self.formula.key())


EpilogueStep = AddTensor | Activate | Compute


@dataclass(frozen=True)
class Epilogue:
    """Steps applied in order to the values of the output tensor `output`.

    `Epilogue("out", expression=formula)` is a single step that computes a formula.
    """

    output: str
    steps: tuple[EpilogueStep, ...] = ()
    expression: InitVar[FormulaLike | None] = None

    def __post_init__(self, expression: FormulaLike | None) -> None:
        for step in self.steps if isinstance(self.steps, (tuple, list)) else [self.steps]:
            if not isinstance(step, EpilogueStep):
                raise SpecError(
                    f"the epilogue of {self.output!r} has the step {str(step)[:60]}, a {type(step).__name__}",
                    fix="write Epilogue(output, (AddTensor(...), Activate(...), Compute(...))), or expression=...",
                )
        if expression is not None:
            computed = Compute(as_formula(expression, f"the epilogue of {self.output!r}"))
            object.__setattr__(self, "steps", (*self.steps, computed))

    @property
    def applies(self) -> Expr:
        """Whether a call has any part of it, if the first choice of every attribute that it applies is `none`."""
        return reduce(operator.or_, map(_applies, self.steps), as_expr(0))


def _applies(step: EpilogueStep) -> Expr:
    if isinstance(step, Compute):
        return as_expr(1)
    return present(step.tensor) if isinstance(step, AddTensor) else attribute(step.attribute) != 0


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
