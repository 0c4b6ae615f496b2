"""The story of a build: what was tried, what won, and why the rest was dropped."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from aot_tune.bench.protocol.measurement_records import BASELINE, Device, Measurement, is_baseline
from aot_tune.bench.times import paired_gain, spread
from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Chosen, Evidence, guards_of
from aot_tune.pipeline.known_times import tie_band
from aot_tune.pipeline.naming import again, variant_name
from aot_tune.pipeline.shipping.dispatch_maps import curves_of, kind_text, maps_of, points_of
from aot_tune.pipeline.shipping.resource_rows import Rooflines, candidate_rows, resources_of
from aot_tune.report.report_records import (
    NOT_TRIED,
    DroppedCandidate,
    OperatorReport,
    ProblemRow,
    RaceRunner,
    SurveyRow,
    VariantRow,
)
from aot_tune.select import picked
from aot_tune.spec.workload import kind_of

__all__ = ["failures_of", "generic_only", "paired_ratio", "tell", "weighted_mean"]

_MOST_RUNNERS = 6
"""How many candidates are shown, beside the baselines, for a problem without a race."""


def _bytes(entry: Variant) -> int:
    return entry.object.resources.get("text", 0) if entry.object is not None else 0


def tell(one: Chosen, generics: Sequence[Variant], known: Mapping[str, Device]) -> OperatorReport:
    """The report of one operator on one target. `known` has devices by digest."""
    evidence, selection = one.evidence, one.selection
    times, rooflines = evidence.times(), Rooflines(evidence, known)
    rows = tuple(_row(one, p.id, times[p.id], rooflines) for p in evidence.workload if p.id in one.costs)
    wins = Counter(row.picked for row in rows)
    kept = [evidence.entries[c] for c in selection.kept]
    kept += [g for g in generics if g.candidate.id not in selection.kept]
    regrets = list(selection.regret.values())
    held_out = list(selection.held_out.values())
    weights = evidence.weights
    return OperatorReport(
        operator=evidence.operator.name,
        target=evidence.target.name,
        tried=len(evidence.entries),
        statuses=dict(sorted(Counter(_worst(evidence, e) for e in evidence.entries.values()).items())),
        problems=rows,
        variants=tuple(
            VariantRow(
                name=variant_name(e),
                label=e.candidate.label,
                target=e.candidate.target,
                bytes=_bytes(e),
                wins=wins[variant_name(e)],
                rebuilt=e.rebuilt,
                varies=any(m.bitwise is False for m in _measurements_of(evidence, e)),
                resources=resources_of(e),
                roofline=best.share if (best := rooflines.best_of(e.candidate.id)) is not None else None,
                kernel=e.candidate.kernel,
            )
            for e in kept
        ),
        failures=tuple(failures_of(evidence)),
        mean_regret=statistics.fmean(regrets) if regrets else 0.0,
        weighted_regret=weighted_mean(selection.regret, weights) if weights else None,
        held_out_regret=statistics.fmean(held_out) if held_out else None,
        not_held_out=len(selection.regret.keys() - selection.held_out.keys()),
        note=evidence.note,
        survey=_survey(one),
        candidates=candidate_rows(evidence, rooflines),
        roofline_of=rooflines.of,
        curves=curves_of(one),
        maps=maps_of(one),
        seconds=_seconds(evidence),
    )


def _seconds(evidence: Evidence) -> dict[str, float]:
    """Seconds of measurements by phase, the largest first. Measurements from records have none."""
    found: dict[str, float] = {}
    for row in evidence.measurements.values():
        for measured in row.values():
            for phase, seconds in measured.phases.items():
                found[phase] = found.get(phase, 0.0) + seconds
    return {phase: round(s, 2) for phase, s in sorted(found.items(), key=lambda p: (-p[1], p[0])) if s >= 0.01}


def _survey(one: Chosen) -> SurveyRow | None:
    judged = one.selection.judged
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
        points=points_of(one),
    )


def _row(one: Chosen, problem_id: str, times: Mapping[str, float], rooflines: Rooflines) -> ProblemRow:
    """One problem. What a race left out is not the winner, however fast its screen was: `times` account for that."""
    evidence = one.evidence
    problem = next(p for p in evidence.workload if p.id == problem_id)
    facts = evidence.operator.facts(problem)
    measured = evidence.row(problem_id)
    best = min(times, key=lambda c: (times[c], c))
    first = picked(one.selection, problem_id, facts, guards_of(evidence))
    name = variant_name(evidence.entries[first]) if first else "generic"
    held_out = one.selection.held_out.get(problem_id)
    runner_up = sorted(times.values())[1] if len(times) > 1 else float("inf")
    ns, raw = times[best], evidence.measurements[problem_id][best]
    share = rooflines.on(problem_id, best)
    return ProblemRow(
        problem=problem_id,
        winner=variant_name(evidence.entries[best]),
        ns=ns,
        spread=spread(raw.final or raw.screen),
        picked=name,
        regret=one.selection.regret.get(problem_id, 0.0),
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


def weighted_mean(regrets: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
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


def _measurements_of(evidence: Evidence, entry: Variant) -> list[Measurement]:
    return [row[entry.candidate.id] for row in evidence.measurements.values() if entry.candidate.id in row]


def _worst(evidence: Evidence, entry: Variant) -> str:
    """The first status of a candidate that is not ok."""
    if entry.object is not None and not entry.compiled:
        return entry.object.status
    statuses = [m.status for m in _measurements_of(evidence, entry)]
    return next((s for s in statuses if s != "ok"), "ok" if statuses else NOT_TRIED)


def failures_of(evidence: Evidence) -> list[DroppedCandidate]:
    """Dropped candidates, each with the reason of its first failure and the command that tries it again."""
    found: list[DroppedCandidate] = []
    operator, target = evidence.operator, evidence.target.name
    for entry in evidence.entries.values():
        label, made = entry.candidate.label, entry.object
        if made is not None and not entry.compiled:
            command = again(operator, entry, target)
            found.append(
                DroppedCandidate(candidate=label, status=made.status, reason=made.error, count=1, again=command)
            )
        bad = [m for m in _measurements_of(evidence, entry) if m.status != "ok"]
        for status in sorted({m.status for m in bad}):
            first, *more = [m for m in bad if m.status == status]
            command = again(operator, entry, target, first.problem)
            count = 1 + len(more)
            found.append(
                DroppedCandidate(candidate=label, status=status, reason=first.reason, count=count, again=command)
            )
    return found


def generic_only(operator: str, generic: Variant) -> OperatorReport:
    """The report of an operator that was not tuned at all."""
    row = VariantRow(
        name=variant_name(generic),
        label=generic.candidate.label,
        target=generic.candidate.target,
        bytes=_bytes(generic),
        wins=0,
        rebuilt=False,
        resources=resources_of(generic),
        kernel=generic.candidate.kernel,
    )
    return OperatorReport(
        operator=operator,
        target=generic.candidate.target,
        tried=0,
        statuses={},
        problems=(),
        variants=(row,),
        failures=(),
        mean_regret=0.0,
        held_out_regret=None,
    )


def _runners_on(evidence: Evidence, problem: str, beside: Iterable[str] = ()) -> tuple[RaceRunner, ...]:
    """What raced on a problem, and the candidates in `beside`, the fastest first; without a race, the best screens.

    The times of a candidate that failed elsewhere do not count.
    """
    row = evidence.row(problem)
    timed = {c: m for c, m in row.items() if m.ns is not None and (is_baseline(c) or _is_in_race(evidence, c))}
    raced = {c for c, m in timed.items() if m.final}
    if all(map(is_baseline, raced)):
        ours = sorted((c for c in timed if not is_baseline(c)), key=lambda c: (timed[c].ns or 0.0, c))
        raced.update(ours[:_MOST_RUNNERS])
    shown = {c for c in timed if c in raced or c in set(beside) or is_baseline(c)}
    found = [_runner(evidence, c, timed[c]) for c in sorted(shown)]
    return tuple(sorted(found, key=lambda r: (r.ns, r.name)))


def _is_in_race(evidence: Evidence, candidate: str) -> bool:
    return candidate in evidence.entries and not evidence.failed(candidate)


def _runner(evidence: Evidence, candidate: str, measured: Measurement) -> RaceRunner:
    samples = measured.final or measured.screen
    low, high = _quartiles(samples)
    entry = evidence.entries.get(candidate)
    vendors = entry is not None and evidence.is_vendors(entry)
    return RaceRunner(
        name=candidate.removeprefix(BASELINE) if entry is None else variant_name(entry),
        whose="baseline" if entry is None else "vendor" if vendors else "kernel",
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
