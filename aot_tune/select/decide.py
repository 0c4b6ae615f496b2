"""The decision for every call: exact where it was measured, else by each variant's expected time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from aot_tune.expr.columns import Calls
from aot_tune.select.choose_variants import Costs
from aot_tune.select.terms import Terms, columns_of
from aot_tune.select.time_model import HEAVIEST, TimeModel, Times, learn_times, log_of
from aot_tune.spec import Expr, Facts
from aot_tune.spec.survey_shapes import Kind

__all__ = ["Expectation", "Guards", "Judged", "Survey", "expect", "is_held_out", "judge", "likeliest", "times_of"]

_HELD_OUT = 5
"""One of this many surveyed shapes is held out: nothing is learned from it."""
_HALVED = 1700
"""If a variant is slower than the best by this (log2 in 1/4096, 33 %), its time counts half as much."""
_CAUTION = 4
"""The caution before a vendor's variant is the expectations' error over this; see docs/dispatch.md."""


@dataclass(frozen=True)
class Survey:
    """Times on shapes that were drawn.

    Args:
        costs: ns by problem id and candidate id.
        facts: of each problem.
        terms: of each candidate whose time can be expected.
        worth: conditions that hold where a candidate's kernel is meant for a call. Elsewhere no time is expected of it.
        vendor: candidates that choose by a vendor's own heuristic. They are kept in any case.
    """

    costs: Costs
    facts: Mapping[str, Facts]
    terms: Mapping[str, Terms]
    worth: Guards
    vendor: frozenset[str] = frozenset()


Guards = Callable[[str], tuple[Expr, ...]]
"""By candidate id, conditions on a call that all hold where it serves."""


@dataclass(frozen=True)
class Expectation:
    """The expectation of a candidate's time on calls of a kind, which have these facts.

    For ranking, `caution` is added to the expected time, in 1/4096 of log2 ns.
    """

    candidate: str
    kind: tuple[tuple[str, int], ...]
    terms: Terms
    model: TimeModel
    caution: int = 0


@dataclass(frozen=True)
class Judged:
    """Regret on held-out surveyed shapes, against the best candidate that was surveyed there.

    `regret` is by problem id: the time of what dispatch picks over the best time, less 1.
    """

    regret: Mapping[str, float]
    learned_from: int

    @property
    def mean(self) -> float:
        """The mean over all shapes."""
        return sum(self.regret.values()) / len(self.regret)

    @property
    def worst(self) -> tuple[float, str]:
        """The largest regret, and its problem."""
        problem = max(self.regret, key=lambda p: (self.regret[p], p))
        return self.regret[problem], problem

    def percentile(self, share: float) -> float:
        """The regret that this share of the shapes does not exceed."""
        ordered = sorted(self.regret.values())
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def is_held_out(problem: str) -> bool:
    """Whether a surveyed problem is held out. About a fifth are, independent of the rest of the survey."""
    return hashlib.sha256(problem.encode()).digest()[0] % _HELD_OUT == 0


def expect(
    kind: Kind, rows: Costs, survey: Survey, facts: Mapping[str, Facts], kept: Iterable[str]
) -> list[Expectation]:
    """Expectations of the kept candidates for calls of a kind. Candidates with too few times have none.

    Args:
        kind: facts of the calls.
        rows: times on the workload's problems of that kind. They are learned from too.
        survey: times on drawn shapes, of all kinds.
        facts: of the workload's problems.
        kept: ids of the candidates that are kept for that kind.
    """
    all_facts = dict(facts) | dict(survey.facts)
    of_kind = {p: row for p, row in survey.costs.items() if all(survey.facts[p][f] == v for f, v in kind)}
    learned = rows | {p: row for p, row in of_kind.items() if not is_held_out(p)}
    aside = {p: row for p, row in of_kind.items() if is_held_out(p)}
    calls = Calls([all_facts[p] for p in sorted(learned)])
    times = {c: times_of(c, learned, calls, survey.terms[c]) for c in kept if c in survey.terms}
    models = learn_times(times)
    return _with_errors([Expectation(c, kind, survey.terms[c], models[c]) for c in times if c in models], aside, survey)


def times_of(candidate: str, rows: Costs, calls: Calls, terms: Terms) -> Times:
    """A candidate's measured times, of the calls that are the rows in the order of their names.

    Those near the best count most.
    """
    places = [i for i, p in enumerate(sorted(rows)) if candidate in rows[p]]
    timed = [p for p in sorted(rows) if candidate in rows[p]]
    logs = log_of([rows[p][candidate] for p in timed])
    behind = logs - log_of([min(rows[p].values()) for p in timed])
    share = HEAVIEST * (2 * _HALVED - behind % _HALVED) // (2 * _HALVED)
    weights = np.maximum(share >> np.minimum(behind // _HALVED, 32), 2)
    columns = columns_of(terms, calls)[places]
    columns[:, list(terms.needless)] = 0
    return Times(timed, columns, logs, weights, terms.form)


def likeliest(
    expected: Iterable[Expectation], facts: Mapping[str, Facts], guards: Guards
) -> dict[str, tuple[str, ...]]:
    """By call name, the candidates that serve the call, the one with the least expected time first."""
    by_call: dict[str, dict[str, int]] = {name: {} for name in facts}
    calls, names = Calls(list(facts.values())), np.array(list(facts), dtype=object)
    for expectation in expected:
        served = calls.hold(guards(expectation.candidate))
        for fact, value in expectation.kind:
            served = served & (calls[fact] == value)
        times = expectation.model.expected(columns_of(expectation.terms, calls)[served]).tolist()
        for name, time in zip(names[served].tolist(), times, strict=True):
            by_call[name][expectation.candidate] = time + expectation.caution
    return {name: tuple(sorted(times, key=lambda c: times[c])) for name, times in by_call.items()}


def judge(expected: Sequence[Expectation], survey: Survey, guards: Guards) -> Judged | None:
    """The regret on the surveyed shapes that were held out; None if there are none.

    If the picked candidate was not timed on a shape, for example because it failed there, the slowest time counts.
    """
    aside = {p: row for p, row in survey.costs.items() if is_held_out(p) and row}
    if not aside or not expected:
        return None
    regrets = {}
    facts = {p: survey.facts[p] for p in aside}
    tried = likeliest(expected, facts, lambda c: (*guards(c), *survey.worth(c)))
    for problem, row in aside.items():
        picked = next(iter(tried[problem]), None)
        slowest = max(row.values())
        regrets[problem] = (slowest if picked is None else row.get(picked, slowest)) / min(row.values()) - 1
    return Judged(regrets, len(survey.costs) - len(aside))


def _with_errors(expectations: Sequence[Expectation], aside: Costs, survey: Survey) -> list[Expectation]:
    """The expectations with their errors on held-out shapes, and with their caution before the vendor's choice."""
    deviations: dict[str, dict[str, int]] = {}
    calls = Calls([survey.facts[p] for p in sorted(aside)])
    for expectation in expectations:
        places = [i for i, p in enumerate(sorted(aside)) if expectation.candidate in aside[p]]
        timed = [p for p in sorted(aside) if expectation.candidate in aside[p]]
        if timed:
            expected = expectation.model.expected(columns_of(expectation.terms, calls)[places])
            off = expected - log_of([aside[p][expectation.candidate] for p in timed])
            deviations[expectation.candidate] = dict(zip(timed, off.tolist(), strict=True))
    return [
        _judged(expectation, deviations.get(expectation.candidate, {}), _vendors(expectation, deviations, survey))
        for expectation in expectations
    ]


def _vendors(expectation: Expectation, deviations: Mapping[str, Mapping[str, int]], survey: Survey) -> dict[str, int]:
    """By problem, how far off the expectation of the vendor's choice is. Other variants must be cautious of it.

    Of several vendor variants, the one that serves most counts. Composed variants serve the rest, and are cautious of
    it.
    """
    by_problem: dict[str, int] = {}
    for vendor in sorted(survey.vendor & deviations.keys(), key=lambda c: (-len(deviations[c]), c)):
        if vendor == expectation.candidate:
            break
        by_problem = {**deviations[vendor], **by_problem}
    return by_problem


def _judged(expectation: Expectation, deviations: Mapping[str, int], vendor: Mapping[str, int]) -> Expectation:
    model = msgspec.structs.replace(expectation.model, error=_deviation(list(deviations.values())))
    beside = [deviations[p] - vendor[p] for p in deviations if p in vendor]
    return replace(expectation, model=model, caution=_deviation(beside) // _CAUTION)


def _deviation(values: Sequence[int]) -> int:
    """Root of the mean square; 0 if there are no values."""
    return round(float(np.sqrt(sum(v * v for v in values) / len(values)))) if values else 0
