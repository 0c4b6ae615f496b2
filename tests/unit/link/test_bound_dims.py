"""Dims that an output's shape, an integer or an extent to be solved tells; extents that are computed from others."""

from __future__ import annotations

import ctypes
from types import ModuleType

import numpy as np
import pytest
from dltensors import OnDevice


def zeros(*shape: int, dtype: str = "f4") -> np.ndarray:
    return np.zeros(shape, dtype)


def test_an_integer_tells_a_dim(odd_ops: ModuleType) -> None:
    out = odd_ops.top(zeros(2, 5), top_k=3)
    assert out.tolist() == [[3] * 3] * 2
    assert odd_ops.top(zeros(2, 5), top_k=0).shape == (2, 0)
    given = zeros(2, 4)
    assert odd_ops.top(zeros(2, 5), top_k=4, out=given) is given


def test_an_integer_that_is_no_extent(odd_ops: ModuleType) -> None:
    with pytest.raises(
        odd_ops.ArgumentValueError, match=r"top: 'top_k' is -1, wanted an extent of the dim K: 0 or more"
    ):
        odd_ops.top(zeros(2, 5), top_k=-1)
    with pytest.raises(odd_ops.ArgumentValueError, match=r"\(K <= N\) must hold"):
        odd_ops.top(zeros(2, 5), top_k=6)
    with pytest.raises(TypeError, match=r"top\(\) needs 'top_k'; it is called as top\(x, \*, top_k, out=None"):
        odd_ops.top(zeros(2, 5))


def test_an_integer_and_a_tensor_must_agree(odd_ops: ModuleType) -> None:
    assert odd_ops.both(zeros(3), N=3).tolist() == [3] * 3
    with pytest.raises(
        odd_ops.ArgumentValueError, match=r"both: 'N' is 4, but the dim N is 3 in the tensors; wanted one"
    ):
        odd_ops.both(zeros(3), N=4)


def test_an_extent_is_solved_for_a_dim(odd_ops: ModuleType) -> None:
    assert odd_ops.halves(zeros(2, 260), zeros(2, 3)).shape == (2, 130)
    with pytest.raises(
        odd_ops.ArgumentValueError, match=r"'x': axis 1 has extent 7, which is \(2 \* N\) for no N, as in"
    ):
        odd_ops.halves(zeros(2, 7), zeros(2, 2))
    with pytest.raises(odd_ops.ArgumentValueError, match=r"'scales': axis 1 has extent 2, wanted .* = 3"):
        odd_ops.halves(zeros(2, 260), zeros(2, 2))
    for out in ({}, {"out": zeros(2, 3)}):  # the same is told of two mistakes
        with pytest.raises(odd_ops.ArgumentTypeError, match="'scales' has dtype f64, wanted f32"):
            odd_ops.halves(zeros(2, 7), zeros(2, 2).astype("f8"), **out)


def test_an_output_that_tells_a_dim_is_to_be_passed(odd_ops: ModuleType) -> None:
    out = zeros(9)
    assert odd_ops.resize(zeros(3), out=out).tolist() == [7] * 9
    for given in ({}, {"out": None}):
        with pytest.raises(odd_ops.ArgumentTypeError, match=r"resize\(\) needs the output 'out': its shape, dtype"):
            odd_ops.resize(zeros(3), **given)
    assert odd_ops.resize.__text_signature__ == "($module, x, *, out, stream=None, workspace=None)"
    assert "out: f32 [N], to be passed; it tells N." in odd_ops.resize.__doc__


def test_without_inputs_an_output_is_to_be_passed(odd_ops: ModuleType) -> None:
    assert odd_ops.fill(n=2, out=zeros(3)).tolist() == [2] * 3
    assert odd_ops.fill(n=0, out=zeros(1)).tolist() == [0]
    with pytest.raises(odd_ops.ArgumentTypeError, match="needs the output 'out'"):
        odd_ops.fill(n=2)


def test_an_output_tells_a_dtype(odd_ops: ModuleType) -> None:
    for dtype in ("f4", "f8"):
        out, other = odd_ops.cast(zeros(3), out=zeros(3, dtype=dtype))
        assert (out.dtype, other.dtype) == (dtype, dtype)
        assert out.tolist() == [7] * 3
    with pytest.raises(odd_ops.ArgumentTypeError, match="needs the output 'out'"):
        odd_ops.cast(zeros(3), other=zeros(3))
    with pytest.raises(odd_ops.ArgumentTypeError, match=r"'other' has dtype f64, but 'out' has f32"):
        odd_ops.cast(zeros(3), out=zeros(3), other=zeros(3, dtype="f8"))
    with pytest.raises(odd_ops.ArgumentTypeError, match=r"'out' has dtype i32, wanted f32 or f64"):
        odd_ops.cast(zeros(3), out=zeros(3, dtype="i4"))


def test_extents_are_computed(odd_ops: ModuleType) -> None:
    assert odd_ops.pieces(zeros(3, 4), zeros(2)).tolist() == [7] * 6
    out, padded = odd_ops.pieces(zeros(3, 4), zeros(2), padded=True)
    assert (out.shape, padded.shape) == ((6,), (4,))
    assert odd_ops.pieces(zeros(0, 4), zeros(2)).shape == (0,)
    with pytest.raises(ValueError, match=r"axis 0 has extent 5, wanted \(M \* \(N // G\)\) = 6"):
        odd_ops.pieces(zeros(3, 4), zeros(2), out=zeros(5))
    with pytest.raises(ValueError, match=r"where\(\(G == 3\), \(N == 0\), \(\(N % G\) == 0\)\) must hold"):
        odd_ops.pieces(zeros(3, 5), zeros(2), out=zeros(6))


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
