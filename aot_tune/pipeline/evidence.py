"""What a build knows of the candidates of one operator on one target, gathered stage by stage."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from aot_tune.bench.protocol.measurement_records import Measurement, is_baseline
from aot_tune.bench.times import median_error, without_drift
from aot_tune.compile import Object, Variant
from aot_tune.pipeline.guards import Conditions
from aot_tune.pipeline.surveyed_times import SurveyedTimes
from aot_tune.select import Costs, Selection
from aot_tune.spec import Config, Facts, Operator, Problem, Target, all_of
from aot_tune.spec.kernel import worthwhile_of
from aot_tune.support.digests import canonical_digest

__all__ = ["Chosen", "Evidence", "Proposal", "serves", "share_among_targets", "tie_band"]


_LEFT_OUT = 1.03
"""A candidate that a race left out counts as slower than the race's best by at least this factor. The
factor exceeds the regret at which a variant may replace others, because the candidate has only a short screen. A
product that draws much power was 1 % behind in its screen, and 8 % in a race."""
_TRIFLE = 1e-6
"""What does not beat a vendor's variant costs this much more. It ranks behind that variant, without a real regret."""


@dataclass(frozen=True)
class Proposal:
    """A candidate to try: on problems by id, or on all. `named`: a record of a like device names it for these."""

    variant: Variant
    only: frozenset[str] | None = None
    named: bool = False


