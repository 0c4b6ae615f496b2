"""What a build knows of the candidates of one operator on one target, gathered stage by stage."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Measurement, is_baseline
from aot_tune.compile import Object, Variant
from aot_tune.pipeline.known_times import (
    Measurements,
    Row,
    SurveyedTimes,
    adding,
    choice_costs_of,
    costs_of,
    fails,
    processors_of,
    times_of,
)
from aot_tune.select import Costs, Guards, Selection
from aot_tune.spec import Expr, Facts, Operator, Problem, Target
from aot_tune.spec.kernel import worthwhile_of


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
    candidate and problem that are not tried, see `pruning`. `broken` has candidates that failed.
    `began` has, by problem id, what its tuning began with, and `opening` the slugs of the records among that.
    `left_out`: the operator is not tuned. Only its generic variants are verified, and nothing is measured. `brief`: the
    target is not the one that was asked for and got only a short time. `too_long` are ids of problems that nothing is
    tried on, because that would take out of proportion long.
    """

    operator: Operator
    target: Target
    variants: dict[str, Variant]
    measurements: Measurements = field(default_factory=dict)
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
        self._conditions = _Conditions(self.operator)
        self._lock = threading.Lock()

    def as_now(self) -> Evidence:
        """A copy of the current state. Devices may add to this object meanwhile."""
        now = copy.copy(self)
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
        with self._lock:
            self.measurements = {p: row for p, row in self.measurements.items() if p != problem}
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
        """Try what is proposed, known candidates on more problems too. Returns whether anything is new."""
        fresh = False
        for proposal in proposals:
            name, problems = proposal.variant.id, proposal.only
            if name in self.variants:
                before = self.only.get(name)
                problems = None if before is None or problems is None else before | problems
                if problems == before:
                    continue
            elif proposal.named:
                self.named.add(name)
            self.variants.setdefault(name, proposal.variant)
            self.only.pop(name, None)
            if problems is not None:
                self.only[name] = problems
            fresh = True
        return fresh

    def has_become(self, candidate: str, made: Object | None) -> None:
        """Take the object that a candidate was compiled to, if it is one of these; None takes that back."""
        if candidate in self.variants:
            self.variants[candidate] = msgspec.structs.replace(self.variants[candidate], object=made)

    def is_recorded_as(self, candidate: str, code: str) -> None:
        """Note the digest of a candidate's code that a database has measured: compiling gives the same code."""
        self.variants[candidate] = msgspec.structs.replace(self.variants[candidate], recorded=code)

    def now(self, variants: Iterable[Variant]) -> list[Variant]:
        """Some of the candidates, with the objects that they have now."""
        return [self.variants[e.id] for e in variants]

    def stand_in(self, candidate: str) -> None:
        """Keep a candidate without a time, for calls of which nothing was measured."""
        self.standing_in.add(candidate)

    def fills_in(self, variant: Variant) -> bool:
        """Whether a candidate's kernel fills in, or the candidate stands in for what nobody measured."""
        return variant.id in self.standing_in or self.operator.kernel(variant.candidate.kernel).fills_in

    @property
    def workload(self) -> tuple[Problem, ...]:
        """The problems worth tuning on the target."""
        problems = () if self.left_out else self.operator.workload_for(self.target.family)
        return tuple(p for p in problems if p.id not in self.too_large) if self.too_large else problems

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each problem, by id; empty if all count the same."""
        return self.operator.weights_for(self.target.family)

    def meant_for(self, variant: Variant, problem: Problem) -> bool:
        """Whether a candidate can serve a problem and its kernel is worth a try on it."""
        candidate = variant.candidate
        if problem.id in self.too_long:
            return False
        only = self.only.get(candidate.id)
        if (only is not None and problem.id not in only) or (candidate.id, problem.id) in self.passed_over:
            return False
        answer = self._conditions.known(candidate.id, problem)
        if answer is not None:
            return answer
        return self.worth_a_try(variant, problem)

    def worth_a_try(self, variant: Variant, problem: Problem) -> bool:
        """Whether a candidate can serve a problem and its kernel is worth a try on it, whatever was requested."""
        kernel = self.operator.kernel(variant.candidate.kernel)
        worthwhile = worthwhile_of(kernel, variant.candidate.config)
        return self._conditions.hold(variant.candidate.id, (*variant.requires, *worthwhile), problem)

    def tried(self, problem: Problem, among: Iterable[Variant] | None = None) -> list[Variant]:
        """Compiled candidates that are meant for a problem: of all variants, or of those in `among`."""
        variants = self.variants.values() if among is None else among
        return [e for e in variants if e.code and self.meant_for(e, problem)]

    @property
    def unserved(self) -> list[Variant]:
        """Generic variants that serve no problem of the workload, such as those of other dtypes."""
        generics = [e for e in self.variants.values() if e.candidate.generic and e.compiled]
        return [e for e in generics if not any(self.meant_for(e, p) for p in self.workload)]

    def on(self, problem: Problem | str) -> Row:
        return self.measurements.get(problem if isinstance(problem, str) else problem.id, Row())

    def has(self, variant: Variant, problem: Problem) -> bool:
        return variant.candidate.id in self.on(problem)

    def wants(self, variant: Variant, problem: Problem) -> bool:
        """Whether a measurement on a problem is missing. A candidate that failed on another one is not tried."""
        return variant.id not in self.broken and not self.has(variant, problem)

    def lacks(self, variant: Variant) -> bool:
        """Whether a measurement is missing on some problem that a candidate is meant for."""
        return any(self.wants(variant, p) and self.meant_for(variant, p) for p in self.workload)

    def add(self, *measurements: Measurement) -> None:
        """Add measurements. A race's replaces the screen of the same candidate, unless the race left it out."""
        with self._lock:  # several devices measure
            self.measurements = adding(self.measurements, measurements)
        self.broken.update(m.candidate for m in measurements if fails(m))

    def take_instead(self, own: Measurement, other: Measurement) -> None:
        """Replace a measurement by one of the same candidate and problem that was made for another target."""
        row = {**self.measurements[own.problem.id], own.candidate: other}
        self.measurements = {**self.measurements, own.problem.id: Row(row)}

    def survey_on(self, device: Device) -> None:
        """Surveyed times are from a device."""
        self.surveyed = dataclasses.replace(self.surveyed, processors=processors_of(device) or 1)

    def add_survey(
        self, shapes: Iterable[tuple[Problem, Mapping[str, float]]], among: Container[str] | None = None
    ) -> None:
        """Add the times in ns of candidates on shapes, of all that are known or of those in `among`."""
        candidates = self.variants if among is None else among
        rows = [(problem, {c: t for c, t in times.items() if c in candidates}) for problem, times in shapes]
        with self._lock:
            self.surveyed = self.surveyed.adding(rows)

    def keep_surveyed(self, problems: Collection[str], candidates: Collection[str]) -> None:
        """On these problems, keep only the surveyed times of these candidates."""
        self.surveyed = self.surveyed.keeping(problems, candidates)

    def is_bound(self, variant: Variant) -> bool:
        """Whether a candidate is an algorithm of a vendor's library that was found for single problems."""
        kernel = self.operator.kernel(variant.candidate.kernel)
        return kernel.algorithms is not None and not kernel.has(variant.candidate.config, self.target.facts)

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
        self.passed_over.update((c, problem.id) for c in candidates)

    def reconsider(self) -> set[tuple[str, str]]:
        """Pass over nothing any more. Returns what was passed over, as candidate and problem ids."""
        passed, self.passed_over = self.passed_over, set()
        return passed

    def is_vendors(self, variant: Variant) -> bool:
        """Whether a candidate is an algorithm of a vendor's library."""
        return self.operator.kernel(variant.candidate.kernel).algorithms is not None

    def leaves_choice(self, variant: Variant) -> bool:
        """Whether a candidate lets a vendor's library choose: for the whole of its work, or for one stage."""
        if self.is_vendors(variant):
            return not self.is_bound(variant)
        vendors = {k.backend for k in self.operator.kernels if k.algorithms is not None}
        return not vendors.isdisjoint(self.operator.kernel(variant.candidate.kernel).stages)

    def failed(self, candidate: str) -> bool:
        """Whether a candidate did not compile or failed on a problem. Then it is out for all problems."""
        if self.variants[candidate].does_not_compile:
            return True
        return any(map(fails, self.made_of(candidate)))

    def made(self) -> list[Measurement]:
        return [m for row in self.measurements.values() for m in row.values()]

    def made_of(self, candidate: str) -> list[Measurement]:
        return [row[candidate] for row in self.measurements.values() if candidate in row]

    def unmeasured(self) -> list[Problem]:
        """Problems that only generic variants were timed on, though others are meant for them and did not fail."""
        tuned = [e for e in self.variants.values() if not e.candidate.generic and not self.failed(e.candidate.id)]
        timed = {p: {e.candidate.id for e in tuned}.intersection(row) for p, row in self.times().items()}
        return [p for p in self.workload if not timed.get(p.id) and any(self.meant_for(e, p) for e in tuned)]

    def row(self, problem: str) -> Mapping[str, Measurement]:
        """Measurements on a problem, by candidate. In races, the drift that a round had in common is taken out."""
        return self.measurements[problem].level

    def times(self) -> Costs:
        """See `times_of`. The times of what failed on some problem do not count."""
        return self._times(self.measurements)

    def costs(self) -> Costs:
        table = self.measurements  # a device may replace it meanwhile
        return costs_of(table, self._times(table))

    def choice_costs(self) -> Costs:
        table, vendors = self.measurements, {c for c, e in self.variants.items() if self.is_vendors(e)}
        return choice_costs_of(table, self._times(table), vendors)

    def _times(self, table: Measurements) -> Costs:
        return times_of(table, {c for c in self.variants if self.failed(c)})


