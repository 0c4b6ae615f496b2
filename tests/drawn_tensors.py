"""Tensors of given values in random layouts, with bytes around them that must stay as they are."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aot_tune.bench.worker.inputs import Strided

_GUARD = 256
"""Bytes in front of a tensor and behind it."""


@dataclass(frozen=True)
class Placed:
    """A tensor to pass, and the whole of the memory that it lies in.

    `view` is the same tensor as torch has it, but for an array of numpy that runs backwards along some axes: those of
    `view` run forwards along `flipped`.
    """

    tensor: Any
    view: torch.Tensor
    memory: torch.Tensor
    flipped: tuple[int, ...] = ()

    @property
    def values(self) -> Any:
        """Its values as an array of numpy, floats in float64."""
        return numbers(self.view.flip(self.flipped) if self.flipped else self.view)

    def beside(self) -> torch.Tensor:
        """What lies beside its elements, byte by byte; the elements are 0 there."""
        rest = self.memory.clone()
        elements = rest.view(self.view.dtype)
        elements.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).zero_()
        return rest


def numbers(tensor: Any) -> Any:
    """A tensor as an array of numpy, floats in float64."""
    if isinstance(tensor, torch.Tensor):
        tensor = (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()
    return tensor.astype(np.float64) if tensor.dtype.kind == "f" else tensor


def split(total: int, draw: random.Random) -> tuple[int, ...]:
    """Leading dims whose product is that."""
    if total == 1 and draw.random() < 0.3:
        return ()
    kind = draw.randrange(4)
    divisors = [n for n in range(1, total + 1) if total % n == 0] or [0]
    if kind == 0:
        return (total,)
    first = draw.choice(divisors)
    if kind == 1 or not first:
        return (1, total)
    return (first, total // first) if kind == 2 else (first, 1, total // first)


def strides_of(shape: Sequence[int], draw: random.Random, *, shared: bool, backward: Sequence[int]) -> tuple[int, ...]:
    """Strides of a layout by chance: dense, padded, in any order of axes.

    Args:
        shape: of the tensor.
        shared: whether elements may lie in one place.
        backward: axes that may run backwards.
    """
    kind = draw.randrange(6)
    order = list(range(len(shape)))
    if kind in (1, 4):
        draw.shuffle(order)
    step = draw.choice((2, 3)) if kind in (2, 4) else 1
    strides = [0] * len(shape)
    for place, axis in enumerate(reversed(order)):
        strides[axis] = step
        step *= max(shape[axis], 1)
        if kind in (3, 4) and place == 0:
            step += draw.choice((1, 3, 8))
    if shared and kind == 5:
        strides = [0 if draw.random() < 0.5 else stride for stride in strides]
    if backward and draw.random() < 0.25:
        strides = [-s if axis in backward and draw.random() < 0.5 else s for axis, s in enumerate(strides)]
    return tuple(strides)


def place(
    strided: Strided,
    lead: Sequence[int] | None,
    dtype: torch.dtype,
    values: np.ndarray[Any, Any] | None,
    *,
    shift: int,
    framework: str,
    device: str,
) -> Placed:
    """A tensor in memory of its own.

    Args:
        strided: with one axis for leading dims.
        lead: what that axis is split into; None leaves it.
        values: of its storage, as bits; None for one that is only written.
        shift: bytes that it is moved by.
        framework: `numpy` or `torch`.
    """
    shape, size, reach = strided.shape, dtype.itemsize, strided.extent()
    memory = torch.full((_GUARD + reach * size + shift + _GUARD,), 0x5A, dtype=torch.uint8, device=device)
    memory = memory[: memory.numel() // size * size]
    begin = _GUARD + shift
    if values is not None and reach:
        memory[begin : begin + reach * size] = torch.from_numpy(values.view(np.uint8)).to(device)
    strides = [abs(s) for s in strided.strides]
    if lead is not None:
        inner = [strides[0] * math.prod(lead[axis + 1 :]) for axis in range(len(lead))]
        shape, strides = (*lead, *shape[1:]), [*inner, *strides[1:]]
    flat = memory.view(dtype).as_strided(shape, strides, begin // size)
    if framework == "torch":
        return Placed(flat, flat, memory)
    more = len(shape) - len(strided.shape)
    flipped = tuple(axis + more for axis, s in enumerate(strided.strides) if s < 0)
    return Placed(np.flip(flat.numpy(), flipped) if flipped else flat.numpy(), flat, memory, flipped)