@dataclass
class Evidence:
    """One operator on one target: its candidates (the generic one last) and their measurements by problem id.

    A variant is replaced when it gets its object. `only` has, by candidate, the ids of the problems that it is tried
    on; one that it lacks is tried on all. `named` are candidates that a record of a like device names. `due` ones are
    compiled next, and nothing interrupts that. `standing_in` are kept untimed, because there was no time to measure.
    `fresh` has, by problem id, the candidates that were screened since the last race on it. `passed_over` has pairs of
    candidate and problem that are not tried, see `prune/by_similar_problem`. `broken` has candidates that failed.
    `began` has, by problem id, what its tuning began with, and `opening` the slugs of the records among that.
    `left_out`: the operator is not tuned. Only its generic variants are verified, and nothing is measured. `brief`: the
    target is not the one that was asked for and got only a short time. `too_long` are ids of problems that nothing is
    tried on, because that would take out of proportion long.
    """

    operator: Operator
    target: Target
    entries: dict[str, Variant]
    measurements: dict[str, dict[str, Measurement]] = field(default_factory=dict)
    only: dict[str, frozenset[str]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    due: set[str] = field(default_factory=set)
    standing_in: set[str] = field(default_factory=set)
    fresh: dict[str, set[str]] = field(default_factory=dict)
    passed_over: set[tuple[str, str]] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    too_large: set[str] = field(default_factory=set)
    surveyed: SurveyedTimes = field(default_factory=SurveyedTimes)
    began: dict[str, str] = field(default_factory=dict)
    opening: str = ""
    note: str = ""
    left_out: bool = False
    brief: bool = False
    too_long: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._conditions = Conditions(self.operator)
        self._level: dict[str, tuple[tuple[Measurement, ...], tuple[Measurement, ...]]] = {}

    def as_now(self) -> Evidence:
        """A copy of the current state. Devices may add to this object meanwhile."""
        now = copy.copy(self)
        now.measurements = {problem: dict(row) for problem, row in list(self.measurements.items())}
        now.fresh = {problem: set(new) for problem, new in list(self.fresh.items())}
        now.passed_over, now.broken = set(self.passed_over), set(self.broken)
        return now

    def leave_out(self) -> None:
        """Measure nothing: AOT_TUNE_FILTER names no kernel that could be chosen here."""
        self.left_out = True
        self.remark(
            f"not tuned for {self.target.name}, the generic variant serves: AOT_TUNE_FILTER names no kernel there"
        )

    def leave_problem_out(self, problem: str) -> None:
        """Measure nothing more on a problem, and forget what is known of it: there is no memory for it here."""
        self.too_large.add(problem)
        self.measurements.pop(problem, None)
        self.race_done(problem)

    def leave_to_others(self, seconds: Mapping[str, float]) -> None:
        """Try nothing on problems that would take so many seconds, by id. The nearest others decide there."""
        self.too_long = frozenset(seconds)
        self.remark(
            f"{len(seconds)} of {len(self.workload)} problems are not measured, the nearest others decide there: they "
            f"would take about {sum(seconds.values()) / 60:.0f} min; AOT_TUNE_EFFORT=thorough measures them"
        )

    def remark(self, note: str) -> None:
        """Set the remark for the report, unless there is one already."""
        self.note = self.note or note

    def nothing_survived(self) -> None:
        """Note that only the generic candidate is left. This replaces any other remark."""
        self.note = "no candidate survived: only the generic variant is there"

    def try_too(self, proposals: Iterable[Proposal]) -> bool:
        """Try what is proposed. A candidate that is known is tried on the proposal's problems too.

        Returns whether anything is new.
        """
        fresh = False
        for proposal in proposals:
            name, problems = proposal.variant.id, proposal.only
            if name in self.entries:
                before = self.only.get(name)
                problems = None if before is None or problems is None else before | problems
                if problems == before:
                    continue
            elif proposal.named:
                self.named.add(name)
            self.entries.setdefault(name, proposal.variant)
            self.only.pop(name, None)
            if problems is not None:
                self.only[name] = problems
            fresh = True
        return fresh

    def has_become(self, candidate: str, made: Object | None) -> None:
        """Take the object that a candidate was compiled to, if it is one of these; None takes that back."""
        if candidate in self.entries:
            self.entries[candidate] = msgspec.structs.replace(self.entries[candidate], object=made)

    def is_recorded_as(self, candidate: str, code: str) -> None:
        """Note the digest of a candidate's code that a database has measured: compiling gives the same code."""
        self.entries[candidate] = msgspec.structs.replace(self.entries[candidate], recorded=code)

    def now(self, entries: Iterable[Variant]) -> list[Variant]:
        """Some of the candidates, with the objects that they have now."""
        return [self.entries[e.id] for e in entries]

    def stand_in(self, candidate: str) -> None:
        """Keep a candidate without a time, for calls of which nothing was measured."""
        self.standing_in.add(candidate)

    def fills_in(self, entry: Variant) -> bool:
        """Whether a candidate's kernel fills in, or the candidate stands in for what nobody measured."""
        return entry.id in self.standing_in or self.operator.kernel(entry.candidate.kernel).fills_in

    @property
    def workload(self) -> tuple[Problem, ...]:
        """The problems worth tuning on the target."""
        known = () if self.left_out else self.operator.workload_for(self.target.family)
        return tuple(p for p in known if p.id not in self.too_large) if self.too_large else known

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each problem, by id; empty if all count the same."""
        return self.operator.weights_for(self.target.family)

    def meant_for(self, entry: Variant, problem: Problem) -> bool:
        """Whether a candidate can serve a problem and its kernel is worth a try on it."""
        candidate = entry.candidate
        if problem.id in self.too_long:
            return False
        only = self.only.get(candidate.id)
        if (only is not None and problem.id not in only) or (candidate.id, problem.id) in self.passed_over:
            return False
        known = self._conditions.known(candidate.id, problem)
        if known is not None:
            return known
        return self.worth_a_try(entry, problem)

    def worth_a_try(self, entry: Variant, problem: Problem) -> bool:
        """Whether a candidate can serve a problem and its kernel is worth a try on it, whatever was requested."""
        kernel = self.operator.kernel(entry.candidate.kernel)
        worthwhile = worthwhile_of(kernel, entry.candidate.config)
        return self._conditions.hold(entry.candidate.id, (*entry.requires, *worthwhile), problem)

    def tried(self, problem: Problem, among: Iterable[Variant] | None = None) -> list[Variant]:
        """Compiled candidates that are meant for a problem: of all entries, or of those in `among`."""
        entries = self.entries.values() if among is None else among
        return [e for e in entries if e.code and self.meant_for(e, problem)]

    @property
    def unserved(self) -> list[Variant]:
        """Generic variants that serve no problem of the workload, such as those of other dtypes."""
        generics = [e for e in self.entries.values() if e.candidate.generic and e.compiled]
        return [e for e in generics if not any(self.meant_for(e, p) for p in self.workload)]

    def has(self, entry: Variant, problem: Problem) -> bool:
        """Whether there is a measurement of a candidate on a problem."""
        return entry.candidate.id in self.measurements.get(problem.id, {})

    def lacks(self, entry: Variant) -> bool:
        """Whether a measurement is missing on some problem that a candidate is meant for."""
        return any(self.meant_for(entry, p) and not self.has(entry, p) for p in self.workload)

    def add(self, measurement: Measurement) -> None:
        """Add a measurement. A race's replaces the screen of the same candidate, unless the race left it out."""
        row = self.measurements.setdefault(measurement.problem.id, {})
        if measurement.status != "skipped" or measurement.candidate not in row:
            row[measurement.candidate] = measurement
        if _fails(measurement):
            self.broken.add(measurement.candidate)

    def is_bound(self, entry: Variant) -> bool:
        """Whether a candidate is an algorithm of a vendor's library that was found for single problems."""
        kernel = self.operator.kernel(entry.candidate.kernel)
        return kernel.algorithms is not None and not kernel.has(entry.candidate.config, self.target.facts)

    def add_screen(self, measurement: Measurement) -> None:
        """Add a screen. The next race on its problem may be about it."""
        self.add(measurement)
        self.race_about(measurement.problem.id, {measurement.candidate})

    def race_about(self, problem: str, candidates: Iterable[str]) -> None:
        """Note candidates: if one of them is among the best of a problem, a race is due there."""
        self.fresh.setdefault(problem, set()).update(candidates)

    def race_done(self, problem: str) -> None:
        """Note that no race is due on a problem."""
        self.fresh.pop(problem, None)

    def pass_over(self, problem: Problem, candidates: Iterable[str]) -> None:
        """Do not try candidates on a problem."""
        self.passed_over.update((c, problem.id) for c in candidates)

    def reconsider(self) -> set[tuple[str, str]]:
        """Pass over nothing any more. Returns what was passed over, as candidate and problem ids."""
        passed, self.passed_over = self.passed_over, set()
        return passed

    def is_vendors(self, entry: Variant) -> bool:
        """Whether a candidate is an algorithm of a vendor's library."""
        return self.operator.kernel(entry.candidate.kernel).algorithms is not None

    def leaves_choice(self, entry: Variant) -> bool:
        """Whether a candidate lets a vendor's library choose: for the whole of its work, or for one stage."""
        if self.is_vendors(entry):
            return not self.is_bound(entry)
        vendors = {k.backend for k in self.operator.kernels if k.algorithms is not None}
        return not vendors.isdisjoint(self.operator.kernel(entry.candidate.kernel).stages)

    def failed(self, candidate: str) -> bool:
        """Whether a candidate did not compile or failed on a problem. Then it is out for all problems."""
        made = self.entries[candidate].object
        if made is not None and made.status != "ok":
            return True
        return any(_fails(row[candidate]) for row in self.measurements.values() if candidate in row)

    def unmeasured(self) -> list[Problem]:
        """Problems that only generic variants were timed on, though others are meant for them and did not fail."""
        tuned = [e for e in self.entries.values() if not e.candidate.generic and not self.failed(e.candidate.id)]
        timed = {p: {e.candidate.id for e in tuned}.intersection(row) for p, row in self.times().items()}
        return [p for p in self.workload if not timed.get(p.id) and any(self.meant_for(e, p) for e in tuned)]

    def config_costs(self) -> dict[tuple[str, str], tuple[Config, float]]:
        """By kernel and digest: a config and its cost, the geometric mean of its times over each problem's best time.

        The mean is over all measured candidates of a config, such as one for each choice of dtypes. It is infinite if
        none was measured and one failed. Configs of which nothing is known are left out.
        """
        logs: dict[str, list[float]] = {}
        for row in self.costs().values():
            best = min(row.values())
            for candidate, time in row.items():
                logs.setdefault(candidate, []).append(math.log(time / best))
        found: dict[tuple[str, str], tuple[Config, list[float]]] = {}
        for name, entry in self.entries.items():
            one = entry.candidate
            known = logs.get(name) or ([math.inf] if self.failed(name) else [])
            found.setdefault((one.kernel, canonical_digest(one.config)), (one.config, []))[1].extend(known)
        return {
            key: (config, math.exp(statistics.fmean([v for v in values if v < math.inf] or values)))
            for key, (config, values) in found.items()
            if values
        }

    def row(self, problem: str) -> Mapping[str, Measurement]:
        """Measurements on a problem, by candidate. In races, the drift that a round had in common is taken out."""
        row = self.measurements[problem]
        raced = tuple(m for m in row.values() if m.final)
        known = self._level.get(problem)
        if (
            known is None
            or len(known[0]) != len(raced)
            or any(a is not b for a, b in zip(known[0], raced, strict=True))
        ):
            known = self._level[problem] = (raced, _without_drift(raced))
        return {**row, **{m.candidate: m for m in known[1]}}

    def times(self) -> Costs:
        """Medians in ns of verified candidates, by problem and candidate.

        A race says more than the few samples of a screen. So what a race left out counts as slower than the race's
        best: by more than the noise, and by so much that it cannot take the best's place.
        """
        bad = {c for c in self.entries if self.failed(c)}
        found: Costs = {}
        for problem in self.measurements:
            row = self.row(problem)
            times = {
                c: m.ns
                for c, m in row.items()
                if m.status == "ok" and m.ns is not None and c not in bad and not is_baseline(c)
            }
            raced = [c for c in times if row[c].final]
            if raced:
                least = max(_tie_limit(times, row, raced), min(times[c] for c in raced) * _LEFT_OUT)
                times = {c: t if row[c].final else max(t, math.nextafter(least, math.inf)) for c, t in times.items()}
            if times:
                found[problem] = times
        return found

    def costs(self) -> Costs:
        """The times. Those of a race within the noise of the best count as the best time."""
        found: Costs = {}
        for problem, times in self.times().items():
            row = self.row(problem)
            limit = _tie_limit(times, row, times)
            best = min(times.values())
            found[problem] = {c: best if row[c].final and t <= limit else t for c, t in times.items()}
        return found

    def choice_costs(self) -> Costs:
        """The costs that a choice uses: a vendor's variant costs least, unless it is beaten by more than the noise.

        What does not beat the vendor's fastest raced variant by more than the noise costs slightly more than it.
        """
        found, times = self.costs(), self.times()
        for problem, costs in found.items():
            row, own = self.row(problem), times[problem]
            raced = [c for c in costs if self.is_vendors(self.entries[c]) and row[c].final]
            if not raced:
                continue
            first = min(raced, key=lambda c: (own[c], c))
            noise = _tie_limit(own, row, own) / min(own.values())
            for c in costs:
                if own[c] * noise >= own[first] and not self.is_vendors(self.entries[c]):
                    costs[c] = max(costs[c], costs[first] * (1 + _TRIFLE))
        return found


def _without_drift(raced: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """The measurements of races in their order. Of each race, the drift that rounds have in common is taken out."""
    together: dict[tuple[str | None, int], list[int]] = {}
    for i, m in enumerate(raced):
        if m.status == "ok" and m.final and all(m.final):
            together.setdefault((m.race, len(m.final)), []).append(i)
    found = list(raced)
    for places in together.values():
        for i, final in zip(places, without_drift([raced[i].final or () for i in places]), strict=True):
            found[i] = msgspec.structs.replace(raced[i], final=final) if len(places) > 1 else raced[i]
    return tuple(found)


def _tie_limit(times: Mapping[str, float], row: Mapping[str, Measurement], among: Iterable[str]) -> float:
    """Time in ns up to which the best of some candidates is not beaten: the difference is noise."""
    best = min(among, key=lambda c: (times[c], c))
    return times[best] * (1 + tie_band(row[best]))


@dataclass(frozen=True)
class Chosen:
    """A target's selection, with the evidence and the costs that it is based on."""

    evidence: Evidence
    selection: Selection
    costs: Costs


def serves(evidence: Evidence, candidate: str, facts: Facts) -> bool:
    """Whether the guards of a candidate hold for the facts of a call."""
    return all_of(evidence.entries[candidate].requires, facts)


def share_among_targets(found: Sequence[Evidence]) -> None:
    """Give all targets of an operator the same measurement of a generic variant on a problem: a record holds one.

    The same is done for baselines, which tell the pace of a race's rounds. Each target's races time them anew. Without
    this, a replay could decide by other times than the build did. The first target's measurement is kept, unless the
    variant failed on another target.
    """
    places = [
        (row, name, (row[name].device, problem, name))
        for evidence in found
        for problem, row in evidence.measurements.items()
        for name in row
        if is_baseline(name) or (name in evidence.entries and evidence.entries[name].candidate.generic)
    ]
    kept: dict[tuple[str, str, str], Measurement] = {}
    for row, name, key in places:
        if key not in kept or (not is_baseline(name) and _fails(row[name]) and not _fails(kept[key])):
            kept[key] = row[name]
    for row, name, key in places:
        row[name] = kept[key]


def _fails(measurement: Measurement) -> bool:
    return measurement.status not in ("ok", "skipped")


def tie_band(best: Measurement) -> float:
    """Relative gain below which a difference is noise: 1 %, or twice the standard error of the best's median."""
    return max(0.01, 2 * median_error(best.final or best.screen))
