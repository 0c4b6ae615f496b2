"""The decision for calls that nobody measured, by kind of calls and regime: the rule that loses least there.

There are three rules: what was fastest on the nearest measured problem, the least expected time, the vendor's choice.
The last two are one form: what a vendor's library does not choose itself gets a caution, which may be without limit.
Rules and cautions are chosen by cross-validation. Then the decision is judged by shapes that were used for nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from aot_tune.expr.columns import Calls
from aot_tune.select.choose_variants import Costs
from aot_tune.select.nearest import Nearest, form_of
from aot_tune.select.terms import Terms, columns_of
from aot_tune.select.time_model import HEAVIEST, LOG_UNIT, TimeModel, Times, learn_times, log_of
from aot_tune.spec import Expr, Facts
from aot_tune.spec.regimes import OTHER, Regime
from aot_tune.spec.survey_shapes import Kind

NEAREST, EXPECTED, VENDOR = "nearest", "expected", "vendor"
UNLIMITED = 1 << 24
"""A caution that no expected time overcomes."""

_HELD_OUT = 5
"""One of this many surveyed shapes is held out: it is used for nothing but to judge the decision."""
_FOLDS = 3
"""Rules are chosen by shapes of one part, with what is learned from the others, for each of so many parts."""
_LEAST = 8
"""The kind's other shapes count together as if they were so many of a regime's own. Cautions need as many."""
_WORTH_ITS_ROWS = 0.003
"""The nearest problem decides if it loses less than expected times by this: each call looks at all rows of a table."""
_SHARES = tuple(eighths / 8 for eighths in range(9))
"""Shares of the errors that a caution may cover."""
_COVERED = 0.5
"""A candidate is considered in a regime if it was timed on this share of the shapes that it serves there."""
_HALVED = 1700
"""If a variant is slower than the best by this (log2 in 1/4096, 33 %), its time counts half as much."""

Cell = tuple[Kind, str]
"""A kind of calls, and the name of a regime: what a rule is for."""
Guards = Callable[[str], tuple[Expr, ...]]
"""By candidate id, conditions on a call that all hold where it serves."""
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


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


@dataclass(frozen=True)
class Expectation:
    """The expectation of a candidate's time on calls of a kind, which have these facts, in some regimes.

    A caution is added to the expected time of what is not the `vendor`'s choice.
    """

    candidate: str
    kind: Kind
    terms: Terms
    model: TimeModel
    regimes: frozenset[str] = frozenset({OTHER})
    vendor: bool = False


MEAN_LIMIT, P95_LIMIT = 0.10, 0.50
"""What a decision may lose in a regime: in the mean, and on all but a twentieth of its shapes."""


@dataclass(frozen=True)
class Judged:
    """Regret on held-out surveyed shapes, by problem id: time of what dispatch picks over the best time, less 1."""

    regret: Mapping[str, float] = field(default_factory=dict)
    learned_from: int = 0

    @property
    def mean(self) -> float:
        """The mean over all shapes; 0 without shapes."""
        return math.fsum(self.regret.values()) / max(len(self.regret), 1)

    @property
    def worst(self) -> tuple[float, str]:
        """The largest regret, and its problem."""
        problem = max(self.regret, key=lambda p: (self.regret[p], p), default="")
        return self.regret.get(problem, 0.0), problem

    @property
    def is_too_much(self) -> bool:
        """Whether it is more than a decision may lose."""
        return self.mean > MEAN_LIMIT or self.percentile(0.95) > P95_LIMIT

    def percentile(self, share: float) -> float:
        """The regret that this share of the shapes does not exceed; 0 without shapes."""
        ordered = sorted(self.regret.values()) or [0.0]
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True)
class Rule:
    """How calls of a kind and regime are decided that nobody measured: `by` NEAREST, EXPECTED or VENDOR.

    `caution` is in 1/4096 of log2 ns. It is `UNLIMITED` if the vendor chooses.
    """

    by: str
    caution: int = 0
    judged: Judged = Judged()


@dataclass(frozen=True)
class Decided:
    """What `decide` finds for a kind of calls."""

    expected: Sequence[Expectation]
    rules: Mapping[Cell, Rule]


def is_held_out(problem: str) -> bool:
    """Whether a surveyed problem is held out. About a fifth are, independent of the rest of the survey."""
    return hashlib.sha256(problem.encode()).digest()[0] % _HELD_OUT == 0


def decide(
    kind: Kind,
    rows: Costs,
    survey: Survey,
    facts: Mapping[str, Facts],
    kept: Sequence[str],
    guards: Guards,
    regimes: Sequence[Regime],
    generic: frozenset[str],
) -> Decided:
    """The rules for calls of a kind, and the expectations of the kept candidates. Those with too few times have none.

    Args:
        kind: facts of the calls.
        rows: times on the kind's problems of the workload, and on its surveyed shapes that are not held out.
        survey: whose shapes the others among the rows are.
        facts: of all these problems.
        kept: ids of the candidates that are kept for that kind.
        guards: of these candidates.
        regimes: in their order. Calls of none are of the regime `OTHER`.
        generic: candidates that serve any call.
    """
    shapes = _Shapes(rows, survey, facts, kept, guards, regimes, generic)
    models, guesses = learn_times(shapes.times), shapes.cross_validated()
    # By few times of others, a generic one may be expected to be faster, though it never was.
    models = {c: model for c, model in models.items() if c not in generic or shapes.leads(c)}
    vendors = survey.vendor & models.keys()
    considered = {c: {number for number in range(len(shapes.names)) if shapes.covers(c, number)} for c in models}
    trial = _Trial(
        nearest=shapes.by_nearest(),
        ours=shapes.least({c: guesses[c] for c in models if c not in vendors}, considered),
        vendors=shapes.least({c: guesses[c] for c in models if c in vendors}, considered),
    )
    rules: dict[Cell, Rule] = {}
    for number, name in enumerate(shapes.names):
        if any(number in regimes_of for regimes_of in considered.values()):
            rules[kind, name] = _rule(shapes, number, trial)
        elif vendors and not (shapes.regimes == number).any():  # nothing is near
            rules[kind, name] = Rule(VENDOR, UNLIMITED)
            for candidate in vendors:
                considered[candidate].add(number)
        else:
            rules[kind, name] = Rule(NEAREST)
    return Decided(
        [
            Expectation(
                candidate,
                kind,
                survey.terms[candidate],
                msgspec.structs.replace(model, error=shapes.error(candidate, guesses[candidate])),
                frozenset(shapes.names[number] for number in considered[candidate]),
                candidate in vendors,
            )
            for candidate, model in models.items()
        ],
        rules,
    )


@dataclass(frozen=True)
class _Least:
    """For each shape, the place of the candidate with the least expected time, or -1, and that time."""

    places: Integers
    times: Integers


@dataclass(frozen=True)
class _Trial:
    """What rules pick on surveyed shapes that they know nothing of. `ours` is not the vendor's choice."""

    nearest: Integers
    ours: _Least
    vendors: _Least

    def expected(self, caution: int) -> Integers:
        """The places of what is expected to be fastest, with a caution."""
        return np.where(self.vendors.times <= self.ours.times + caution, self.vendors.places, self.ours.places)


