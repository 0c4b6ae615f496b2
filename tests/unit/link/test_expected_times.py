"""Calls that nobody measured get the variant that is expected to be fastest, or that was on the nearest problem.

It is the same in C++ and in Python.
"""

from __future__ import annotations

from types import ModuleType

import linked
import numpy as np
from odd_operators import GENERIC, some_calls, some_problems

from aot_tune.expr.columns import Calls
from aot_tune.link import OperatorTable
from aot_tune.select import Nearest, form_of
from aot_tune.select.nearest import without_equals
from aot_tune.select.terms import columns_of
from aot_tune.spec import Problem, all_of


def table_of(odd: linked.Built, name: str) -> OperatorTable:
    return next(t for t in odd.spec.operators if t.operator.name == name)


def test_the_choice_is_the_same_as_the_models_on_many_calls(odd: linked.Built, odd_ops: ModuleType) -> None:
    gemm = table_of(odd, "likely")
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


def arrays(p: Problem) -> list[np.ndarray]:
    m, n, k = p.dims.values()
    b = np.zeros((n, k), np.float32).T if p.order else np.zeros((k, n), np.float32)
    return [np.zeros((m, k), np.float32), b, *([np.zeros(n, np.float32)] if p.present else [])]


def test_the_nearest_problem_is_the_same_on_many_calls(odd: linked.Built, odd_ops: ModuleType) -> None:
    gemm = table_of(odd, "near")
    op, (table,) = gemm.operator, gemm.tables
    rows = [*zip(table.tuned, table.exact, strict=True), *table.surveyed]
    facts = {p.id: op.facts(p) for p, _ in rows}
    named = {p.id: tuple(str(v) for v in variants) for p, variants in rows}
    names = without_equals(facts, facts)
    known = Nearest(
        names, tuple(form_of(facts[n]) for n in names), tuple(named[n] for n in names), frozenset({str(GENERIC)})
    )
    exact = {form_of(facts[p.id]): named[p.id] for p in reversed(table.tuned)}
    picked = set()
    for p in some_calls(2000, 5):
        call = op.facts(p)

        def serves(variant: str, call: dict[str, int] = call) -> bool:
            return all_of(gemm.variants[int(variant)].requires, call)

        tried = [*exact.get(form_of(call), ()), *known.ranked(call, serves), *map(str, table.rest)]
        wanted = next(v for v in tried if serves(v))
        attributes = {a: str(v) for a, v in p.attributes.items()}
        told = odd_ops.explain("near", *arrays(p), **attributes)
        assert told["variant"] == gemm.variants[int(wanted)].name, p.id
        picked.add(wanted)
    assert len(picked) == 3
