"""torch's functions as references use them, with two changes: results are rounded, and new arrays are on the device.

Results are rounded like those of kernels that keep them in a narrow dtype. As in `rounded_arrays`, values stay in
float32 and only lose bits of their fraction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aot_tune.bench.worker.rounded_arrays import EXACT_FUNCTIONS

__all__ = ["Casts", "Rounding", "made_on", "round_tensor"]

_BITS = {torch.float32: (torch.int32, 23), torch.float64: (torch.int64, 52)}


def round_tensor(values: Any, bits: int) -> Any:
    """The nearest values with so many bits of fraction, ties to even. NaN and infinities stay as they are."""
    whole, held = _BITS[values.dtype]
    drop = held - bits
    if drop <= 0:
        return values
    raw = values.contiguous().view(whole)
    rounded = ((raw + ((1 << (drop - 1)) - 1) + ((raw >> drop) & 1)) & ~((1 << drop) - 1)).view(values.dtype)
    return torch.where(torch.isfinite(values), rounded, values)


class Rounding(TorchFunctionMode):
    """A context in which results are rounded to `bits` of fraction.

    Functions that move or choose values round nothing.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = bits

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in EXACT_FUNCTIONS or name.startswith("__get") or name == "__set__":
            return found
        if isinstance(found, tuple) and not hasattr(found, "_fields"):
            return tuple(self._rounded(one, args) for one in found)
        return self._rounded(found, args)

    def _rounded(self, found: Any, args: tuple[Any, ...]) -> Any:
        if not isinstance(found, torch.Tensor) or found.dtype not in _BITS:
            return found
        if any(found is one for one in args):  # the function changed it in place
            return found.copy_(round_tensor(found, self._bits))
        return round_tensor(found, self._bits)


class Casts(TorchFunctionMode):
    """A context that notices when NaN or infinities become integers. Then `nonfinite` is true."""

    def __init__(self) -> None:
        super().__init__()
        self.nonfinite = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and not found.dtype.is_floating_point and found.dtype != torch.bool:
            given = next((a for a in args if isinstance(a, torch.Tensor)), None)
            name = getattr(func, "__name__", "")
            if given is not None and given.dtype.is_floating_point and name in _CASTS:
                self.nonfinite |= not bool(torch.isfinite(given).all())
        return found


_CASTS = frozenset(("to", "type", "type_as", "int", "long", "char", "short", "byte"))


@contextlib.contextmanager
def made_on(device: torch.device, wide: bool) -> Iterator[None]:
    """Arrays that a reference makes by itself, as by `xp.arange`, are on the device of the others.

    If the others are in float64, so are these, unless the reference says otherwise. A value rounded to float32 is not
    true.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide else torch.float32)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
