"""Calls that nobody measured get the variant that is expected to be fastest, the same in C++ and in Python."""

from __future__ import annotations

from types import ModuleType

import linked
import pytest
from odd_operators import LIKELY, some_problems

from aot_tune.link import OperatorTable
from aot_tune.select.terms import columns_of
from aot_tune.spec import problem


@pytest.fixture
def gemm(odd: linked.Built) -> OperatorTable:
    (found,) = (t for t in odd.spec.operators if t.operator.name == "likely")
    return found


def test_the_choice_is_the_same_as_the_models_on_many_calls(odd_ops: ModuleType, gemm: OperatorTable) -> None:
    problems = some_problems(2000, 2)
    facts = [gemm.operator.facts(p) for p in problems]
    times = {  # with its caution
        one.variant: (one.model.expected(columns_of(one.terms, facts)) + one.caution).tolist()
        for one in gemm.tables[0].expected
    }
    picked = set()
    for number, p in enumerate(problems):
        served = [v for v in times if all(g.evaluate(facts[number]) for g in gemm.variants[v].requires)]
        wanted = min(served, key=lambda v: times[v][number])
        assert odd_ops.explain("likely", **p.dims)["variant"] == gemm.variants[wanted].name, p.id
        picked.add(wanted)
    assert picked == set(times)


def test_what_is_told(odd_ops: ModuleType, gemm: OperatorTable) -> None:
    """What was measured is not left to the models; of other calls the times, and the nearest that was measured."""

    def told(**dims: object) -> dict[str, object]:
        found: dict[str, object] = odd_ops.explain("likely", **dims)
        return found

    measured = told(**LIKELY.dims)
    assert (measured["variant"], measured["tuned"], "nearest" in measured) == ("packed", True, False)
    assert measured["why"] == "first of the variants ranked for such calls whose guards hold"
    other = told(M=60, N=24, K=12)
    assert (other["tuned"], other["nearest"]) == (False, "M=24 N=24 K=24, dims differ by up to 2.5 times")
    assert "nearest" not in told(M=60, N=24, K=12, activation="relu")  # nothing of it was measured
    large = told(M=4096, N=4096, K=4096)
    assert large["why"] == "expected to be the fastest of those whose guards hold"
    facts, wanted = [gemm.operator.facts(problem(M=4096, N=4096, K=4096))], []
    for one in gemm.tables[0].expected:
        us = 2 ** (int(one.model.expected(columns_of(one.terms, facts))[0]) / 4096) / 1000
        wanted.append(f"{gemm.variants[one.variant].name} takes about {us:.3g} us, give or take 0 %")
    assert large["expected"] == wanted
