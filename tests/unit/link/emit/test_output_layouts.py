"""Outputs that are made with the layout of an input: by numpy and by torch, of any order of axes."""

from __future__ import annotations

import gc
import itertools
import weakref
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


def test_axes_of_one_element_have_no_place(odd_ops: ModuleType) -> None:
    for shape in ((1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 5), (1, 1, 1, 1), (2, 0, 4, 5)):
        x = torch.randn(shape)
        out = odd_ops.copy(x, made((0, 2, 1, 3), shape))[0]
        assert torch.equal(out, x)
        assert out.transpose(1, 2).is_contiguous()


def test_of_a_broadcast_input_it_is_row_major(odd_ops: ModuleType) -> None:
    x = torch.randn(SHAPE)
    for like in (torch.randn(1, 3, 1, 5).expand(SHAPE), torch.randn(2, 1, 3, 5).transpose(1, 2).expand(SHAPE)):
        assert odd_ops.copy(x, like)[0].is_contiguous()


def test_what_is_passed_stays_as_it_is(odd_ops: ModuleType) -> None:
    x, out = torch.randn(SHAPE), torch.empty(SHAPE)
    assert odd_ops.copy(x, made((3, 2, 1, 0)), out=out)[0] is out
    assert torch.equal(out, x)


def test_memory_is_given_back(odd_ops: ModuleType) -> None:
    x, like = torch.randn(SHAPE), made((0, 2, 1, 3))
    for given in ((x, like), (x.numpy(), like.numpy())):
        out = odd_ops.copy(*given)[0]
        gone = weakref.ref(out if isinstance(out, torch.Tensor) else out.base)
        del out
        gc.collect()
        assert gone() is None
    kept = [odd_ops.copy(x, like)[0] for _ in range(100)]
    del like
    assert all(torch.equal(one, x) for one in kept)