def _rule(shapes: _Shapes, number: int, trial: _Trial) -> Rule:
    """The rule of a regime that loses least on its shapes. Of equal ones, that of the greatest caution."""
    cautions = _cautions(shapes, number, trial)
    lost = [round(shapes.lost(trial.expected(caution), number), 6) for caution in cautions]
    if round(shapes.lost(trial.nearest, number), 6) < min(lost) - _WORTH_ITS_ROWS:
        return Rule(NEAREST)
    caution = cautions[lost.index(min(lost))]
    return Rule(VENDOR if caution == UNLIMITED else EXPECTED, caution)


def _cautions(shapes: _Shapes, number: int, trial: _Trial) -> list[int]:
    """The cautions to try, the greatest first: quantiles of how much less a candidate was ahead than was expected.

    They are of a regime's shapes, or of all if these are few. One below 0 favours what is not the vendor's choice.
    """
    ours, vendors, every = trial.ours, trial.vendors, np.arange(len(shapes.ids))
    if (vendors.places[shapes.regimes == number] < 0).all():  # then none makes a difference
        return [0]
    actual, theirs = shapes.logs[ours.places, every], shapes.logs[vendors.places, every]
    known = (ours.places >= 0) & (vendors.places >= 0) & (actual >= 0) & (theirs >= 0) & shapes.choices
    own = known & (shapes.regimes == number)
    errors = ((actual - theirs) - (ours.times - vendors.times))[own if own.sum() >= _LEAST else known]
    ordered = np.sort(errors).tolist()
    quantiles = {ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in _SHARES if ordered}
    return [UNLIMITED, *sorted({0, *quantiles}, reverse=True)]


