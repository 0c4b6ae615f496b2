"""Conditions of every kind in `legal`: other calls are typed errors from C and Python, and no kernel is asked."""

from __future__ import annotations

import ctypes
from typing import Any

import dltensors
import linked
import numpy as np
import pytest


def aligned(rows: int, columns: int, dtype: str = "f4", offset: int = 0) -> np.ndarray:
    """An array whose address is `offset` beyond a multiple of 64."""
    whole = np.zeros(rows * columns * 8 + 128, np.uint8)
    start = -whole.ctypes.data % 64 + offset
    size = rows * columns * np.dtype(dtype).itemsize
    return whole[start : start + size].view(dtype).reshape(rows, columns)


def out(rows: int, dtype: str = "f4") -> np.ndarray:
    return np.zeros(rows, dtype)


def test_legal_calls_are_answered(odd_ops: Any) -> None:
    for dtype, result in (("f4", "f4"), ("f4", "f8"), ("f8", "f8")):
        assert odd_ops.kinds(aligned(2, 4, dtype), out=out(2, result)).tolist() == [7, 7]
        assert odd_ops.kinds(aligned(4, 4, dtype), causal="yes", out=out(4, result)).tolist() == [7] * 4
        mode = {"mode": "c", "out": out(2, result)}
        assert odd_ops.kinds(aligned(2, 4, dtype), np.zeros(4, dtype), **mode).tolist() == [7, 7]


BAD: dict[str, tuple[dict[str, Any], int]] = {
    "stride.x.1 == 1) must hold, and stride.x.1 is 2; pass a contig": ({"x": aligned(2, 8)[:, ::2]}, 6),
    "alignment.x >= 16) must hold, and alignment.x is 8; pass a copy of the tensor that is aligned so": (
        {"x": aligned(2, 4, offset=8)},
        6,
    ),
    "(N % 4) == 0) must hold, and N is 6": ({"x": aligned(2, 6)}, 5),
    "(attribute.causal == 0) or (M == N)) must hold, and M is 2, N is 4, attribute.causal is yes (1)": (
        {"x": aligned(2, 4), "causal": "yes"},
        5,
    ),
    "(present.bias == 1) or (attribute.mode != 2)) must hold, and attribute.mode is c (2), present.bias is 0": (
        {"x": aligned(2, 4), "mode": "c"},
        8,
    ),
    "attribute.mode <= 2) must hold, and attribute.mode is d (3)": ({"x": aligned(2, 4), "mode": "d"}, 8),
    "dtype.T <= dtype.S) must hold, and dtype.S is f32 (0), dtype.T is f64 (1)": ({"x": aligned(2, 4, "f8")}, 3),
    "present.mask == 0) must hold, and present.mask is 1": ({"x": aligned(2, 4), "mask": np.zeros(4, np.uint8)}, 1),
}
"""What is said, of which call, and its status in C."""


@pytest.mark.parametrize("told", BAD)
def test_other_calls_are_errors_that_name_the_condition(odd: linked.Built, odd_ops: Any, told: str) -> None:
    given, status = BAD[told]
    result = out(2)
    kind = odd_ops.ArgumentTypeError if status in (1, 3) else odd_ops.ArgumentValueError
    for call in (lambda: odd_ops.kinds(**given, out=result), lambda: odd_ops.explain("kinds", **given, out=result)):
        with pytest.raises(kind) as error:
            call()
        assert f"kinds: not a call that it takes: ({told}" in str(error.value)
    library = ctypes.CDLL(str(odd.library))
    library.aot_tune_last_error.restype = ctypes.c_char_p
    tensors = [tensor(given.get(name)) for name in ("x", "bias", "mask")]
    choices = ("no", "yes").index(given.get("causal", "no")), "abcd".index(given.get("mode", "a"))
    assert library.aot_tune_kinds(*tensors, tensor(result), *choices, None) == status
    assert told in library.aot_tune_last_error().decode()
    assert result.tolist() == [0, 0]


def tensor(array: np.ndarray | None) -> Any:
    """An array as C has it."""
    if array is None:
        return None
    kinds = {"f4": dltensors.F32, "f8": dltensors.F64, "u1": (1, 8)}
    steps = tuple(s // array.itemsize for s in array.strides)
    made = dltensors.Given(array.ctypes.data, array.shape, steps, kinds[array.dtype.str[1:]])
    made.tensor.device[0] = 1
    return ctypes.byref(made.tensor)
