"""Calls that nobody measured get the variant that is expected to be fastest, the same in C++ and in Python."""

from __future__ import annotations

from types import ModuleType

import linked
import pytest
from odd_operators import some_problems

from aot_tune.expr.columns import Calls
from aot_tune.link import OperatorTable
from aot_tune.select.terms import columns_of


@pytest.fixture
def gemm(odd: linked.Built) -> OperatorTable:
    (found,) = (t for t in odd.spec.operators if t.operator.name == "likely")
    return found


def test_the_choice_is_the_same_as_the_models_on_many_calls(odd_ops: ModuleType, gemm: OperatorTable) -> None:
    problems = some_problems(2000, 2)
    facts = [gemm.operator.facts(p) for p in problems]
    times = {  # with its caution
        one.variant: (one.model.expected(columns_of(one.terms, Calls(facts))) + one.caution).tolist()
        for one in gemm.tables[0].expected
    }
    picked = set()
    for number, p in enumerate(problems):
        served = [v for v in times if all(g.evaluate(facts[number]) for g in gemm.variants[v].requires)]
        wanted = min(served, key=lambda v: times[v][number])
        assert odd_ops.explain("likely", **p.dims)["variant"] == gemm.variants[wanted].name, p.id
        picked.add(wanted)
    assert picked == set(times)