class _Shapes:
    """The problems and shapes of a kind of calls with times, in the order of their names.

    `kept` are the candidates, `logs` their times [candidate, shape] as log2 in 1/4096, or -1 where they were not timed.
    """

    def __init__(
        self,
        rows: Costs,
        survey: Survey,
        facts: Mapping[str, Facts],
        kept: Sequence[str],
        guards: Guards,
        regimes: Sequence[Regime],
        generic: frozenset[str],
    ) -> None:
        self.generic = generic
        self.rows, self.survey, self.kept, self.ids = rows, survey, list(kept), sorted(rows)
        self.facts = [facts[p] for p in self.ids]
        self.calls = Calls(self.facts)
        self.names = [*(name for name, _ in regimes), OTHER]
        self.regimes = regimes_of_calls(self.calls, regimes)
        self.drawn: Flags = np.array([p in survey.costs for p in self.ids], dtype=np.bool_)
        self.choices: Flags = np.array([len(rows[p]) > 1 for p in self.ids], dtype=np.bool_) & self.drawn
        folds = [hashlib.sha256(p.encode()).digest()[1] % _FOLDS for p in self.ids]
        self.folds: Integers = np.where(self.drawn, np.array(folds, dtype=np.int64), -1)
        self.serves = {c: self.calls.hold((*guards(c), *survey.worth(c))) for c in kept}
        self.may = {c: self.calls.hold(guards(c)) for c in kept}
        self.times = {c: times_of(c, rows, self.calls, survey.terms[c]) for c in kept if c in survey.terms}
        self.logs: Integers = np.full((len(kept), len(self.ids)), -1, dtype=np.int64)
        for place, candidate in enumerate(kept):
            timed = [(i, rows[p][candidate]) for i, p in enumerate(self.ids) if candidate in rows[p]]
            self.logs[place, [i for i, _ in timed]] = log_of([t for _, t in timed])

    def covers(self, candidate: str, regime: int) -> bool:
        """Whether a candidate was timed in a regime: elsewhere its times may be anything."""
        within = (self.regimes == regime) & self.serves[candidate]
        timed = within & (self.logs[self.kept.index(candidate)] >= 0)
        return bool(timed.any() and timed.sum() >= _COVERED * within.sum())

    def leads(self, candidate: str) -> bool:
        """Whether a candidate was the fastest somewhere."""
        logs = self.logs[self.kept.index(candidate)]
        return bool(((logs >= 0) & (logs <= self._best)).any())

    def cross_validated(self) -> dict[str, Integers]:
        """The expected time of each candidate on all drawn shapes, of models that know nothing of them."""
        guesses = {c: np.full(len(self.ids), UNLIMITED, dtype=np.int64) for c in self.times}
        for fold in range(_FOLDS):
            aside = self.folds == fold
            if aside.any():
                parts = {c: self._without(c, t, aside) for c, t in self.times.items()}
                for candidate, model in learn_times(parts).items():
                    columns = columns_of(self.survey.terms[candidate], self.calls)
                    guesses[candidate][aside] = model.expected(columns[aside])
        return guesses

    def _without(self, candidate: str, times: Times, aside: Flags) -> Times:
        timed = self.logs[self.kept.index(candidate)] >= 0
        left = ~aside[timed]
        problems = [p for p, stays in zip(times.problems, left.tolist(), strict=True) if stays]
        return replace(
            times, problems=problems, columns=times.columns[left], logs=times.logs[left], weights=times.weights[left]
        )

    def by_nearest(self) -> Integers:
        """The place of the candidate that the nearest problem of other parts gives each drawn shape, or -1."""
        ranked = [sorted((c for c in self.kept if c in self.rows[p]), key=self._about(p)) for p in self.ids]
        some = [i for i, candidates in enumerate(ranked) if candidates]
        forms = [form_of(f) for f in self.facts]
        known = Nearest(
            problems=tuple(self.ids[i] for i in some),
            forms=tuple(forms[i] for i in some),
            candidates=tuple(tuple(ranked[i]) for i in some),
            generic=self.generic,
        )
        folds = self.folds[some]
        picks = np.full(len(self.ids), -1, dtype=np.int64)
        for i in np.flatnonzero(self.drawn).tolist():

            def serves(candidate: str, i: int = i) -> bool:
                return bool(self.may[candidate][i])

            def meant(candidate: str, i: int = i) -> bool:
                return bool(self.serves[candidate][i])

            tried = known.tried(forms[i], serves, meant, left=folds != self.folds[i])
            picks[i] = next(map(self.kept.index, tried), -1)
        return picks

    def _about(self, problem: str) -> Callable[[str], tuple[float, int]]:
        row = self.rows[problem]
        return lambda c: (row[c], self.kept.index(c))

    @cached_property
    def _worst(self) -> Integers:
        return log_of([slowest(self.rows[p], self.generic) for p in self.ids])

    @cached_property
    def _best(self) -> Integers:
        return log_of([min(self.rows[p].values()) for p in self.ids])

    def least(self, guesses: Mapping[str, Integers], considered: Mapping[str, Collection[int]]) -> _Least:
        """The candidate with the least of the guessed times on each shape, of those that are considered there."""
        none = np.full((1, len(self.ids)), 4 * UNLIMITED, dtype=np.int64)
        guessed = [none]
        for candidate, times in guesses.items():
            may = self.serves[candidate] & np.isin(self.regimes, list(considered[candidate]))
            guessed.append(np.where(may, times, none))
        every = np.concatenate(guessed)
        places = np.array([-1, *(self.kept.index(c) for c in guesses)], dtype=np.int64)
        return _Least(places[every.argmin(axis=0)], every.min(axis=0))

    def lost(self, picks: Integers, regime: int) -> float:
        """The mean regret of picks, given by their places, on shapes of a regime. If these are few, others count too.

        Others count as if they were `_LEAST` more.
        """
        taken = self.logs[picks, np.arange(len(self.ids))]
        taken = np.where((picks >= 0) & (taken >= 0), taken, self._worst)
        behind = np.exp2((taken - self._best) / LOG_UNIT) - 1
        own = behind[self.choices & (self.regimes == regime)].tolist()
        others = behind[self.choices & (self.regimes != regime)].tolist()
        beside = min(_LEAST, len(others))
        return (math.fsum(own) + beside * math.fsum(others) / max(len(others), 1)) / max(len(own) + beside, 1)

    def error(self, candidate: str, guessed: Integers) -> int:
        """Root of the mean square of how far off expected times are on shapes that models knew nothing of."""
        logs = self.logs[self.kept.index(candidate)]
        off = (guessed - logs)[(logs >= 0) & (guessed < UNLIMITED)].tolist()
        return round(math.sqrt(sum(v * v for v in off) / len(off))) if off else 0


