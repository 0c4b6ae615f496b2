"""numpy that rounds and adds as kernels may: results are rounded to a narrow dtype, or sums are in order.

Values stay in float32 or float64, and only lose bits of their fraction. So a sum of squares beyond the range of float16
is not infinite, since kernels keep sums in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SEQUENTIAL = 512
"""How many elements of a product are summed one term after the other."""

EXACT_FUNCTIONS = frozenset(
    """abs absolute amax amin argmax argmin argsort atleast_1d atleast_2d broadcast_arrays broadcast_to cat ceil clamp
    clip clone concat concatenate contiguous copy copysign cummax cummin detach diagonal expand expand_as expand_dims
    fabs flatten flip floor fmax fmin full_like gather index_select isfinite isinf isnan masked_fill matrix_transpose
    max maximum min minimum movedim moveaxis narrow neg negative nonzero ones_like pad permute permute_dims positive
    ravel repeat repeat_interleave reshape rint roll round scatter select sign sort split squeeze stack swapaxes
    swapdims t take take_along_axis take_along_dim tile to topk transpose tril triu trunc unbind unfold
    unsqueeze view where zeros_like""".split()  # noqa: SIM905
)
"""Functions of numpy and torch that move, choose or negate values. Their results are as exact as their arguments."""

_BITS = {4: (np.dtype(np.int32), 23), 8: (np.dtype(np.int64), 52)}


def round_fraction(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """The nearest values with so many bits of fraction, ties to even. NaN and infinities stay as they are."""
    whole, held = _BITS[values.dtype.itemsize]
    drop = held - bits
    if drop <= 0:
        return values
    raw: Any = np.ascontiguousarray(values).view(whole)
    rounded = (raw + ((1 << (drop - 1)) - 1) + ((raw >> drop) & 1)) & ~((1 << drop) - 1)
    nearest: NDArray[Any] = np.where(np.isfinite(values), rounded.view(values.dtype), values)
    return nearest


class RoundedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array whose operations round their results to `bits` of fraction. Made by `of`."""

    bits = 23

    @classmethod
    def of(cls, values: NDArray[Any], bits: int) -> NDArray[Any]:
        """These values themselves are not rounded."""
        array: RoundedArray = values.view(cls)
        array.bits = bits
        return array

    def __array_finalize__(self, source: Any) -> None:
        self.bits = getattr(source, "bits", self.bits)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **given: Any) -> Any:
        bits = min(i.bits for i in (*inputs, self) if isinstance(i, RoundedArray))
        out = given.pop("out", None)
        if out is not None:
            given["out"] = tuple(_plain(o) for o in out)
        result = getattr(ufunc, method)(*map(_plain, inputs), **given)
        if out is not None:
            if ufunc.__name__ not in EXACT_FUNCTIONS and result.dtype.kind == "f":
                _plain(out[0])[...] = round_fraction(np.asarray(result), bits)
            return out[0]
        exact = ufunc.__name__ in EXACT_FUNCTIONS
        several = result if isinstance(result, tuple) else (result,)
        done = tuple(_rounded(value, bits, exact) for value in several)
        return done if isinstance(result, tuple) else done[0]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        if isinstance(result, (np.ndarray, np.floating)):
            return _rounded(_plain(result), self.bits, func.__name__ in EXACT_FUNCTIONS)
        return result


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, RoundedArray) else value


def _rounded(value: Any, bits: int, exact: bool) -> Any:
    if getattr(value, "dtype", None) is None or value.dtype.kind != "f" or value.dtype.itemsize not in _BITS:
        return value
    array = np.asarray(value)
    return RoundedArray.of(array if exact else round_fraction(array, bits), bits)


class SequentialSums:
    """numpy with sums in order. `used`: whether `sum` or `mean` was called.

    `matmul` computes only some elements in this way, as many as tell the error.
    """

    def __init__(self) -> None:
        self.used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Any:
        if axis is None or not isinstance(axis, int) or x.shape[axis] == 0:
            return np.sum(x, axis=axis, keepdims=keepdims)
        self.used = True
        total = np.take(np.add.accumulate(x, axis=axis, dtype=x.dtype), [-1], axis=axis)
        return total if keepdims else np.squeeze(total, axis=axis)

    @staticmethod
    def matmul(a: Any, b: Any) -> Any:
        if isinstance(a, RoundedArray) or isinstance(b, RoundedArray):  # a sum is rounded once, at its end
            rounded = a if isinstance(a, RoundedArray) else b
            product = SequentialSums.matmul(np.asarray(a), np.asarray(b))
            return RoundedArray.of(round_fraction(product, rounded.bits), rounded.bits)
        product = np.matmul(a, b)
        if a.ndim != 2 or b.ndim != 2 or 0 in product.shape or a.shape[1] == 0:
            return product
        rows = np.unique(np.linspace(0, product.shape[0] - 1, num=8, dtype=np.int64))
        columns = np.unique(np.linspace(0, product.shape[1] - 1, num=SEQUENTIAL // rows.size, dtype=np.int64))
        right = np.ascontiguousarray(b.T[columns])
        for row in rows:
            product[row, columns] = np.add.accumulate(right * a[row], axis=1)[:, -1]
        return product

    def mean(self, x: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Any:
        if axis is None or not isinstance(axis, int):
            return np.mean(x, axis=axis, keepdims=keepdims)
        return self.sum(x, axis=axis, keepdims=keepdims) / x.dtype.type(x.shape[axis])
