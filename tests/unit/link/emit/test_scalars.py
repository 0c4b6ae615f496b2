"""Scalars of each kind in calls from Python: their defaults, what is passed, and those that must be."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import linked
import numpy as np
import pytest

from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.link.emit.header import render_header
from aot_tune.link.emit.python_stub import render_stub
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, dim, dtype, problem
from aot_tune.support.installed_paths import RUNTIME

LARGE = 2**53 + 1  # no double

SOURCE = (
    linked.PRELUDE
    + """
#define ARGS const DLTensor *x, const DLTensor *out, float single, double wide, int32_t small, int64_t large, \\
             double needed
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  auto* values = static_cast<double*>(out->data);
  const double found[] = {single, wide, double(small), double(large >> 32), double(large & 0xffffffff), needed};
  for (int64_t i = 0; i < 6; ++i) values[i * out->strides[0]] = found[i];
  return 0;
}
"""
)


def _reference(_xp: object, _call: object) -> dict[str, object]:
    raise AssertionError("link computes nothing")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A library whose operator `tell` writes its scalars, and the halves of its `large`, to `out`."""
    folder = tmp_path_factory.mktemp("scalars")
    operator = Operator(
        name="tell",
        dims=("N",),
        tensors=(Tensor("x", (dim("N"),), "f64"), Tensor("out", (dim("N"),), "f64", output=True)),
        scalars=(
            Scalar("single", "f32", 0.1),
            Scalar("wide", "f64", 0.1),
            Scalar("small", "i32", -3),
            Scalar("large", "i64", LARGE),
            Scalar("needed", "f64"),
        ),
        reference=_reference,
        flops=dim("N"),
        workload=(problem(N=6),),
        kernels=(Kernel("plain", "tell/plain.cpp.j2", generic=True),),
    )
    table = OperatorTable(operator=operator, variants=(linked.variant(folder, SOURCE, "plain_tell", generic=True),))
    return linked.load_module(linked.link_library(LibrarySpec(output="scalars", operators=(table,)), folder).module)


def test_each_kind_has_its_default(told: ModuleType) -> None:
    out = np.zeros(6)
    assert told.tell(np.zeros(6), needed=0.25, out=out) is out
    assert out.tolist() == [np.float32(0.1), 0.1, -3, 2**21, 1, 0.25]


def test_each_kind_is_passed(told: ModuleType) -> None:
    out = np.zeros(6)
    told.tell(np.zeros(6), out=out, single=0.3, wide=0.3, small=-(2**31), large=-LARGE, needed=2)
    assert out.tolist() == [np.float32(0.3), 0.3, -(2**31), -(2**21) - 1, 2**32 - 1, 2]


def test_one_without_a_default_is_needed(told: ModuleType) -> None:
    with pytest.raises(TypeError, match=r"tell\(\) needs 'needed'; it is called as tell\("):
        told.tell(np.zeros(6), out=np.zeros(6))


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
def test_what_is_no_such_number(told: ModuleType, given: dict[str, object], kind: str, message: str) -> None:
    with pytest.raises(getattr(told, kind, OverflowError), match=message):
        told.tell(np.zeros(6), out=np.zeros(6), **{"needed": 1, **given})


def test_numbers_of_other_kinds(told: ModuleType) -> None:
    out = np.zeros(6)
    given = {"single": np.float32(0.5), "wide": np.int64(3), "small": np.int8(-1), "large": True}
    told.tell(np.zeros(6), out=out, needed=np.float64("nan"), **given)
    assert out.tolist()[:5] == [0.5, 3, -1, 0, 1]
    assert np.isnan(out[5])


WHOLE = ("i8", "i16", "i32", "u8", "u16", "u32", "u64")
"""Integers in the order of the operator `all_of_them`, behind a boolean."""

BITS = (
    linked.PRELUDE
    + """
#include <cstring>
#define ARGS const DLTensor *x, const DLTensor *out, bool flag, int8_t a, int16_t b, int32_t c, \\
             uint8_t e, uint16_t f, uint32_t g, uint64_t h
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
template <typename T>
void put(const DLTensor* out, int64_t at, T value) {
  int64_t wide = static_cast<int64_t>(value);
  static_cast<int64_t*>(out->data)[at * out->strides[0]] = wide;
}
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  put(out, 0, flag), put(out, 1, a), put(out, 2, b), put(out, 3, c);
  put(out, 4, e), put(out, 5, f), put(out, 6, g), put(out, 7, h);
  return 0;
}
"""
)


