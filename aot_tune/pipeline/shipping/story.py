"""The story of a build: what was tried, what won, why the rest was dropped, and what dispatch picks."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from aot_tune.bench.devices.roofline import Peaks, Roofline, TimedCall
from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement, is_baseline
from aot_tune.bench.times import paired_gain, spread
from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Chosen, Evidence, guards_of, worth_of
from aot_tune.pipeline.failures import again
from aot_tune.pipeline.known_times import tie_band
from aot_tune.report.report_records import (
    NOT_TRIED,
    CandidateRow,
    DispatchMap,
    DroppedCandidate,
    OperatorReport,
    ProblemRow,
    RaceRunner,
    RegimeRow,
    RegretCurve,
    SurveyPoint,
    SurveyRow,
    VariantRow,
)
from aot_tune.select import all_picked, picked
from aot_tune.spec import Facts, Operator, Problem, all_of
from aot_tune.spec.calls import extents_exist
from aot_tune.spec.regimes import range_of, regime_of
from aot_tune.spec.survey_shapes import Kind, kind_of

_MOST = 40
"""How many candidates of an operator a report lists."""

_DIGITS, _PERCENTS = 4, 2
"""Digits of a share on a problem, and of the best share. A record's rounded times give the same best share."""

_STEPS = 20
"""How many extents of a dim a map has."""

_DIMS = 3
"""Maps show pairs of this many dims: those that vary most among calls."""

_GENERIC = "generic"
"""The name of what serves if nothing else does."""

_WHOLE = ((256, 64), (32, 8))
"""From the first extent on, extents are multiples of the second, as in most calls."""

_MOST_RUNNERS = 6
"""How many candidates are shown, beside the baselines, for a problem without a race."""


class _BestShare(NamedTuple):
    """A candidate's best share of the roofline, rounded to whole percents, its problem, and the peaks."""

    share: float
    problem: str
    of: str


class Rooflines:
    """The rooflines of an operator's problems on the devices that measured them."""

    def __init__(self, evidence: Evidence, peaks: Peaks) -> None:
        self._evidence, self._peaks = evidence, peaks
        self._times = evidence.times()
        self._problems = {p.id: p for p in evidence.workload}
        self._lines: dict[tuple[str, str], Roofline | None] = {}

    def on(self, problem: str, candidate: str) -> tuple[float, Roofline] | None:
        """A candidate's share of the roofline on a problem; None if one of them is unknown."""
        ns = self._times.get(problem, {}).get(candidate)
        measured = self._evidence.on(problem).get(candidate)
        if not ns or measured is None or problem not in self._problems:
            return None
        key = problem, measured.device
        if key not in self._lines:
            self._lines[key] = self._peaks.roofline(measured.device, self._evidence.operator, self._problems[problem])
        line = self._lines[key]
        return (round(line.ns / ns, _DIGITS), line) if line is not None else None

    def best_of(self, candidate: str) -> _BestShare | None:
        """The problem on which a candidate comes nearest to the roofline."""
        shares = [(share_of, p) for p in self._problems if (share_of := self.on(p, candidate)) is not None]
        if not shares:
            return None
        (share, line), problem = max(shares, key=lambda s: (round(s[0][0], _PERCENTS), s[1]))
        return _BestShare(round(share, _PERCENTS), problem, line.of)

    @property
    def of(self) -> str:
        """The peaks; empty if there is no roofline. The peaks of several devices are listed together."""
        for problem, row in self._times.items():
            for candidate in row:
                self.on(problem, candidate)
        return "; ".join(sorted({line.of for line in self._lines.values() if line is not None}))

    def timed(self, candidate: str) -> int:
        """On how many problems a candidate was timed."""
        return sum(candidate in row for row in self._times.values())


def _candidate_rows(evidence: Evidence, rooflines: Rooflines) -> tuple[CandidateRow, ...]:
    """The timed candidates, those nearest to the roofline first."""
    timed = {c: (count, rooflines.best_of(c)) for c in evidence.variants if (count := rooflines.timed(c))}
    rows = [
        CandidateRow(
            name=evidence.variants[c].name,
            label=evidence.variants[c].candidate.label,
            problems=count,
            resources=evidence.variants[c].resources,
            roofline=None if best is None else best.share,
            where="" if best is None else best.problem,
        )
        for c, (count, best) in timed.items()
    ]
    return tuple(sorted(rows, key=lambda r: (-(r.roofline or 0.0), r.name))[:_MOST])