@dataclass(frozen=True)
class Chosen:
    """A target's selection, with the evidence and the costs that it is based on."""

    evidence: Evidence
    selection: Selection
    costs: Costs


def guards_of(evidence: Evidence) -> Guards:
    """The conditions that hold where a candidate is right, by its id."""
    return lambda candidate: evidence.variants[candidate].requires


def worth_of(evidence: Evidence) -> Guards:
    """The conditions that hold where the kernel of a candidate is meant for a call, by the candidate's id."""

    def worth(name: str) -> tuple[Expr, ...]:
        candidate = evidence.variants[name].candidate
        return worthwhile_of(evidence.operator.kernel(candidate.kernel), candidate.config)

    return worth


def share_among_targets(evidences: Sequence[Evidence]) -> None:
    """Give all targets of an operator the same measurement of a generic variant on a problem: a record holds one.

    The same is done for baselines, which tell the pace of a race's rounds. Each target's races time them anew. Without
    this, a replay could decide by other times than the build did. The first target's measurement is kept, unless the
    variant failed on another target.
    """
    shared = [
        (evidence, row[name], (row[name].device, problem, name))
        for evidence in evidences
        for problem, row in evidence.measurements.items()
        for name in row
        if is_baseline(name) or (name in evidence.variants and evidence.variants[name].candidate.generic)
    ]
    kept: dict[tuple[str, str, str], Measurement] = {}
    for _, measurement, key in shared:
        if key not in kept or (not is_baseline(measurement.candidate) and fails(measurement) and not fails(kept[key])):
            kept[key] = measurement
    for evidence, measurement, key in shared:
        if measurement is not kept[key]:
            evidence.take_instead(measurement, kept[key])


