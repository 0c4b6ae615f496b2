"""What calls from Python pass beside tensors' elements, and what is refused: dims, scalars, conditions in `legal`."""

import ctypes
from types import ModuleType
from typing import Any

import dltensors
import linked
import numpy as np
import pytest
from dltensors import OnDevice
from odd_operators import LARGE, WHOLE

from aot_tune.spec.dtypes import DTYPES


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


def test_scalars_of_each_kind(odd_ops: ModuleType) -> None:
    out = np.zeros(6)
    assert odd_ops.tell(np.zeros(6), needed=0.25, out=out) is out
    assert out.tolist() == [np.float32(0.1), 0.1, -3, 2**21, 1, 0.25]
    odd_ops.tell(np.zeros(6), out=out, single=0.3, wide=0.3, small=-(2**31), large=-LARGE, needed=2)
    assert out.tolist() == [np.float32(0.3), 0.3, -(2**31), -(2**21) - 1, 2**32 - 1, 2]
    given = {"single": np.float32(0.5), "wide": np.int64(3), "small": np.int8(-1), "large": True}
    odd_ops.tell(np.zeros(6), out=out, needed=np.float64("nan"), **given)
    assert out.tolist()[:5] == [0.5, 3, -1, 0, 1]
    assert np.isnan(out[5])
    with pytest.raises(TypeError, match=r"tell\(\) needs 'needed'; it is called as tell\("):
        odd_ops.tell(np.zeros(6), out=out)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"small": 2**31}, "OverflowError", "tell: 'small' is 2147483648, wanted a whole number of 32 bits"),
        ({"small": -(2**80)}, "OverflowError", "'small' is -1208925819614629174706176, wanted a whole number of 32"),
        ({"large": 2**63}, "OverflowError", "'large' is 9223372036854775808, wanted a whole number of 64 bits"),
        ({"large": 1.0}, "ArgumentTypeError", "'large' is 1.0, wanted a whole number of 64 bits"),
        ({"large": "9"}, "ArgumentTypeError", "'large' is '9', wanted a whole number of 64 bits"),
        ({"single": None}, "ArgumentTypeError", "'single' is None, wanted a number of 32 bits"),
        ({"wide": 1j}, "ArgumentTypeError", "'wide' is 1j, wanted a number of 64 bits"),
        ({"wide": -1.75}, "ArgumentValueError", "'wide' is -1.75, wanted -1.5 or more"),
        ({"wide": float("nan")}, "ArgumentValueError", "'wide' is nan, wanted -1.5 or more"),
        ({"large": -LARGE - 2**40}, "ArgumentValueError", "'large' is -.*, wanted -.* or more"),
        ({"single": 1e-46}, "OverflowError", "'single' is 1e-46, which is 0 as a number of 32 bits"),
        ({"single": np.float64(-1e39)}, "OverflowError", r"'single' is -1e\+39, which is infinite as a number of"),
    ],
)
def test_what_is_no_such_number(odd_ops: ModuleType, given: dict[str, object], kind: str, message: str) -> None:
    with pytest.raises(getattr(odd_ops, kind, OverflowError), match=message):
        odd_ops.tell(np.zeros(6), out=np.zeros(6), **{"needed": 1, **given})


def _told(module: ModuleType, **given: object) -> list[int]:
    found: list[int] = module.all_of_them(np.zeros(8), out=np.zeros(8, np.int64), **given).tolist()
    found[7] %= 2**64
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_each_width_takes_its_range_and_no_more(odd_ops: ModuleType, name: str) -> None:
    module, place = odd_ops, 1 + WHOLE.index(name)
    low, high = DTYPES[name].limits
    for value in (low, high, np.array(high, DTYPES[name].numpy)[()]):
        assert _told(module, **{f"of_{name}": value})[place] == value
    for value in (low - 1, high + 1):
        wanted = f"'of_{name}' is {value}, wanted a whole number of {name[1:]} bits, from {low} to {high}"
        with pytest.raises(OverflowError, match=wanted):
            _told(module, **{f"of_{name}": value})
    with pytest.raises(module.ArgumentTypeError, match=rf"'of_{name}' is 1\.0, wanted a whole number"):
        _told(module, **{f"of_{name}": 1.0})


def test_booleans(odd_ops: ModuleType) -> None:
    for value in (True, False, np.True_, np.False_, 0, 1, np.uint8(1)):
        assert _told(odd_ops, flag=value)[0] == bool(value)
    for bad in (2, -1, "yes", 1.0, None, [1], np.zeros(1, bool)):
        with pytest.raises((OverflowError, odd_ops.ArgumentTypeError), match=r"'flag' is .*, wanted True or False"):
            _told(odd_ops, flag=bad)


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
