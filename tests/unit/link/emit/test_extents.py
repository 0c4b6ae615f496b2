"""Extents that are computed from others, where that divides by zero, overflows, or needs more than arithmetic."""

from __future__ import annotations

import ctypes
from types import ModuleType

import numpy as np
import pytest
from linked_cuda import OnDevice

from aot_tune.spec import dims

M, N, G = dims("M N G")


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_extents_are_computed(odd_ops: ModuleType) -> None:
    assert odd_ops.pieces(zeros(3, 4), zeros(2)).tolist() == [7] * 6
    out, padded = odd_ops.pieces(zeros(3, 4), zeros(2), padded=True)
    assert (out.shape, padded.shape) == ((6,), (4,))
    assert odd_ops.pieces(zeros(0, 4), zeros(2)).shape == (0,)
    with pytest.raises(ValueError, match=r"axis 0 has extent 5, wanted \(M \* \(N // G\)\) = 6"):
        odd_ops.pieces(zeros(3, 4), zeros(2), out=zeros(5))
    with pytest.raises(ValueError, match=r"where\(\(G == 3\), \(N == 0\), \(\(N % G\) == 0\)\) must hold"):
        odd_ops.pieces(zeros(3, 5), zeros(2), out=zeros(6))


def test_an_input_of_a_wrong_rank_is_told_before_the_output_that_it_should_size(odd_ops: ModuleType) -> None:
    with pytest.raises(odd_ops.ArgumentValueError, match=r"'x' has 1 axes, wanted 2"):
        odd_ops.pieces(zeros(3), zeros(2))


def test_a_division_by_zero(odd_ops: ModuleType) -> None:
    with pytest.raises(
        odd_ops.ArgumentValueError, match="output 'out' has no shape here: an extent is negative, divides"
    ):
        odd_ops.pieces(zeros(3, 4), zeros(0))
    told = r"'out': axis 0 wanted \(M \* \(N // G\)\) as in \[\(M \* \(N // G\)\)\], which divides by zero here"
    with pytest.raises(odd_ops.ArgumentValueError, match=told):
        odd_ops.pieces(zeros(3, 4), zeros(0), out=zeros(6))
    for ask in (odd_ops.is_tuned, odd_ops.explain):
        with pytest.raises(odd_ops.ArgumentValueError, match="'out': axis 0 has the extent -1"):
            ask("pieces", M=3, N=4, G=0)


def test_an_extent_that_exceeds_64_bits(odd_ops: ModuleType) -> None:
    """A broadcast tensor of 2^62 + 1 rows of 4 is small, and the product of its extents is 4 in 64 bits."""
    wide = OnDevice(zeros(3, 4), (1, 0))
    wide.shape[0] = 2**62 + 1
    wide.strides[:] = (ctypes.c_int64 * 2)(0, 1)
    out = zeros(4)
    with pytest.raises(odd_ops.ArgumentValueError, match="needs more than 64 bits"):
        odd_ops.pieces(wide, zeros(1), out=out)
    assert out.tolist() == [0] * 4
    with pytest.raises(odd_ops.ArgumentValueError, match="needs more than 64 bits"):
        odd_ops.pieces(wide, zeros(1))
