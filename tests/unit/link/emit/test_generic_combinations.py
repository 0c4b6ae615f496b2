"""Generic variants for combinations of optional tensors and attributes: a call gets the one that is for it."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import linked
import numpy as np
import pytest

from aot_tune.link import LibrarySpec, LinkedVariant, OperatorTable
from aot_tune.link.check.check_tables import check_library
from aot_tune.spec import Attribute, Expr, Kernel, Operator, Tensor, attribute, dim, dims, present, problem
from aot_tune.support.errors import ManifestError

M, N = dims("M N")
SOURCE = (
    linked.PRELUDE
    + """
#define ARGS const DLTensor *x, const DLTensor *bias, const DLTensor *out, int32_t mode
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  for (int64_t i = 0; i < out->shape[0]; ++i) static_cast<float*>(out->data)[i * out->strides[0]] = MARK;
  return 0;
}
"""
)


def _reference(_xp: object, _call: object) -> dict[str, object]:
    raise AssertionError("link computes nothing")


def operator(legal: tuple[Expr, ...] = ()) -> Operator:
    return Operator(
        name="apply",
        dims=("N",),
        tensors=(Tensor("x", (N,)), Tensor("bias", (N,), optional=True), Tensor("out", (N,), output=True)),
        attributes=(Attribute("mode", ("a", "b", "c")),),
        legal=legal,
        reference=_reference,
        flops=N,
        workload=(problem(N=4),),
        kernels=(Kernel("plain", "apply/plain.cpp.j2", generic=True),),
    )


def generic(folder: Path, name: str, mark: int, *requires: Expr) -> LinkedVariant:
    return linked.variant(folder, SOURCE, name, generic=True, requires=requires, mark=str(mark))


def variants(folder: Path) -> tuple[LinkedVariant, ...]:
    """Marks 1, 2 without a bias in mode a or in others, and 11, 12 with one."""
    folder.mkdir(exist_ok=True)
    made = []
    for bias, first in itertools.product((0, 1), (True, False)):
        mode = attribute("mode") == 0 if first else attribute("mode") != 0
        made.append(generic(folder, f"plain_{bias}{int(first)}", 10 * bias + 2 - first, present("bias") == bias, mode))
    return tuple(made)


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("combinations")
    fast = linked.variant(folder, SOURCE, "fast_1", requires=(dim("N") % 8 == 0,), mark="50")
    table = OperatorTable(operator=operator(), variants=(*variants(folder / "objects"), fast))
    return linked.load_module(linked.link_library(LibrarySpec(output="combined", operators=(table,)), folder).module)


@pytest.mark.parametrize(
    ("bias", "mode", "mark"), [(False, "a", 1), (False, "b", 2), (False, "c", 2), (True, "a", 11), (True, "c", 12)]
)
def test_a_call_gets_the_code_of_its_combination(ops: ModuleType, bias: bool, mode: str, mark: int) -> None:
    x = np.zeros(5, np.float32)
    given = x if bias else None
    for _ in range(3):  # the second is remembered
        assert ops.apply(x, given, mode=mode).tolist() == [mark] * 5
    told = ops.explain("apply", x, given, mode=mode)
    assert told["variant"] == f"plain_{int(bias)}{int(mode == 'a')}"
    assert told["why"].startswith("generic")
    assert ops.explain("apply", N=5, bias=bias, mode=mode)["variant"] == told["variant"]


def test_empty_inputs_are_answered_too(ops: ModuleType) -> None:
    assert ops.apply(np.zeros(0, np.float32), mode="b").shape == (0,)


def check(folder: Path, op: Operator, chosen: tuple[LinkedVariant, ...]) -> None:
    check_library(LibrarySpec(output="checked", operators=(OperatorTable(operator=op, variants=chosen),)))


def test_each_combination_needs_one_answer(tmp_path: Path) -> None:
    every = variants(tmp_path / "objects")
    check(tmp_path, operator(), every)
    with pytest.raises(ManifestError, match=r"of calls with attribute.mode=0, present.bias=1, 0 of them answer: \[\]"):
        check(tmp_path, operator(), every[:2] + every[3:])
    twice = generic(tmp_path, "plain_twice", 3, present("bias") == 0)
    with pytest.raises(ManifestError, match=r"present.bias=0, 2 of them answer: \['plain_01', 'plain_twice'\]"):
        check(tmp_path, operator(), (*every, twice))
    with pytest.raises(ManifestError, match="of calls, 2 of them answer"):
        check(tmp_path, operator(), (generic(tmp_path, "plain_a", 1), generic(tmp_path, "plain_b", 2)))


def test_what_is_not_legal_needs_none(tmp_path: Path) -> None:
    every = variants(tmp_path / "objects")
    check(tmp_path, operator((present("bias") == 0,)), every[:2])
    check(tmp_path, operator(((present("bias") == 0) | (attribute("mode") == 0),)), every[:3])


def test_other_guards_are_none_of_a_generic_variant(tmp_path: Path) -> None:
    with pytest.raises(
        ManifestError, match="generic variant 'plain_m' has guards on other facts than optional tensors"
    ):
        check(tmp_path, operator(), (generic(tmp_path, "plain_m", 1, dim("N") % 2 == 0),))
