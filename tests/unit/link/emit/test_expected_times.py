"""Calls that nobody measured get the variant that is expected to be fastest, the same in C++ and in Python."""

from __future__ import annotations

import dataclasses
import random
from types import ModuleType

import linked
import numpy as np
import pytest

from aot_tune.link import ExpectedTime, LibrarySpec, TargetTable
from aot_tune.select.learn_times import Times, learn_times
from aot_tune.select.terms import columns_of, terms_of
from aot_tune.spec import Operator, Problem, Tiling, problem

SMALL, PACKED = 1, 2
TILES = {SMALL: Tiling({"M": 8, "N": 8}), PACKED: Tiling({"M": 64, "N": 32, "K": 16}, 2)}
MEASURED = problem(M=24, N=24, K=24)
LEVEL = "cpu-x86-64-v2"


def some_problems(count: int, seed: int) -> list[Problem]:
    draw = random.Random(seed)

    def extent() -> int:
        return max(1, round(2 ** draw.uniform(0, 14))) if draw.random() < 0.5 else 16 * draw.randint(1, 200)

    return [problem(M=extent(), N=extent(), K=extent()) for _ in range(count)]


def learned(op: Operator, variant: int, caution: int = 0) -> ExpectedTime:
    """From times that have something of blocks and something of chance."""
    problems = some_problems(200, 1)
    facts = [op.facts(p) for p in problems]
    terms = terms_of(op, TILES[variant], 4)
    draw = random.Random(variant)
    logs = []
    for p in problems:
        m, n, k = (p.dims[d] for d in "MNK")
        work = -(-m // 64) * -(-n // 32) * k * 2048 if variant == PACKED else 1.3 * m * n * k
        logs.append(round(4096 * np.log2(100 + work / 50 * draw.uniform(0.9, 1.1))))
    weights = np.full(len(logs), 32)
    times = Times([p.id for p in problems], columns_of(terms, facts), np.array(logs), weights, terms.form)
    return ExpectedTime(variant=variant, terms=terms, model=learn_times({"it": times})["it"], caution=caution)


def with_models(spec: LibrarySpec, caution: int) -> LibrarySpec:
    gemm, *others = spec.operators
    expected = tuple(learned(gemm.operator, v, caution if v == PACKED else 0) for v in (SMALL, PACKED))
    table = dataclasses.replace(gemm.tables[0], tuned=(MEASURED,), exact=((4, SMALL),), expected=expected)
    assert table.target == LEVEL
    return dataclasses.replace(
        spec, operators=(dataclasses.replace(gemm, tables=(table, *gemm.tables[1:])), *others), output="likely_ops"
    )


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> LibrarySpec:
    return with_models(linked.library_spec(tmp_path_factory.mktemp("objects")), caution=300)


@pytest.fixture(scope="module")
def ops(spec: LibrarySpec, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("likely") / "out"
    patch = pytest.MonkeyPatch()
    patch.setenv("AOT_TUNE_CPU_LEVEL", "2")
    module = linked.load_module(linked.link_library(spec, folder).module)
    module.explain("gemm", M=1, N=1, K=1)  # the level is read once
    patch.undo()
    return module


def expected_times(spec: LibrarySpec, table: TargetTable, problems: list[Problem]) -> dict[int, list[int]]:
    """By variant, as the choice has them: with its caution."""
    op = spec.operators[0].operator
    facts = [op.facts(p) for p in problems]
    return {
        one.variant: (one.model.expected(columns_of(one.terms, facts)) + one.caution).tolist() for one in table.expected
    }


def test_the_choice_is_the_same_as_the_models_on_many_calls(ops: ModuleType, spec: LibrarySpec) -> None:
    table, gemm = spec.operators[0].tables[0], spec.operators[0]
    problems = some_problems(10_000, 2)
    times = expected_times(spec, table, problems)
    picked = set()
    for number, p in enumerate(problems):
        facts = gemm.operator.facts(p)
        served = [v for v in times if all(g.evaluate(facts) for g in gemm.variants[v].requires)]
        wanted = min(served, key=lambda v: times[v][number])
        told = ops.explain("gemm", **p.dims)["variant"]
        assert told == gemm.variants[wanted].name, p.id
        picked.add(wanted)
    assert picked == {SMALL, PACKED}


def test_what_was_measured_is_not_left_to_the_models(ops: ModuleType, spec: LibrarySpec) -> None:
    told = ops.explain("gemm", **MEASURED.dims)
    assert (told["variant"], told["tuned"]) == (spec.operators[0].variants[4].name, True)
    assert told["why"] == "first of the variants ranked for such calls whose guards hold"
    assert ops.explain("gemm", M=25, N=24, K=24)["tuned"] is False


def test_it_is_told_what_is_expected(ops: ModuleType, spec: LibrarySpec) -> None:
    gemm = spec.operators[0]
    facts = [gemm.operator.facts(problem(M=4096, N=4096, K=4096))]
    said = ops.explain("gemm", M=4096, N=4096, K=4096)
    assert said["why"] == "expected to be the fastest of those whose guards hold"
    told, wanted = said["expected"], []
    for one in gemm.tables[0].expected:
        us = 2 ** (int(one.model.expected(columns_of(one.terms, facts))[0]) / 4096) / 1000
        wanted.append(f"{gemm.variants[one.variant].name} takes about {us:.3g} us, give or take 0 %")
    assert told == wanted


def test_the_nearest_measured_problem_is_told_where_the_call_was_not_measured(ops: ModuleType) -> None:
    assert ops.explain("gemm", M=60, N=24, K=12)["nearest"] == "M=24 N=24 K=24, dims differ by up to 2.5 times"
    assert "nearest" not in ops.explain("gemm", **MEASURED.dims)
    assert "nearest" not in ops.explain("gemm", M=60, N=24, K=12, activation="relu")  # nothing of it was measured
