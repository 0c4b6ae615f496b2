"""What is applied to an output's values just before they are stored, as data that every backend can print."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce

from aot_tune.spec.expr import Expr, as_expr, attribute, present
from aot_tune.spec.names import check_identifier

__all__ = ["Activate", "AddTensor", "Epilogue", "EpilogueStep"]


@dataclass(frozen=True)
class AddTensor:
    """Add an optional tensor, read at the output's indices named by `axes` (output axes, in the tensor's order)."""

    tensor: str
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_identifier(self.tensor, "epilogue tensor")


@dataclass(frozen=True)
class Activate:
    """Apply the function that an attribute names; the choice `none` leaves the value as it is."""

    attribute: str

    def __post_init__(self) -> None:
        check_identifier(self.attribute, "epilogue attribute")


EpilogueStep = AddTensor | Activate


@dataclass(frozen=True)
class Epilogue:
    """Steps applied in order to the values of the output tensor `output`."""

    output: str
    steps: tuple[EpilogueStep, ...]

    @property
    def applies(self) -> Expr:
        """Whether a call has anything of it, where the first choice of every attribute that it applies is `none`."""
        parts = (present(s.tensor) if isinstance(s, AddTensor) else attribute(s.attribute) != 0 for s in self.steps)
        return reduce(operator.or_, parts, as_expr(0))
