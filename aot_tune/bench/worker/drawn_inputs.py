"""Values that a function of the operator's author draws, which may see other inputs, and checks of its results."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.worker.stored_elements import limits_of
from aot_tune.spec import DType, Tensor
from aot_tune.spec.drawn_values import OF_VALUES, Drawn
from aot_tune.spec.generators import largest_integer

__all__ = ["DrawCall", "function_values"]


class DrawCall:
    """The call that such a function sees. Numbers and names are known at once, and an input when it is asked for.

    Args:
        known: dims, scalars, attributes, and the tensor's shape.
        inputs: functions that draw the inputs before the tensor, by name.
        later: the tensors that are not drawn yet.
    """

    def __init__(
        self,
        known: Mapping[str, Any],
        inputs: Mapping[str, Callable[[], NDArray[Any] | None]],
        later: frozenset[str],
    ) -> None:
        self._known, self._inputs, self._later = dict(known), inputs, later

    def __getattr__(self, name: str) -> Any:
        if name in self._inputs and name not in self._known:
            array = self._inputs[name]()
            if array is not None:
                array.setflags(write=False)
            self._known[name] = array
        if name in self._known:
            return self._known[name]
        if name in self._later:
            raise AttributeError(f"{name!r} is not drawn yet: declare that tensor before this one")
        raise AttributeError(f"the call has no {name!r}; it has {', '.join(sorted({*self._known, *self._inputs}))}")


def function_values(
    tensor: Tensor,
    kind: Drawn,
    dtype: DType,
    shape: tuple[int, ...],
    random: Callable[[], np.random.Generator],
    call: Callable[[], DrawCall],
) -> NDArray[Any]:
    """What a tensor's function returns, in the tensor's shape. `random` makes its generator, always in the same state.

    Raises:
        ValueError: if the function raises, or if the tensor cannot hold its result. It names the function and its line.
    """
    first, again = (_called(tensor, kind, random(), call()) for _ in range(2))
    if first.shape != shape:
        _refuse(tensor, kind, f"returns an array of shape {first.shape}, wanted {shape}")
    if not np.array_equal(first, again, equal_nan=first.dtype.kind == "f"):
        _refuse(tensor, kind, "returns other values when it is called again; take all random numbers from `rng`")
    _check_range(tensor, kind, dtype, first)
    return first


def _called(tensor: Tensor, kind: Drawn, rng: np.random.Generator, call: DrawCall) -> NDArray[Any]:
    try:
        found = np.asarray(kind.function(rng, call))
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == kind.file]
        at = f" in line {lines[-1]}" if lines else ""
        raise ValueError(f"{_place(tensor, kind)} raised {type(error).__name__}{at}: {error}") from error
    if found.dtype.kind not in "biuf":
        _refuse(tensor, kind, f"returns {found.dtype} where numbers are wanted")
    return found


def _check_range(tensor: Tensor, kind: Drawn, dtype: DType, found: NDArray[Any]) -> None:
    """Refuse values that the tensor's dtype cannot hold. Infinities and NaN are allowed in floats."""
    if dtype.code in (0, 1, 6):
        most = largest_integer(dtype)
        least = -most - 1 if dtype.code == 0 else 0
        wrong = (found < least) | (found > most)
        if found.dtype.kind == "f":
            wrong |= ~np.isfinite(found) | (found != np.floor(found))
        holds = f"holds whole numbers from {least} to {most}"
    else:
        limit = limits_of(dtype).max
        wrong = np.isfinite(found) & (np.abs(found.astype(np.float64)) > limit)
        holds = f"holds nothing beyond {limit:g}"
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        value = found[place].item()
        _refuse(tensor, kind, f"returns {value} at {list(place)}, and {dtype.name} {holds}")


def _refuse(tensor: Tensor, kind: Drawn, what: str) -> NoReturn:
    raise ValueError(f"{_place(tensor, kind)} {what}")


def _place(tensor: Tensor, kind: Drawn) -> str:
    return f"{OF_VALUES} {tensor.name!r}: {kind.place}"