class _Conditions:
    """Conditions on calls of an operator, such as what candidates require; many candidates share most of theirs."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._facts: dict[str, Facts] = {}
        self._of: dict[Hashable, _Same] = {}
        self._same: dict[tuple[str, ...], _Same] = {}
        self._held: dict[tuple[str, str], bool] = {}

    def facts(self, problem: Problem) -> Facts:
        if problem.id not in self._facts:
            self._facts[problem.id] = self._operator.facts(problem)
        return self._facts[problem.id]

    def known(self, owner: Hashable, problem: Problem) -> bool | None:
        """What `hold` said of an owner's conditions on a problem; None if it was not asked."""
        same = self._of.get(owner)
        return None if same is None else same.answers.get(problem.id)

    def hold(self, owner: Hashable, conditions: Iterable[Expr], problem: Problem) -> bool:
        """Whether all conditions hold on a problem; `owner` always has the same ones."""
        same = self._of.get(owner)
        if same is None:
            keyed = tuple((c.key(), c) for c in conditions)
            same = self._of[owner] = self._same.setdefault(tuple(key for key, _ in keyed), _Same(keyed))
        answer = same.answers.get(problem.id)
        if answer is None:
            answer = all(self._holds(key, condition, problem) for key, condition in same.conditions)
            same.answers[problem.id] = answer
        return answer

    def _holds(self, key: str, condition: Expr, problem: Problem) -> bool:
        answer = self._held.get((key, problem.id))
        if answer is None:
            answer = self._held[key, problem.id] = bool(condition.evaluate(self.facts(problem)))
        return answer


@dataclass(frozen=True)
class _Same:
    """Conditions that owners have in common, by their texts; and whether all hold, by problem id."""

    conditions: tuple[tuple[str, Expr], ...]
    answers: dict[str, bool] = field(default_factory=dict)
