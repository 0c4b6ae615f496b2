"""Turns times into a selection: which variants to keep, and which of them to try first for every call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from aot_tune.expr.columns import Calls
from aot_tune.select.choose_variants import Costs, choose_variants, fewer, regret_by_number, served_by_number
from aot_tune.select.decide import (
    NEAREST,
    Cell,
    Expectation,
    Guards,
    Judged,
    Rule,
    Survey,
    decide,
    is_held_out,
    likeliest,
    regimes_of_calls,
    slowest,
)
from aot_tune.select.nearest import Nearest, form_of, without_equals
from aot_tune.spec import Expr, Facts, all_of
from aot_tune.spec.regimes import OTHER, Regime
from aot_tune.spec.survey_shapes import Kind

REGRET_LIMIT = 0.005
"""Mean regret over the workload that may be given up for fewer variants, without a survey."""
MAX_REGRET, WORST_REGRET, MAX_VARIANTS, MAX_TOGETHER = 0.01, 0.1, 12, 60
"""With a survey: mean and largest regret over workload and survey, and the most variants for each kind of calls, and of
an operator."""

_NOT_RACED = 0.03
"""A candidate that was not in a race counts as at least this much slower than its best."""


@dataclass(frozen=True, kw_only=True)
class ChoiceLimits:
    """What a choice may give up: mean and largest regret; variants by kind and `together` (None: any); bytes."""

    regret: float = REGRET_LIMIT
    worst: float | None = None
    variants: int | None = None
    together: int | None = None
    bytes: int | None = None


SURVEYED = ChoiceLimits(regret=MAX_REGRET, worst=WORST_REGRET, variants=MAX_VARIANTS, together=MAX_TOGETHER)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The variants of one operator for one target.

    `exact` has the candidates to try on problems that were measured. Other calls go by `expected`, or without a survey
    by the `nearest` problem that was measured. If none of these serves, those in `rest` are tried. `regret` is, for
    each problem of the workload, the time of what dispatch picks over the best measured time, less 1. `held_out` is
    the same if the problem itself had not been measured, also for the shapes of a short survey. It is empty for a
    single problem, and with a survey, which has `judged` instead. A problem that is not in `held_out` could not be
    judged: the choice was never timed there, or no kept candidate was timed on the other problems. By kind of calls,
    `order` has the kind's variants, `curves` the mean regret over workload and survey with only the first of them, with
    the first two, and so on, and `served` the share of problems that these serve.
    """

    kept: tuple[str, ...]
    regret: dict[str, float]
    held_out: dict[str, float]
    rest: tuple[str, ...] = ()
    exact: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expected: tuple[Expectation, ...] = ()
    rules: Mapping[Cell, Rule] = field(default_factory=dict)
    regimes: tuple[Regime, ...] = ()
    nearest: Nearest | None = None
    curves: Mapping[tuple[tuple[str, int], ...], tuple[float, ...]] = field(default_factory=dict)
    order: Mapping[tuple[tuple[str, int], ...], tuple[str, ...]] = field(default_factory=dict)
    served: Mapping[tuple[tuple[str, int], ...], tuple[float, ...]] = field(default_factory=dict)

    @property
    def judged(self) -> Judged | None:
        """The regret on all surveyed shapes that were held out; None if there are none."""
        parts = [rule.judged for rule in self.rules.values()]
        regret = {problem: lost for part in parts for problem, lost in sorted(part.regret.items())}
        return Judged(regret, sum(part.learned_from for part in parts)) if regret else None

    @property
    def losing(self) -> tuple[Cell, ...]:
        """The kinds and regimes of calls in which the decision loses more than it may."""
        return tuple(cell for cell, rule in self.rules.items() if rule.judged.is_too_much)


