"""Variants that fill in: they get the calls that nothing that was measured takes, in front of the generic one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import linked
import numpy as np
import pytest

from aot_tune.link import DecisionNode, ExpectedTime, LibrarySpec, TargetTable
from aot_tune.select.terms import terms_of
from aot_tune.select.time_model import TimeModel
from aot_tune.spec import alignment, dim, problem

GENERIC, FILLS, MEASURED = 0, 1, 2  # of linked.library_spec
TUNED, SLOWER = problem(M=8, N=8, K=6), problem(M=32, N=8, K=8)
"""The generic variant was the fastest, and the slowest."""


def library(folder: Path, table: TargetTable, name: str) -> LibrarySpec:
    """With one table; `FILLS` takes up to 100 columns, `MEASURED` a K of whole fours and a b at whole 16 bytes."""
    spec = linked.library_spec(folder)
    gemm, *others = spec.operators
    variants = list(gemm.variants)
    variants[FILLS] = dataclasses.replace(variants[FILLS], requires=(dim("N") <= 100,))
    guards = (dim("K") % 4 == 0, alignment("b") >= 16)
    variants[MEASURED] = dataclasses.replace(variants[MEASURED], requires=guards)
    table = dataclasses.replace(
        table, filling_in=(FILLS,), tuned=(TUNED, SLOWER), exact=((GENERIC,), (MEASURED, GENERIC))
    )
    made = dataclasses.replace(gemm, variants=tuple(variants), tables=(table,))
    return dataclasses.replace(spec, operators=(made, *others), output=name)  # a process has one library of a name


def by_tree() -> TargetTable:
    """Up to 16 rows the generic variant comes first."""
    nodes = (
        DecisionNode(fact="M", threshold=16, below=1, above=2),
        DecisionNode(leaf=(GENERIC, MEASURED)),
        DecisionNode(leaf=(MEASURED,)),
    )
    return TargetTable(target="cpu-x86-64-v2", level=2, nodes=nodes)


def by_expected_times(generic: int) -> TargetTable:
    """`MEASURED` is expected to take 2^10 ns; the generic variant 2^generic ns, where it is meant for a call at all."""
    terms = terms_of(linked.gemm_operator(), None, 4)

    def constant(variant: int, log2: int) -> ExpectedTime:
        model = TimeModel(terms=(0,), weights=(0,), base=4096 * log2 << 16, trees=())
        within = (dim("M") > 16,) if variant == MEASURED else ()
        return ExpectedTime(variant=variant, terms=terms, model=model, within=within)

    expected = (constant(GENERIC, generic), constant(MEASURED, 10))
    return TargetTable(target="cpu-x86-64-v2", level=2, nodes=(DecisionNode(),), expected=expected)


def load(spec: LibrarySpec, folder: Path) -> ModuleType:
    patch = pytest.MonkeyPatch()
    patch.setenv("AOT_TUNE_CPU_LEVEL", "2")
    module = linked.load_module(linked.link_library(spec, folder).module)
    module.explain("gemm", M=1, N=1, K=1)  # the level is read once
    patch.undo()
    return module


def picked(ops: ModuleType, m: int, n: int, k: int) -> str:
    return str(ops.explain("gemm", M=m, N=n, K=k)["variant"])


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The library that decides by a tree."""
    folder = tmp_path_factory.mktemp("ranked")
    return load(library(folder / "objects", by_tree(), "by_tree"), folder / "out")


def test_what_only_the_generic_variant_would_take_gets_it(ranked: ModuleType) -> None:
    ops = ranked
    assert picked(ops, 64, 8, 8) == "packed_2"
    assert picked(ops, 64, 8, 6) == "small_2"
    assert picked(ops, 64, 101, 6) == "plain"  # it does not take this one
    assert picked(ops, 8, 8, 8) == "plain"  # preferred to another
    assert picked(ops, 8, 9, 6) == "small_2"
    assert picked(ops, **{d.lower(): e for d, e in TUNED.dims.items()}) == "plain"  # was measured
    told = ops.explain("gemm", M=64, N=8, K=6)
    assert told["why"] == "first of the variants ranked for such calls whose guards hold"


def unaligned(rows: int, columns: int) -> Any:
    """A matrix of which the first element lies behind 16 bytes that are whole."""
    memory = np.zeros(rows * columns + 16, np.float32)
    begin = -memory.ctypes.data % 16 // 4 + 1
    return memory[begin : begin + rows * columns].reshape(rows, columns)


def test_a_measured_problem_at_other_addresses_gets_it_too(ranked: ModuleType) -> None:
    """What was measured is known by dims and layouts."""
    ops = ranked
    told = ops.explain("gemm", np.zeros((32, 8), np.float32), np.zeros((8, 8), np.float32))
    assert (told["tuned"], told["variant"]) == (True, "packed_2")
    told = ops.explain("gemm", np.zeros((32, 8), np.float32), unaligned(8, 8))
    assert (told["tuned"], told["variant"]) == (True, "small_2")
    told = ops.explain("gemm", np.zeros((8, 6), np.float32), unaligned(6, 8))
    assert (told["tuned"], told["variant"]) == (True, "plain")  # was the fastest


@pytest.mark.parametrize(("generic", "preferred"), [(9, "plain"), (11, "packed_2")])
def test_a_generic_variant_that_is_expected_to_be_faster_than_others_stays(
    generic: int, preferred: str, tmp_path: Path
) -> None:
    ops = load(library(tmp_path / "objects", by_expected_times(generic), f"by_times_{generic}"), tmp_path / "out")
    assert picked(ops, 64, 8, 8) == preferred
    assert picked(ops, 64, 8, 6) == "small_2"
    assert picked(ops, 64, 101, 6) == "plain"
    assert picked(ops, 16, 8, 8) == "small_2"  # the other one takes it, and is not meant for it
    assert picked(ops, **{d.lower(): e for d, e in TUNED.dims.items()}) == "plain"