def kind_text(operator: Operator, kind: Kind) -> str:
    """A kind of calls in the form that people write: `T=bf16 math=ieee`."""
    choices = {f"dtype.{v}": names for v, names in operator.dtypes.items()}
    choices |= {f"attribute.{a.name}": a.choices for a in operator.attributes}
    return " ".join(f"{fact.partition('.')[2]}={choices[fact][value]}" for fact, value in kind)


def _curves_of(chosen: Chosen) -> tuple[RegretCurve, ...]:
    """For each kind of calls, how much the variants that are kept for it are worth."""
    evidence, selection = chosen.evidence, chosen.selection
    return tuple(
        RegretCurve(
            kind=kind_text(evidence.operator, kind),
            variants=tuple(_name(evidence, c) for c in selection.order.get(kind, ())[: len(curve)]),
            regret=tuple(round(regret, 5) for regret in curve),
            served=tuple(round(share, 5) for share in selection.served.get(kind, ())),
        )
        for kind, curve in selection.curves.items()
    )


def _points_of(chosen: Chosen) -> tuple[SurveyPoint, ...]:
    """The surveyed shapes. Those by which dispatch was judged have the regret of a decision that does not know them."""
    evidence, selection = chosen.evidence, chosen.selection
    operator, costs = evidence.operator, evidence.surveyed.costs(evidence.failed)
    tuned = {p.id for p in evidence.workload if p.id in chosen.costs}  # a survey times these too
    problems = {name: evidence.surveyed.problems[name] for name in sorted(costs) if name not in tuned}
    facts = {name: operator.facts(problem) for name, problem in problems.items()}
    picks = _picked(chosen, facts)
    judged = selection.judged.regret if selection.judged is not None else selection.held_out
    points = []
    for name, problem in problems.items():
        row, pick = costs[name], picks[name]
        best = min(row, key=lambda c: (row[c], c))
        regret = row[pick] / row[best] - 1 if pick in row else None
        regret = judged.get(name, regret)
        points.append(
            SurveyPoint(
                problem=name,
                kind=kind_text(operator, kind_of(operator, facts[name])),
                dims=dict(problem.dims),
                best=_name(evidence, best),
                ns=row[best],
                picked=_name(evidence, pick),
                regret=None if regret is None else round(regret, 5),
                held_out=selection.judged is not None and name in selection.judged.regret,
                regime=regime_of(operator, facts[name]),
            )
        )
    return tuple(points)


def _maps_of(chosen: Chosen) -> tuple[DispatchMap, ...]:
    """For each kind of calls and layout in the workload, what dispatch picks over each pair of the dims that vary most.

    The other dims have their most frequent extents. All else is as in the plainest problem of the kind and layout.
    """
    operator = chosen.evidence.operator
    groups: dict[tuple[Kind, str], list[Problem]] = {}
    varied: dict[Kind, list[Problem]] = {}
    for problem in chosen.evidence.workload:
        if problem.id in chosen.costs:
            kind = kind_of(operator, operator.facts(problem))
            groups.setdefault((kind, _layout(problem)), []).append(problem)
            varied.setdefault(kind, []).append(problem)
    for problem in chosen.evidence.surveyed.problems.values():
        varied.get(kind_of(operator, operator.facts(problem)), []).append(problem)
    return tuple(
        _map(chosen, kind, problems, pair)
        for (kind, _), problems in sorted(groups.items(), key=lambda g: (g[0][0], -len(g[1]), g[0][1]))
        for pair in _pairs(varied[kind])
    )


def _layout(problem: Problem) -> str:
    """The tensors that are not row-major: `b:10`."""
    return " ".join(f"{t}:{''.join(map(str, order))}" for t, order in sorted(problem.order.items()))


