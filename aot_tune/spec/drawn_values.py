"""Values of an input from an author's function that sees inputs drawn before: lengths, tables of pages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from aot_tune.support.errors import SpecError

__all__ = ["OF_VALUES", "Drawn", "drawn"]

OF_VALUES = "values of the input"
"""How messages about errors in such a function begin."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """A function whose result, an array of the tensor's shape, gives the values; see `drawn`."""

    function: Callable[[Any, Any], Any]

    @property
    def file(self) -> str:
        """The file of the function."""
        return str(inspect.unwrap(self.function).__code__.co_filename)

    @property
    def place(self) -> str:
        """The function's name, with the file and line where it begins."""
        found = inspect.unwrap(self.function)
        return f"{found.__qualname__} ({self.file}:{found.__code__.co_firstlineno})"


def drawn(function: Callable[[Any, Any], Any]) -> Drawn:
    """Values by `function(rng, call)`. All of its randomness must come from `rng`, a `numpy.random.Generator`.

    `call` has the dims by name, the tensor's own `shape`, and scalars and attributes as a reference gets them. It also
    has the arrays of inputs that are declared before the tensor. They are read-only, and None if absent.
    """
    if not isinstance(inspect.unwrap(function) if callable(function) else None, FunctionType):
        raise SpecError(f"drawn({str(function)[:60]!r}) is not a function", fix="write def lengths(rng, call): ...")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise SpecError(
            f"drawn: {Drawn(function).place} cannot be called with (rng, call): {error}",
            fix="write def lengths(rng, call): ...",
        ) from None
    return Drawn(function)
