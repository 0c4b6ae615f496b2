"""Calls that nobody measured get what the rule of their regime says: by expected times, or by the nearest problem.

It is the same in C++ and in Python.
"""

from __future__ import annotations

from types import ModuleType

import linked
import numpy as np
from odd_operators import FILLS, GENERIC, MEASURED, some_calls, some_problems

from aot_tune.link import OperatorTable
from aot_tune.select import Expectation, Nearest, Selection, form_of, picked
from aot_tune.select.nearest import without_equals
from aot_tune.spec import Problem, all_of
from aot_tune.spec.regimes import regime_of, regimes_of

REGIMES = {
    "near": {"M": 1000, "N": 8, "K": 8},
    "few": {"M": 2, "N": 8, "K": 8},
    "short": {"M": 300, "N": 8, "K": 8},
    "other": {"M": 300, "N": 4000, "K": 4000},
}


def table_of(odd: linked.Built, name: str) -> OperatorTable:
    return next(t for t in odd.spec.operators if t.operator.name == name)


def as_selected(table: OperatorTable) -> Selection:
    """The selection that the table of an operator's only target is made of. Candidates are the variants' numbers."""
    op, (target,) = table.operator, table.tables
    rows = [*zip(target.tuned, target.exact, strict=True), *target.surveyed]
    facts = {p.id: op.facts(p) for p, _ in rows}
    named = {p.id: tuple(map(str, variants)) for p, variants in rows}
    names = without_equals(facts, facts)
    return Selection(
        kept=tuple(map(str, range(len(table.variants)))),
        regret={},
        held_out={},
        rest=tuple(map(str, target.rest)),
        exact={p.id: named[p.id] for p in target.tuned},
        expected=tuple(
            Expectation(str(e.variant), e.facts, e.terms, e.model, e.regimes, e.vendor) for e in target.expected
        ),
        rules={(calls.facts, calls.regime): calls.rule for calls in target.regimes},
        regimes=regimes_of(op),
        nearest=Nearest(
            names,
            tuple(form_of(facts[n]) for n in names),
            tuple(named[n] for n in names),
            frozenset({str(GENERIC)}),
        ),
    )


def test_the_choice_of_every_regime_is_the_same_on_many_calls(odd: linked.Built, odd_ops: ModuleType) -> None:
    table = table_of(odd, "likely")
    selection = as_selected(table)
    picks: dict[str, set[str]] = {}
    for p in some_problems(2000, 2):
        facts = table.operator.facts(p)
        wanted = picked(selection, p.id, facts, lambda c: table.variants[int(c)].requires) or str(GENERIC)
        assert odd_ops.explain("likely", **p.dims)["variant"] == table.variants[int(wanted)].name, p.id
        picks.setdefault(regime_of(table.operator, facts), set()).add(wanted)
    small, packed = str(FILLS), str(MEASURED)
    assert picks["few"] == {small, packed}
    assert picks["short"] == picks["narrow"] == {small}
    assert picks["near"] >= {small, packed}
    assert len(picks) == 5


def test_explain_names_the_regime_the_rule_and_its_error(odd_ops: ModuleType) -> None:
    told = {n: odd_ops.explain("likely", **d)["regime"] for n, d in REGIMES.items()}
    unknown = "; no shapes were kept aside to judge it"
    assert told == {
        "near": "near, decided by the nearest problem" + unknown,
        "few": "few, decided by expected times, which loses 25.6 % in the mean of 2 shapes that were kept aside, and "
        "50 % at p95",
        "short": "short, decided by the vendor's choice" + unknown,
        "other": "other, decided by the nearest problem" + unknown,
    }


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