def slowest(row: Mapping[str, float], generic: Collection[str]) -> float:
    """What counts for a candidate without a time on a shape, for example because it failed: the slowest tuned one's."""
    return max((t for c, t in row.items() if c not in generic), default=max(row.values()))


def regimes_of_calls(calls: Calls, regimes: Sequence[Regime]) -> Integers:
    """The number of the regime of each call. That of `OTHER` comes after all others."""
    numbers = np.full(len(calls), len(regimes), dtype=np.int64)
    for number, (_, conditions) in reversed(list(enumerate(regimes))):
        numbers[calls.hold(conditions)] = number
    return numbers


def times_of(candidate: str, rows: Costs, calls: Calls, terms: Terms) -> Times:
    """A candidate's times on the calls of the rows, in the order of their names. Those near the best count most."""
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
    expected: Sequence[Expectation],
    rules: Mapping[Cell, Rule],
    regimes: Sequence[Regime],
    facts: Mapping[str, Facts],
    guards: Guards,
    generic: Collection[str],
) -> dict[str, tuple[str, ...] | None]:
    """By call name, the candidates that serve the call, the one with the least expected time first.

    If `generic` ones alone would be left, those that were only timed in other regimes come before them. None stands for
    a call that is decided by the nearest problem.
    """
    calls, names = Calls(list(facts.values())), np.array(list(facts), dtype=object)
    numbers, named = regimes_of_calls(calls, regimes), [*(name for name, _ in regimes), OTHER]
    by_call: dict[str, dict[str, int]] = {}
    elsewhere: dict[str, dict[str, int]] = {}
    of_kind: dict[Kind, Flags] = {}
    for (kind, name), rule in rules.items():
        if kind not in of_kind:
            of_kind[kind] = np.all([np.full(len(calls), True), *(calls[f] == v for f, v in kind)], axis=0)
        if rule.by != NEAREST:
            by_call.update((n, {}) for n in names[of_kind[kind] & (numbers == named.index(name))].tolist())
    for expectation in expected if by_call else ():
        kind = expectation.kind
        by = [rules.get((kind, n), Rule(NEAREST)) for n in named]
        served = of_kind[kind] & np.array([r.by != NEAREST for r in by])[numbers]
        served = served & calls.hold(guards(expectation.candidate))
        cautions = np.array([0 if expectation.vendor else r.caution for r in by])[numbers[served]]
        times = expectation.model.expected(columns_of(expectation.terms, calls)[served]) + cautions
        near = np.array([n in expectation.regimes for n in named])[numbers[served]]
        for name, time, here in zip(names[served].tolist(), times.tolist(), near.tolist(), strict=True):
            if here:
                by_call[name][expectation.candidate] = time
            elif expectation.candidate not in generic:
                elsewhere.setdefault(name, {})[expectation.candidate] = time
    ranked: dict[str, tuple[str, ...] | None] = dict.fromkeys(facts)
    for name, times_of_call in by_call.items():
        others = {} if times_of_call.keys() - generic else elsewhere.get(name, {})
        every = (sorted(row, key=row.__getitem__) for row in (others, times_of_call))
        ranked[name] = tuple(c for row in every for c in row)
    return ranked