def select(
    costs: Costs,
    facts: Mapping[str, Facts],
    guards: Guards,
    *,
    limits: ChoiceLimits | None = None,
    times: Costs | None = None,
    sizes: Mapping[str, int] | None = None,
    plainer: Mapping[str, str] | None = None,
    survey: Survey | None = None,
    kind_of: Callable[[Facts], Kind] = lambda _facts: (),
    regimes: Sequence[Regime] = (),
    bound: frozenset[str] = frozenset(),
    generic: frozenset[str] = frozenset(),
    weights: Mapping[str, float] | None = None,
) -> Selection:
    """Choose the variants of one operator for one target, and how to decide among them.

    Args:
        costs: times in ns by problem id and candidate id, of verified candidates only.
        facts: facts of each problem.
        guards: conditions that hold where a candidate serves.
        limits: by default `SURVEYED` with a survey, else only a small mean regret.
        times, sizes, weights: see `choose_variants`.
        plainer: candidate to one that is right where its guards do not hold. The second is kept too, for calls unlike
            those of the workload. It is tried after those that were chosen, and before the generic variant.
        survey: times on drawn shapes. They also decide which variants are kept and how other calls are decided. If
            there are too few for expected times, each is a measured problem that other calls may be nearest to.
        kind_of: facts of a call with their values. Calls of one kind, with equal values, have their own variants.
        bound: with a survey, candidates for single problems, such as a vendor's algorithms. They serve only problems on
            which they are ahead of all that is kept, and count towards no limit.
        generic: candidates that serve any call. With a survey, they are kept in any case.
    """
    rows = {p: row for p, row in sorted(costs.items()) if row}
    survey = survey or Survey({}, {}, {}, _always)
    rows = {p: _filled(row, survey.costs.get(p, {})) for p, row in rows.items()}
    drawn = {p: row for p, row in sorted(survey.costs.items()) if row and p not in rows}
    learned = {p: row for p, row in drawn.items() if not is_held_out(p)}
    aside = {p: row for p, row in drawn.items() if is_held_out(p) and len(row) > 1}  # where there is a choice
    survey = replace(survey, costs=learned)
    limits = limits or (SURVEYED if learned else ChoiceLimits())
    all_facts = {**facts, **survey.facts}  # of equal forms, the tuned problem is the first
    bound = bound if learned else frozenset()
    free = {p: {c: t for c, t in row.items() if c not in bound} for p, row in {**rows, **learned}.items()}
    by_kinds = learned or limits.variants is not None or limits.bytes is not None
    by_kind = _by_kind(free, lambda p: kind_of(all_facts[p]) if by_kinds else ())
    given = sorted(generic | survey.vendor) if learned else []
    chosen = {
        kind: choose_variants(
            own,
            limit=limits.regret,
            worst=limits.worst,
            most=limits.variants,
            times=times,
            sizes=sizes,
            byte_budget=limits.bytes,
            weights=weights,
            given=given,
        )
        for kind, own in sorted(by_kind.items())
    }
    kept = list(dict.fromkeys(c for own in chosen.values() for c in own))
    if not kept:
        return Selection(kept=(), regret={}, held_out={})
    kept += _ahead(rows, kept, bound)
    measured = {c for row in rows.values() for c in row}
    beside = {c: p for c, p in (plainer or {}).items() if p in measured}
    together = limits.together
    if together is not None and len(_with(beside, kept)) > together:
        shares = _halves(rows, learned, weights or {})
        costs = {**rows, **{p: free[p] for p in learned}}
        kept = fewer(costs, kept, lambda left: len(_with(beside, left)) <= together, shares, given)
        chosen = {kind: [c for c in own if c in kept] for kind, own in chosen.items()}
    curves = {kind: regret_by_number(by_kind[kind], own) for kind, own in chosen.items()}
    served = {kind: served_by_number(by_kind[kind], own) for kind, own in chosen.items()}
    decided = (
        [decide(kind, by_kind[kind], survey, all_facts, own, guards, regimes, generic) for kind, own in chosen.items()]
        if learned
        else []
    )
    rules = {cell: rule for own in decided for cell, rule in own.rules.items()}
    expected = tuple(e for own in decided for e in own.expected if e.regimes)
    regime_of = _regimes_of(learned, all_facts, regimes)
    taught = {p: row for p, row in learned.items() if rules[kind_of(all_facts[p]), regime_of[p]].by == NEAREST}
    by_name = {p: row for p, row in {**rows, **taught}.items() if _by_time(row, kept)}
    problems = without_equals(all_facts, (p for p in all_facts if p in by_name))
    modelled = {expectation.candidate for expectation in expected}
    rest = [c for c in _with(beside, kept) if (c in generic or c not in modelled) and c not in bound]
    nearest = Nearest(
        problems=problems,
        forms=tuple(form_of(all_facts[p]) for p in problems),
        candidates=tuple(_with(beside, _by_time(by_name[p], kept)) for p in problems),
        generic=generic,
    )
    selection = Selection(
        kept=_with(beside, kept),
        regret={},
        held_out={},
        rest=tuple(sorted(rest, key=lambda c: c in generic)),
        exact={p: _with(beside, _by_time(row, kept)) for p, row in rows.items() if _by_time(row, kept)},
        expected=expected,
        rules=rules,
        regimes=tuple(regimes),
        nearest=nearest,
        curves=curves,
        order={kind: tuple(own) for kind, own in chosen.items()},
        served=served,
    )
    return replace(
        selection,
        regret={p: _lost(row, selection.exact.get(p, ())) for p, row in rows.items()},
        held_out={} if learned else _held_out(rows, facts, nearest, guards, survey.worth),
        rules=_judged(selection, aside, survey, kind_of, guards) if aside else rules,
    )