@pytest.fixture(scope="module")
def spec_and_module(tmp_path_factory: pytest.TempPathFactory) -> tuple[LibrarySpec, ModuleType]:
    """A library whose operator `all_of_them` writes its scalars to `out`, u64 as its bits."""
    folder = tmp_path_factory.mktemp("whole")
    operator = Operator(
        name="all_of_them",
        dims=("N",),
        tensors=(Tensor("x", (dim("N"),), "f64"), Tensor("out", (dim("N"),), "i64", output=True)),
        scalars=(
            Scalar("flag", "bool", True),
            *(Scalar(f"of_{d}", d, dtype(d).limits[0] if d != "u64" else 2**64 - 1) for d in WHOLE),
        ),
        reference=_reference,
        flops=dim("N"),
        workload=(problem(N=8),),
        kernels=(Kernel("plain", "all_of_them/plain.cpp.j2", generic=True),),
    )
    table = OperatorTable(operator=operator, variants=(linked.variant(folder, BITS, "plain_all", generic=True),))
    spec = LibrarySpec(output="whole", operators=(table,))
    return spec, linked.load_module(linked.link_library(spec, folder).module)


def _told(module: ModuleType, **given: object) -> list[int]:
    found: list[int] = module.all_of_them(np.zeros(8), out=np.zeros(8, np.int64), **given).tolist()
    found[7] %= 2**64
    return found


def test_defaults_of_all_widths(spec_and_module: tuple[LibrarySpec, ModuleType]) -> None:
    assert _told(spec_and_module[1]) == [1, -128, -(2**15), -(2**31), 0, 0, 0, 2**64 - 1]


@pytest.mark.parametrize("name", WHOLE)
def test_each_width_takes_its_range_and_no_more(spec_and_module: tuple[LibrarySpec, ModuleType], name: str) -> None:
    module, place = spec_and_module[1], 1 + WHOLE.index(name)
    low, high = dtype(name).limits
    for value in (low, high, np.array(high, dtype(name).numpy)[()]):
        assert _told(module, **{f"of_{name}": value})[place] == value
    for value in (low - 1, high + 1):
        wanted = f"'of_{name}' is {value}, wanted a whole number of {name[1:]} bits, from {low} to {high}"
        with pytest.raises(OverflowError, match=wanted):
            _told(module, **{f"of_{name}": value})
    with pytest.raises(module.ArgumentTypeError, match=rf"'of_{name}' is 1\.0, wanted a whole number"):
        _told(module, **{f"of_{name}": 1.0})


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_, 0, 1, np.uint8(1)])
def test_booleans(spec_and_module: tuple[LibrarySpec, ModuleType], value: object) -> None:
    assert _told(spec_and_module[1], flag=value)[0] == bool(value)


@pytest.mark.parametrize("value", [2, -1, "yes", 1.0, None, [1], np.zeros(1, bool)])
def test_what_is_no_boolean(spec_and_module: tuple[LibrarySpec, ModuleType], value: object) -> None:
    module = spec_and_module[1]
    with pytest.raises((OverflowError, module.ArgumentTypeError), match=r"'flag' is .*, wanted True or False"):
        _told(module, flag=value)


def test_the_stub_and_the_c_header_have_their_types(
    spec_and_module: tuple[LibrarySpec, ModuleType], tmp_path: Path
) -> None:
    spec, module = spec_and_module
    stub = render_stub(spec)
    assert "flag: bool = True,\n    of_i8: int = -128" in stub
    assert "of_u16: a whole number from 0 to 65535." in str(module.all_of_them.__doc__)
    header = render_header(spec)
    assert "bool flag, int8_t of_i8, int16_t of_i16" in header
    (tmp_path / "whole.h").write_text(header)
    (tmp_path / "use.c").write_text('#include "whole.h"\nbool flag;\n')
    command = ["gcc", "-std=c99", "-Wall", "-Werror", f"-I{RUNTIME / 'include'}", "-fsyntax-only", "use.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
