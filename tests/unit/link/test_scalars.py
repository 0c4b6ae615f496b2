"""Scalars of each kind in calls from Python: their defaults, what is passed, and those that must be."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from odd_operators import LARGE, WHOLE

from aot_tune.spec import dtype


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
    low, high = dtype(name).limits
    for value in (low, high, np.array(high, dtype(name).numpy)[()]):
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
