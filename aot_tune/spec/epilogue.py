"""What is applied to an output's values just before they are stored, as data that every backend can print."""

from __future__ import annotations

import operator
from dataclasses import InitVar, dataclass, field
from functools import reduce

from aot_tune.expr.formulas import Formula, FormulaLike, as_formula
from aot_tune.expr.integers import Expr, as_expr, attribute, present
from aot_tune.spec.names import check_identifier
from aot_tune.support.errors import SpecError

__all__ = ["Activate", "AddTensor", "Compute", "Epilogue", "EpilogueStep"]


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
