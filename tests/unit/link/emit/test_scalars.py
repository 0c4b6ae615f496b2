"""Scalars of each kind in calls from Python: their defaults, what is passed, and those that must be."""

from __future__ import annotations

from types import ModuleType

import linked
import numpy as np
import pytest

from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, dim, problem

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
