"""Conditions of every kind in `legal`: other calls are typed errors from C and Python, and no kernel is asked."""

from __future__ import annotations

import ctypes
from typing import Any

import dltensors
import linked
import numpy as np
import pytest
from odd_operators import LEGAL, kinds

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.database import operator_digest
from aot_tune.spec import Kernel, all_of, problem, stride
from aot_tune.support.errors import SpecError


def aligned(rows: int, columns: int, dtype: str = "f4", offset: int = 0) -> np.ndarray:
    """An array whose address is `offset` beyond a multiple of 64."""
    whole = np.zeros(rows * columns * 8 + 128, np.uint8)
    start = -whole.ctypes.data % 64 + offset
    size = rows * columns * np.dtype(dtype).itemsize
    return whole[start : start + size].view(dtype).reshape(rows, columns)


def out(rows: int, dtype: str = "f4") -> np.ndarray:
    return np.zeros(rows, dtype)


def test_dtypes_that_are_not_legal_have_no_kernels() -> None:
    op = kinds()
    assert [tuple(d.values()) for d in op.dtype_choices(op.kernels[0])] == [
        ("f32", "f32"),
        ("f32", "f64"),
        ("f64", "f64"),
    ]


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


def test_stated_problems_are_checked_too(odd_ops: Any) -> None:
    assert odd_ops.explain("kinds", M=4, N=4, causal="yes")["variant"].startswith("plain")
    with pytest.raises(odd_ops.ArgumentValueError, match=r"\(\(N % 4\) == 0\) must hold, and N is 5"):
        odd_ops.is_tuned("kinds", M=4, N=5)


def test_derived_checks_are_legal() -> None:
    op = kinds(legal=LEGAL[2:])
    checks = derived_checks(op)
    assert len(checks) > 5
    assert all(all_of(LEGAL[2:], op.facts(c.problem)) for c in checks)
    assert {c.problem.attributes.get("mode") for c in checks} >= {None, "b"}


def test_what_is_no_condition_or_not_met_is_told() -> None:
    for what in ("legal", "expected"):
        with pytest.raises(SpecError, match=f"{what} holds 'True', which is not a condition\n  why: it has one value"):
            kinds(**{what: (True,)})
        with pytest.raises(SpecError, match=f"{what} holds 'N % 4', which is not a condition"):
            kinds(**{what: ("N % 4",)})
    other = Kernel("other", "kinds/other.cpp.j2", dtypes={"T": ("f64",), "S": ("f32",)})
    with pytest.raises(SpecError, match=r"kernel 'other' serves no legal dtypes: .*dtype.T <= dtype.S"):
        kinds(kernels=(Kernel("plain", "kinds/plain.cpp.j2", generic=True), other))
    with pytest.raises(SpecError, match=r"\(\(N % 4\) == 0\) does not hold on problem"):
        kinds(workload=(problem(M=2, N=6),))
    with pytest.raises(SpecError, match=r"legal uses 'stride.z.1', which is not bound"):
        kinds(legal=(stride("z", 1) == 1,))
    assert operator_digest(kinds()) != operator_digest(kinds(legal=LEGAL[1:]))