def _regimes_of(names: Iterable[str], facts: Mapping[str, Facts], regimes: Sequence[Regime]) -> dict[str, str]:
    """The name of the regime of each call."""
    ordered = list(names)
    numbers = regimes_of_calls(Calls([facts[n] for n in ordered]), regimes).tolist()
    named = [*(name for name, _ in regimes), OTHER]
    return {name: named[number] for name, number in zip(ordered, numbers, strict=True)}


def _judged(
    selection: Selection, aside: Costs, survey: Survey, kind_of: Callable[[Facts], Kind], guards: Guards
) -> dict[Cell, Rule]:
    """The rules with the regret on the surveyed shapes that were held out."""
    facts = {p: survey.facts[p] for p in aside}
    picks, regime_of = all_picked(selection, facts, guards, survey.worth), _regimes_of(aside, facts, selection.regimes)
    regrets: dict[Cell, dict[str, float]] = {}
    for problem, row in aside.items():
        taken = row.get(picks[problem] or "", slowest(row, selection.nearest.generic if selection.nearest else ()))
        regrets.setdefault((kind_of(facts[problem]), regime_of[problem]), {})[problem] = taken / min(row.values()) - 1
    learned_of = _regimes_of(survey.costs, survey.facts, selection.regimes)
    learned = Counter((kind_of(survey.facts[p]), regime) for p, regime in learned_of.items())
    order = [*(name for name, _ in selection.regimes), OTHER]
    return {
        cell: replace(selection.rules.get(cell, Rule(NEAREST)), judged=Judged(regrets.get(cell, {}), learned[cell]))
        for cell in sorted(selection.rules.keys() | regrets.keys(), key=lambda cell: (cell[0], order.index(cell[1])))
    }


def _always(_candidate: str) -> tuple[Expr, ...]:
    return ()


def ranked(
    selection: Selection, problem: str, facts: Facts, guards: Guards, worth: Guards = _always
) -> tuple[str, ...]:
    """The candidates that dispatch tries on a call, best first. Those that do not serve it are left out.

    `problem` is the id of the measured problem that the call is like, if there is one. Candidates that are `worth` a
    try on the call come first.
    """
    return tuple(dict.fromkeys(_tried(selection, problem, facts, guards, worth)))


def picked(selection: Selection, problem: str, facts: Facts, guards: Guards, worth: Guards = _always) -> str | None:
    """The first of the candidates that `ranked` returns; None if there is none."""
    return next(_tried(selection, problem, facts, guards, worth), None)


def all_picked(
    selection: Selection, calls: Mapping[str, Facts], guards: Guards, worth: Guards
) -> dict[str, str | None]:
    """What `picked` returns for many calls, by problem id."""
    likely = _likeliest(selection, calls, guards, worth)
    return {n: next(_tried(selection, n, facts, guards, worth, likely[n]), None) for n, facts in calls.items()}


def _likeliest(
    selection: Selection, calls: Mapping[str, Facts], guards: Guards, worth: Guards
) -> dict[str, tuple[str, ...] | None]:
    """By expected times, which only candidates have that are `worth` it."""
    generic = frozenset[str]() if selection.nearest is None else selection.nearest.generic
    able = lambda c: (*guards(c), *worth(c))  # noqa: E731
    return likeliest(selection.expected, selection.rules, selection.regimes, calls, able, generic)