def _pairs(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """The dims of maps, as x and y. If only one dim varies among problems and surveyed shapes, y is empty."""
    spans = {d: _span([p.dims[d] for p in problems]) for d in problems[0].dims}
    varying = sorted((d for d, span in spans.items() if span > 1), key=lambda d: -spans[d])[:_DIMS]
    ordered = [d for d in problems[0].dims if d in varying]
    if len(ordered) == 1:
        return [(ordered[0], "")]
    return [(x, y) for y, x in itertools.combinations(ordered, 2)]


def _span(extents: Sequence[int]) -> float:
    return max(extents) / max(min(extents), 1)


def _map(chosen: Chosen, kind: Kind, problems: Sequence[Problem], pair: tuple[str, str]) -> DispatchMap:
    operator, (x, y) = chosen.evidence.operator, pair
    plainest = min(problems, key=lambda p: (len(p.id.split()), p.id))
    usual = {d: Counter(p.dims[d] for p in problems).most_common(1)[0][0] for d in plainest.dims}
    xs = _extents(range_of(operator, x, problems))
    ys = _extents(range_of(operator, y, problems)) if y else (0,)
    exist = extents_exist(operator)
    calls: dict[str, Facts] = {}
    call_at: dict[tuple[int, int], str] = {}
    for j, i in itertools.product(range(len(ys)), range(len(xs))):
        dims = {**usual, x: xs[i], **({y: ys[j]} if y else {})}
        call = msgspec.structs.replace(plainest, dims=dims, strides={})
        facts = operator.facts(call)
        if all_of((*exist, *operator.legal, *operator.expected), facts):
            calls[call.id], call_at[j, i] = facts, call.id
    picks = {name: _name(chosen.evidence, pick) for name, pick in _picked(chosen, calls).items()}
    variants = tuple(dict.fromkeys(picks.values()))
    index = {name: i for i, name in enumerate(variants)}
    return DispatchMap(
        kind=kind_text(operator, kind),
        layout=_layout(plainest),
        x=x,
        y=y,
        at={d: n for d, n in usual.items() if d not in pair},
        xs=xs,
        ys=ys,
        variants=variants,
        picks=tuple(
            tuple(index[picks[call_at[j, i]]] if (j, i) in call_at else -1 for i in range(len(xs)))
            for j in range(len(ys))
        ),
    )


def _extents(between: tuple[int, int]) -> tuple[int, ...]:
    """Distinct extents between two, evenly spread on a logarithmic scale."""
    least, most = max(between[0], 1), max(between[1], 1)
    extents = []
    for i in range(_STEPS):
        value = least * (most / least) ** (i / (_STEPS - 1))
        step = next((whole for limit, whole in _WHOLE if value >= limit), 1)
        extents.append(min(max(round(value / step) * step, least), most))
    return tuple(sorted(set(extents)))


def _picked(chosen: Chosen, calls: Mapping[str, Facts]) -> dict[str, str | None]:
    return all_picked(chosen.selection, calls, guards_of(chosen.evidence), worth_of(chosen.evidence))


def _name(evidence: Evidence, candidate: str | None) -> str:
    return _GENERIC if candidate is None else evidence.variants[candidate].name


def timed_calls(evidence: Evidence) -> Iterator[TimedCall]:
    """The fastest call of each problem, also if it is a baseline's."""
    for problem in evidence.workload:
        measured = evidence.row(problem.id).values() if problem.id in evidence.measurements else ()
        fastest = min((m for m in measured if m.ns), key=lambda m: (m.ns or 0.0, m.candidate), default=None)
        if fastest is not None:
            yield TimedCall(fastest.device, evidence.operator, problem, fastest.ns or 0.0)


def tell(chosen: Chosen, generics: Sequence[Variant], peaks: Peaks) -> OperatorReport:
    """The report of one operator on one target."""
    evidence, selection = chosen.evidence, chosen.selection
    times, rooflines = evidence.times(), Rooflines(evidence, peaks)
    rows = tuple(_row(chosen, p.id, times[p.id], rooflines) for p in evidence.workload if p.id in chosen.costs)
    wins = Counter(row.picked for row in rows)
    kept = [evidence.variants[c] for c in selection.kept]
    kept += [g for g in generics if g.candidate.id not in selection.kept]
    regrets = list(selection.regret.values())
    held_out = list(selection.held_out.values())
    weights = evidence.weights
    return OperatorReport(
        operator=evidence.operator.name,
        target=evidence.target.name,
        tried=len(evidence.variants),
        statuses=dict(sorted(Counter(_worst(evidence, e) for e in evidence.variants.values()).items())),
        problems=rows,
        variants=tuple(_variant_row(e, evidence, wins[e.name], rooflines.best_of(e.candidate.id)) for e in kept),
        failures=tuple(failures_of(evidence)),
        mean_regret=statistics.fmean(regrets) if regrets else 0.0,
        weighted_regret=_weighted_mean(selection.regret, weights) if weights else None,
        held_out_regret=statistics.fmean(held_out) if held_out else None,
        not_held_out=len(selection.regret.keys() - selection.held_out.keys()),
        note=evidence.note,
        survey=_survey(chosen),
        candidates=_candidate_rows(evidence, rooflines),
        roofline_of=rooflines.of,
        curves=_curves_of(chosen),
        maps=_maps_of(chosen),
        seconds=_seconds(evidence),
    )


def _seconds(evidence: Evidence) -> dict[str, float]:
    """Seconds of measurements by phase, the largest first. Measurements from records have none."""
    by_phase: dict[str, float] = {}
    for phase, seconds in (part for m in evidence.made() for part in m.phases.items()):
        by_phase[phase] = by_phase.get(phase, 0.0) + seconds
    return {phase: round(s, 2) for phase, s in sorted(by_phase.items(), key=lambda p: (-p[1], p[0])) if s >= 0.01}


def _survey(chosen: Chosen) -> SurveyRow | None:
    judged = chosen.selection.judged
    if judged is None:
        return None
    worst, where = judged.worst
    return SurveyRow(
        shapes=len(judged.regret),
        learned_from=judged.learned_from,
        mean=judged.mean,
        p95=judged.percentile(0.95),
        worst=worst,
        where=where,
        points=_points_of(chosen),
        regimes=_regime_rows(chosen),
    )


def _regime_rows(chosen: Chosen) -> tuple[RegimeRow, ...]:
    """How each regime of each kind is decided, and what that loses; without regimes of which nothing is known."""
    rows = []
    for (kind, regime), rule in chosen.selection.rules.items():
        judged = rule.judged
        if not judged.regret and not judged.learned_from:
            continue
        row = RegimeRow(
            kind=kind_text(chosen.evidence.operator, kind),
            regime=regime,
            decides=rule.by,
            shapes=len(judged.regret) + judged.learned_from,
            held_out=len(judged.regret),
        )
        if judged.regret:
            worst, where = judged.worst
            row = msgspec.structs.replace(row, mean=judged.mean, p95=judged.percentile(0.95), worst=worst, where=where)
        rows.append(row)
    return tuple(rows)


def _row(chosen: Chosen, problem_id: str, times: Mapping[str, float], rooflines: Rooflines) -> ProblemRow:
    """One problem. What a race left out is not the winner, however fast its screen was: `times` account for that."""
    evidence = chosen.evidence
    problem = next(p for p in evidence.workload if p.id == problem_id)
    facts = evidence.operator.facts(problem)
    measured = evidence.row(problem_id)
    best = min(times, key=lambda c: (times[c], c))
    first = picked(chosen.selection, problem_id, facts, guards_of(evidence))
    name = evidence.variants[first].name if first else "generic"
    held_out = chosen.selection.held_out.get(problem_id)
    runner_up = sorted(times.values())[1] if len(times) > 1 else float("inf")
    ns, raw = times[best], evidence.measurements[problem_id][best]
    share = rooflines.on(problem_id, best)
    return ProblemRow(
        problem=problem_id,
        winner=evidence.variants[best].name,
        ns=ns,
        spread=spread(raw.final or raw.screen),
        picked=name,
        regret=chosen.selection.regret.get(problem_id, 0.0),
        tie=runner_up <= ns * (1 + tie_band(measured[best])),
        baselines={
            c.removeprefix(BASELINE): m.ns for c, m in sorted(measured.items()) if is_baseline(c) and m.ns is not None
        },
        flops=evidence.operator.flops.evaluate(facts),
        bytes=evidence.operator.compulsory_bytes(problem),
        noise=tie_band(measured[best]),
        paired=paired_ratio(measured[best], [m for c, m in measured.items() if is_baseline(c)]),
        remark=measured[best].reason,
        others=measured[best].others,
        weight=evidence.operator.weight(problem),
        roofline=share[0] if share is not None else None,
        bound=share[1].bound if share is not None else "",
        kind=kind_text(evidence.operator, kind_of(evidence.operator, facts)),
        dims=dict(problem.dims),
        runners=_runners_on(evidence, problem_id, () if first is None else (first,)),
        held_out=None if held_out is None else round(held_out, 5),
        began=evidence.began.get(problem_id, ""),
    )


def _weighted_mean(regrets: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    """The weighted mean of regrets, None if there are none. The weights are those of the problems."""
    most = max((weights[p] for p in regrets), default=1.0)  # dividing by it keeps the sum within a float's range
    shares = {p: weights[p] / most for p in regrets}
    return math.fsum(r * shares[p] for p, r in regrets.items()) / math.fsum(shares.values()) if regrets else None


def paired_ratio(winner: Measurement, baselines: Sequence[Measurement]) -> tuple[float, float] | None:
    """How many times faster a winner is than the fastest baseline in a race's rounds, and the standard error."""
    timed = [b for b in baselines if b.ns is not None]
    fastest = min(timed, key=lambda b: (b.ns, b.candidate), default=None)
    if fastest is None or not winner.final or not fastest.final or winner.race != fastest.race:
        return None
    if not all((*winner.final, *fastest.final)) or len(winner.final) != len(fastest.final):
        return None  # too short for the clock, or so far behind that it was timed once
    gain, error = paired_gain(fastest.final, winner.final)
    return 1 / (1 - gain), error / (1 - gain) ** 2


def _worst(evidence: Evidence, variant: Variant) -> str:
    """The first status of a candidate that is not ok."""
    if variant.does_not_compile:
        return variant.made.status
    statuses = [m.status for m in evidence.made_of(variant.id)]
    return next((s for s in statuses if s != "ok"), "ok" if statuses else NOT_TRIED)


def failures_of(evidence: Evidence) -> list[DroppedCandidate]:
    """Dropped candidates, each with the reason of its first failure and the command that tries it again."""
    failures: list[DroppedCandidate] = []
    for variant in evidence.variants.values():
        faults: list[tuple[str, str, Problem | None]] = []
        if variant.does_not_compile:
            faults.append((variant.made.status, variant.made.error, None))
        bad = [m for m in evidence.made_of(variant.id) if m.status != "ok"]
        faults += [(m.status, m.reason, m.problem) for m in sorted(bad, key=lambda m: m.status)]
        for (status, _), alike in itertools.groupby(faults, lambda fault: (fault[0], fault[2] is None)):
            (_, reason, problem), *more = alike
            failures.append(
                DroppedCandidate(
                    candidate=variant.candidate.label,
                    status=status,
                    reason=reason,
                    count=1 + len(more),
                    again=again(evidence.operator, variant, evidence.target.name, problem, reason),
                )
            )
    return failures


def generic_only(operator: str, generics: Sequence[Variant]) -> Iterator[OperatorReport]:
    """The reports of an operator that was not tuned at all, by target."""
    for target in dict.fromkeys(g.candidate.target for g in generics):
        rows = tuple(_variant_row(g) for g in generics if g.candidate.target == target)
        yield OperatorReport(operator=operator, target=target, variants=rows)


def _variant_row(
    variant: Variant, evidence: Evidence | None = None, wins: int = 0, best: _BestShare | None = None
) -> VariantRow:
    measured = evidence.made_of(variant.id) if evidence is not None else []
    return VariantRow(
        name=variant.name,
        label=variant.candidate.label,
        target=variant.candidate.target,
        bytes=variant.text_bytes,
        wins=wins,
        rebuilt=evidence is not None and variant.rebuilt,
        varies=any(m.bitwise is False for m in measured),
        resources=variant.resources,
        roofline=best.share if best is not None else None,
        kernel=variant.candidate.kernel,
    )


def _runners_on(evidence: Evidence, problem: str, beside: Iterable[str] = ()) -> tuple[RaceRunner, ...]:
    """What raced on a problem, and candidates in `beside`, the fastest first; without a race, the best screens."""
    row = evidence.row(problem)
    timed = {
        c: m
        for c, m in row.items()
        if m.ns is not None and (is_baseline(c) or (c in evidence.variants and not evidence.failed(c)))
    }
    raced = {c for c, m in timed.items() if m.final}
    if all(map(is_baseline, raced)):
        ours = sorted((c for c in timed if not is_baseline(c)), key=lambda c: (timed[c].ns or 0.0, c))
        raced.update(ours[:_MOST_RUNNERS])
    shown = {c for c in timed if c in raced or c in set(beside) or is_baseline(c)}
    runners = [_runner(evidence, c, timed[c]) for c in sorted(shown)]
    return tuple(sorted(runners, key=lambda r: (r.ns, r.name)))


def _runner(evidence: Evidence, candidate: str, measured: Measurement) -> RaceRunner:
    samples = measured.final or measured.screen
    low, high = _quartiles(samples)
    variant = evidence.variants.get(candidate)
    vendors = variant is not None and evidence.is_vendors(variant)
    return RaceRunner(
        name=candidate.removeprefix(BASELINE) if variant is None else variant.name,
        whose="baseline" if variant is None else "vendor" if vendors else "kernel",
        ns=round(statistics.median(samples), 2),
        low=low,
        high=high,
        samples=len(samples),
        raced=bool(measured.final),
    )


def _quartiles(samples: Sequence[float]) -> tuple[float, float]:
    if len(samples) < 4:
        return round(min(samples), 2), round(max(samples), 2)
    low, _, high = statistics.quantiles(samples, n=4)
    return round(low, 2), round(high, 2)
