"""Tensors of random values in random layouts, with bytes around them that must stay as they are."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "bool": torch.bool}
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
        """Its values in float64, or booleans, as an array of numpy."""
        ordered = self.view.flip(self.flipped) if self.flipped else self.view
        ordered = ordered if ordered.dtype == torch.bool else ordered.double()
        return ordered.cpu().numpy()

    def beside(self) -> torch.Tensor:
        """What lies beside its elements, byte by byte; the elements are 0 there."""
        rest = self.memory.clone()
        elements = rest.view(self.view.dtype)
        elements.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).zero_()
        return rest


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


def strides_of(shape: Sequence[int], draw: random.Random, *, broadcast: bool) -> list[int]:
    """Strides of distinct elements, and of repeated ones where that may be: dense, padded, in any order of axes."""
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
    if broadcast and kind == 5:
        strides = [0 if draw.random() < 0.5 else stride for stride in strides]
    return strides


def place(
    shape: Sequence[int],
    lead: Sequence[int] | None,
    dtype: torch.dtype,
    draw: random.Random,
    *,
    output: bool,
    framework: str,
    device: str,
) -> Placed:
    """A tensor of normal values, or of an output's filling, in a layout by chance.

    Args:
        shape: with one axis for leading dims.
        lead: what that axis is split into; None leaves it.
        framework: `numpy` or `torch`.
    """
    strides = strides_of(shape, draw, broadcast=not output)
    size = dtype.itemsize
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    shift = draw.choice((0, 0, 0, 1, 3, 16 // size))
    memory = torch.full((_GUARD + (reach + shift) * size + _GUARD,), 0x5A, dtype=torch.uint8, device=device)
    offset = _GUARD // size + shift
    whole = memory.view(dtype)
    flat = whole.as_strided(shape, strides, offset)
    if not output:
        generator = torch.Generator().manual_seed(draw.getrandbits(32))
        drawn = torch.randn((reach,), generator=generator)
        content = drawn > -0.7 if dtype == torch.bool else drawn.to(dtype)
        whole[offset : offset + reach] = content.to(device)
    if lead is not None:
        inner = [strides[0] * math.prod(lead[axis + 1 :]) for axis in range(len(lead))]
        flat = whole.as_strided((*lead, *shape[1:]), (*inner, *strides[1:]), offset)
    if framework == "torch":
        return Placed(flat, flat, memory)
    array = flat.numpy()
    flipped: tuple[int, ...] = ()
    if draw.random() < 0.25:  # leading dims must stay one by their strides
        first = 0 if lead is None else len(lead)
        flipped = tuple(axis for axis in range(first, array.ndim) if draw.random() < 0.5)
        for axis in flipped:
            array = array[(slice(None),) * axis + (slice(None, None, -1),)]
    return Placed(array, flat, memory, flipped)
