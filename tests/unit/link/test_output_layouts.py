"""Outputs that are made with the layout of an input: by numpy and by torch, of any order of axes."""

from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import torch

SHAPE = (2, 3, 4, 5)


def made(order: tuple[int, ...], shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Numbers whose axes are in memory in an order, slowest first."""
    inverse = [order.index(axis) for axis in range(4)]
    return torch.randn([shape[axis] for axis in order]).permute(inverse)


def test_axes_lie_as_those_of_the_input(odd_ops: ModuleType) -> None:
    for order in itertools.permutations(range(4)):
        x, like = torch.randn(SHAPE), made(order)
        assert like.shape == SHAPE
        out, plain = odd_ops.copy(x, like)
        assert torch.equal(out, x)
        assert torch.equal(plain, x)
        assert (out.stride(), plain.stride()) == (like.stride(), x.stride())
        out, plain = odd_ops.copy(x.numpy(), like.numpy())
        assert isinstance(out, np.ndarray)
        np.testing.assert_array_equal(out, x.numpy())
        assert (out.strides, plain.strides) == (like.numpy().strides, x.numpy().strides)


def test_gaps_are_left_out_and_reversed_axes_are_not_reversed(odd_ops: ModuleType) -> None:
    x = torch.randn(SHAPE)
    wide = torch.randn(2, 4, 3, 11).transpose(1, 2)[..., 2:7]
    assert odd_ops.copy(x, wide)[0].stride() == (60, 5, 15, 1)
    turned = made((0, 2, 1, 3)).numpy()[:, ::-1]
    assert [s // 4 for s in odd_ops.copy(x.numpy(), turned)[0].strides] == [60, 5, 15, 1]