def _tried(
    selection: Selection, problem: str, facts: Facts, guards: Guards, worth: Guards, likely: Sequence[str] | None = None
) -> Iterator[str]:
    """The candidates that dispatch tries and that serve. `likely` are those by expected times, if they are known."""
    serves, meant = (cache(partial(_serves, conditions, facts=facts)) for conditions in (guards, worth))
    yield from filter(serves, selection.exact.get(problem, ()))
    if likely is None:
        likely = _likeliest(selection, {problem: facts}, guards, worth)[problem]
    yield from likely or ()
    if likely is None and selection.nearest is not None:
        yield from selection.nearest.tried(form_of(facts), serves, meant)
    yield from filter(serves, selection.rest)


def _serves(guards: Guards, candidate: str, facts: Facts) -> bool:
    return all_of(guards(candidate), facts)


def _filled(row: Mapping[str, float], surveyed: Mapping[str, float]) -> dict[str, float]:
    """A tuned problem's times, with a survey's times for candidates that were passed over there.

    A survey's times are of a few samples and not from a race. So they count as at least a little behind the best.
    """
    least = (1 + _NOT_RACED) * min(row.values())
    return {**{c: max(t, least) for c, t in surveyed.items()}, **row}


def _by_kind(rows: Costs, kind_of: Callable[[str], Kind]) -> dict[Kind, Costs]:
    by_kind: dict[Kind, Costs] = {}
    for problem, row in rows.items():
        if row:
            by_kind.setdefault(kind_of(problem), {})[problem] = row
    return by_kind


def _halves(rows: Costs, learned: Costs, weights: Mapping[str, float]) -> dict[str, float]:
    """The shares of problems and of surveyed shapes, so that these count as much in all as those."""
    total = math.fsum(weights.get(p, 1.0) for p in rows)
    return {**{p: weights.get(p, 1.0) / total for p in rows}, **{p: 1 / len(learned) for p in learned}}


def _ahead(rows: Costs, kept: Sequence[str], bound: frozenset[str]) -> list[str]:
    """The bound candidates that, on some problem, are faster than all that is kept by more than the allowed regret."""
    ahead = set()
    for row in rows.values():
        best = min((t for c, t in row.items() if c not in bound and c in kept), default=math.inf)
        first = min((c for c in row if c in bound), key=lambda c: (row[c], c), default=None)
        if first is not None and row[first] * (1 + MAX_REGRET) < best:
            ahead.add(first)
    return sorted(ahead)


def _by_time(row: Mapping[str, float], kept: Sequence[str]) -> tuple[str, ...]:
    """The kept candidates with times on a problem, the fastest first. On a tie, the one of more gain comes first."""
    return tuple(sorted((c for c in kept if c in row), key=lambda c: (row[c], kept.index(c))))


def _lost(row: Mapping[str, float], tried: Sequence[str]) -> float:
    """Regret on a measured problem, of the first tried candidate with a time. Without one, the slowest time counts."""
    first = next((row[c] for c in tried if c in row), max(row.values()))
    return first / min(row.values()) - 1


def _with(beside: Mapping[str, str], ranked: Sequence[str]) -> tuple[str, ...]:
    """The candidates, followed by those that are kept beside them, each once."""
    return tuple(dict.fromkeys([*ranked, *(beside[c] for c in ranked if c in beside)]))


def _held_out(
    rows: Costs, facts: Mapping[str, Facts], nearest: Nearest, guards: Guards, worth: Guards
) -> dict[str, float]:
    """Regret of what the nearest of the other problems gives each one.

    A problem is left out if nothing serves it, or if what serves it was never timed there: its regret is unknown.
    """
    regrets = {}
    for problem, row in rows.items():
        serves, meant = (partial(_serves, conditions, facts=facts[problem]) for conditions in (guards, worth))
        first = next(
            nearest.tried(form_of(facts[problem]), serves, meant, [p != problem for p in nearest.problems]), None
        )
        if first in row:
            regrets[problem] = row[first] / min(row.values()) - 1
    return regrets
