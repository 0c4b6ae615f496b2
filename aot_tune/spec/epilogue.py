"""What is applied to an output's values just before they are stored, as data that every backend can print."""

from __future__ import annotations

from dataclasses import dataclass

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
