"""Screens and races the candidates of operators on their workloads. What is known is not measured again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement, Prepared, Status, is_baseline
from aot_tune.compile import Variant
from aot_tune.database import OperatorStore, operator_digest
from aot_tune.pipeline.build_time import TuningTurn, task_of
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.known_times import fails
from aot_tune.pipeline.loaded_operators import baseline_versions
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.measuring.verify_variants import verify_early
from aot_tune.report.report_text import format_time
from aot_tune.spec import Operator, Problem
from aot_tune.support.errors import AotTuneError, TooLargeError, ToolchainError

T = TypeVar("T")

_ONCE = ("check", "prepare", "start")
"""Phases that only the first screen of an object, or the first on a problem, has."""
_FINALISTS = 4
_WITHIN = 1.3
_ALGORITHMS = 2
"""A race takes the best four of the screen that are within 1.3 x of the best. At most two are a vendor's algorithms.

These are often one kernel under several names. More of them would leave no place for candidates that are as fast on a
GPU that a race has heated."""
_HOPELESS, _LONG = 4.0, 1e7
"""A generic variant that is expected to be behind by this factor is not timed if a call takes longer than 10 ms."""
_RACES = 3
"""A problem races at most this often. It races again if others were screened to be faster than all that raced."""


def finalists(evidence: Evidence, problem: Problem) -> list[Variant]:
    """The entrants of a race on a problem, the best of the screen first; none if no race is due.

    A race is due if one of them was screened since the last race. A recorded race stands until then.
    """
    screened = evidence.fresh.get(problem.id)
    if not screened:
        return []
    times = {c: m.ns for c, m in evidence.on(problem).items() if c in evidence.variants and m.ns is not None}
    best: list[str] = []
    algorithms = 0
    for c in sorted(times, key=lambda c: (times[c], c)):
        if len(best) == _FINALISTS or (best and times[c] > times[best[0]] * _WITHIN):
            break
        algorithm = evidence.is_vendors(evidence.variants[c])
        algorithms += algorithm
        if not algorithm or algorithms <= _ALGORITHMS:
            best.append(c)
    return [evidence.variants[c] for c in best] if screened.intersection(best) else []


def overlooked(evidence: Evidence, problem: Problem) -> set[str]:
    """Candidates that never raced, but whose screens are faster by more than 1.3 x than all that raced.

    If another process disturbed some of the screens, a race may be between the wrong candidates. If none of those that
    raced stands, all others were overlooked. If one of the found candidates would first have to be compiled, there are
    none.
    """
    row = {c: m for c, m in evidence.on(problem).items() if c in evidence.variants}
    raced = [m.ns for m in row.values() if m.final and m.ns is not None]
    others = {c: m.ns for c, m in row.items() if not m.final and m.ns is not None}
    faster = {c for c, ns in others.items() if ns * _WITHIN < min(raced, default=math.inf)}
    return faster if all(evidence.variants[c].object is not None for c in faster) else set()


def left_undone(evidence: Evidence, limit: str = "the budget") -> str:
    """What a budget, or another limit, left undone, in words; empty if nothing."""
    count = len(evidence.workload)
    if left := len(evidence.unmeasured()):
        return f"{limit} ended before {left} of {count} problems were measured"
    due = sum(bool(finalists(evidence, p)) for p in evidence.workload)
    return f"{limit} ended before {due} of {count} problems had their race" if due else ""


def _counts(measurement: Measurement) -> bool:
    """Whether a measurement counts though the budget has ended, which kills workers and linkers.

    A wrong result or a crash is the candidate's own fault at any time. What was seen to be wrong is not shipped.
    """
    at_fault = measurement.status in ("wrong-result", "crashed", "suspicious") and measurement.lasting
    return at_fault or measurement.status == "ok"


@dataclass(frozen=True)
class _Took:
    """Seconds of a screen or race, 0 if known; `referring`, those of references; `waited`, also for workers."""

    whole: float
    referring: float
    waited: bool


class Measurer:
    """Measures on the device of a bench.

    `spent` are its seconds by activity: references, the phases of screens, the rest of screens, and races. `referred`
    are those of references by operator. `at_work` are the seconds of all jobs. `raced` says what raced, and was not
    known before. Once it is `ended`, it begins nothing.
    """

    def __init__(self, bench: LazyBench, turn: TuningTurn) -> None:
        self._lazy, self._session, self.turn = bench, bench.session, turn
        self._stores: dict[str, OperatorStore] = {}
        self._problems: dict[tuple[str, str], _OneProblem] = {}
        self._verified: set[str] = set()
        self._verifies = True
        self.raced: list[tuple[Evidence, Problem]] = []
        self.measured = self.reused = 0
        self.ended = False
        self.at_work = 0.0
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.referred: defaultdict[str, float] = defaultdict(float)

    def worked(self, seconds: float) -> None:
        self.at_work += seconds

    def end(self) -> None:
        """Begin nothing from now on."""
        self.ended = True

    @property
    def bench(self) -> LazyBench:
        return self._lazy

    def start(self) -> None:
        """Start the workers without waiting for them. Those that cannot start now start at first use."""
        self._lazy.start()

    def verify(self, variants: Iterable[Variant]) -> None:
        """Verify variants that serve no problem of the workload, each once, until the budget or the workers end."""
        new = [e for e in variants if e.candidate.id not in self._verified]
        self._verified.update(e.candidate.id for e in new)
        if self._verifies:
            self._verifies = verify_early(self._session, self._lazy, new, lambda: self.over)

    def store(self, operator: Operator) -> OperatorStore:
        """The operator's part of the store."""
        name = operator.name
        if name not in self._stores:
            self._stores[name] = self._session.store.operator(
                name,
                operator_digest(operator),
                self._lazy.device,
                self._session.policy(self._lazy.device.family),
                baseline_versions(operator),
            )
        return self._stores[name]

    def screen(self, evidence: Evidence, problem: Problem, variants: Sequence[Variant]) -> None:
        """Screen candidates on a problem and compare them with its best so far, until the budget ends."""
        name, failures = evidence.operator.name, self._session.failures
        if name in failures:
            return
        case = self._one(evidence.operator, problem)
        row = evidence.on(problem).values()
        best = min((m.ns for m in row if m.ns is not None and not is_baseline(m.candidate)), default=None)
        waiting = list(variants)
        while waiting:
            if problem.id in evidence.too_large:
                self.spare(evidence.operator, problem, len(waiting))
                return
            (variant,) = evidence.now([waiting.pop(self._lazy.choose(evidence.operator, waiting))])
            hopeless = best is not None and self._is_hopeless(evidence, problem, variant, best)
            if hopeless:
                evidence.pass_over(problem, [variant.candidate.id])
            if hopeless or (variant.id in evidence.broken and not evidence.has(variant, problem)):
                self.spare(evidence.operator, problem, 1)
                continue
            watched = self._watch()
            measurement = None
            with failures.of(name):
                measurement = self._within(evidence, problem, partial(self._screen, case, evidence, variant, best))
            if measurement is None and problem.id in evidence.too_large:
                waiting.append(variant)
                continue
            if measurement is None or (self.over and not _counts(measurement)):
                return
            evidence.add_screen(measurement)
            self._tell(evidence, measurement)
            if measurement.ns is not None and (best is None or measurement.ns < best):
                best = measurement.ns
            shown = "nothing yet" if best is None else format_time(best)
            took = watched()
            self.log("screen", evidence, problem, [measurement], took.whole)
            self._spend(evidence.operator.name, measurement, took)
            seconds = min(sum(s for phase, s in measurement.phases.items() if phase not in _ONCE), took.whole)
            beside = None if took.waited else took.whole - seconds
            self.turn.screened(case.task, seconds, beside, f"best so far {shown}")

    def _tell(self, evidence: Evidence, measurement: Measurement) -> None:
        """Tell at once that a candidate failed."""
        if fails(measurement) and (variant := evidence.variants.get(measurement.candidate)) is not None:
            told = self._session.failures.of_candidate
            told(evidence.operator, variant, measurement.status, measurement.reason, measurement.problem)

    def _is_hopeless(self, evidence: Evidence, problem: Problem, variant: Variant, best: float) -> bool:
        """Whether a CPU's generic variant was verified on another problem, and would only take long on this one."""
        if not (variant.candidate.generic and family(self._lazy.device.family).on_host):
            return False
        made = evidence.made_of(variant.candidate.id)
        paces = (m.ns / evidence.operator.amount(m.problem) for m in made if m.ns is not None)
        expected = min(paces, default=0.0) * evidence.operator.amount(problem)
        return expected > max(_HOPELESS * best, _LONG)

    def spare(self, operator: Operator, problem: Problem, count: int) -> None:
        """Note that `count` candidates are not screened on a problem, although they were expected."""
        self.turn.spared(self._one(operator, problem).task, count)

    def probe(self, operator: Operator, problem: Problem, variant: Variant) -> Measurement:
        """Screen a candidate on this device now, whatever is known. Raises AotTuneError when it cannot run."""
        linked, bench = self._lazy.linked(variant), self._lazy.get()
        with bench.alone():
            prepared = bench.prepare(operator, problem)
            return bench.screen(prepared, linked)

    def recall(self, evidence: Evidence, problem: Problem, variant: Variant) -> bool:
        """Take over what the store knows of a candidate on a problem. Returns whether it knew anything."""
        measurement = self._known(self._one(evidence.operator, problem), variant)
        if measurement is not None:
            evidence.add_screen(measurement)
        return measurement is not None

    def knows(self, operator: Operator, problem: Problem, candidate: str, digest: str) -> bool:
        """Whether the store has a screen of an object on a problem. Any thread may ask."""
        known = self.store(operator).find(candidate, digest, problem)
        return known is not None and not known.spoiled

    def knows_race(self, operator: Operator, problem: Problem, entrants: Sequence[Variant]) -> bool:
        """Whether the store has the race of these candidates, and of the baselines that are here, on a problem."""
        return self._known_race(self._one(operator, problem), entrants) is not None

    def race(self, evidence: Evidence, problem: Problem) -> None:
        """Race the best of a problem's screen if a race is due. Race again if it overlooked faster candidates."""
        for left in reversed(range(_RACES)):
            entrants = [] if evidence.operator.name in self._session.failures else finalists(evidence, problem)
            if not entrants:
                evidence.race_done(problem.id)
                return
            self._race_once(evidence, problem, entrants)
            late = overlooked(evidence, problem) if left and problem.id not in evidence.fresh else set()
            if not late:
                return
            evidence.race_about(problem.id, late)

    def _race_once(self, evidence: Evidence, problem: Problem, entrants: list[Variant]) -> None:
        """Run one race. If the budget's end breaks it off, it does not count and is still due."""
        watched = self._watch()
        raced = None
        with self._session.failures.of(evidence.operator.name):
            raced = self._within(
                evidence, problem, partial(self._race, self._one(evidence.operator, problem), evidence, entrants)
            )
        if raced is None:
            return
        if self.over and any(m.status != "ok" for m in raced):
            evidence.add(*(m for m in raced if m.status != "ok" and _counts(m)))
            return
        evidence.add(*raced)
        for measurement in raced:
            self._tell(evidence, measurement)
        evidence.race_done(problem.id)
        took = watched()
        self.log("race", evidence, problem, raced, took.whole)
        # if all screens were known, the race computes the reference
        seconds, beside = took.whole - took.referring, took.referring
        self.spent["race"] += seconds
        self._refer(evidence.operator.name, beside)
        told = (0.0, None) if took.waited else (seconds, beside)
        self.turn.raced(task_of(evidence.operator, problem), *told)

    def log(self, kind: str, evidence: Evidence, problem: Problem, made: Sequence[Measurement], seconds: float) -> None:
        """Add what was measured just now to the build's log. It took no time if it was known."""
        device, variants = self._lazy.device, evidence.variants
        names = {m.candidate: variants[m.candidate].name if m.candidate in variants else m.candidate for m in made}
        self._session.progress.log.add(
            device.unit or device.name,
            kind,
            f"{evidence.operator.name} {problem.id}",
            seconds,
            target=evidence.target.name,
            known=seconds == 0,
            ns={names[m.candidate]: m.ns for m in made if m.ns is not None},
            failed={names[m.candidate]: m.status for m in made if m.status != "ok"},
        )

    def _watch(self) -> Callable[[], _Took]:
        """Watch a screen or a race from now on. The returned function tells afterwards how long it took."""
        begun, reused, referring = self._session.progress.now(), self.reused, self._lazy.referring
        first = not self.measured

        def watched() -> _Took:
            if self.reused > reused:
                return _Took(0.0, 0.0, waited=False)
            return _Took(self._session.progress.now() - begun, self._lazy.referring - referring, waited=first)

        return watched

    @property
    def over(self) -> bool:
        """Whether the budget or the build has ended. Then whatever still ran was killed."""
        return self.ended or self.turn.over

    def _within(self, evidence: Evidence, problem: Problem, do: Callable[[], T]) -> T | None:
        """The result of `do`; None after the end of the budget, or if there is no memory for the problem."""
        try:
            return None if self.over else do()
        except AotTuneError as error:
            if not self.over and not isinstance(error, TooLargeError):
                raise
            if not self.over:
                evidence.leave_problem_out(problem.id)
                self._session.leave_problem_out(error.what)
            return None

    def _spend(self, operator: str, measurement: Measurement, took: _Took) -> None:
        if took.whole > 0:
            self._refer(operator, took.referring)
            for part, seconds in measurement.phases.items():
                self.spent[part] += seconds
            alone = took.whole - took.referring
            self.spent["the rest"] += max(alone - sum(measurement.phases.values()), 0.0)

    def _refer(self, operator: str, seconds: float) -> None:
        self.spent["references"] += seconds
        self.referred[operator] += seconds

    def _one(self, operator: Operator, problem: Problem) -> _OneProblem:
        key = (operator.name, problem.id)
        if key not in self._problems:
            self._problems[key] = _OneProblem(self._lazy, operator, problem, self.store(operator))
        return self._problems[key]

    def _known(self, case: _OneProblem, variant: Variant) -> Measurement | None:
        measurement = case.store.find(variant.candidate.id, variant.code, case.problem)
        if measurement is not None and measurement.spoiled:
            return None
        self.reused += measurement is not None
        return measurement

    def _screen(self, case: _OneProblem, evidence: Evidence, variant: Variant, best: float | None) -> Measurement:
        stored = self._known(case, variant)
        if stored is not None:
            return stored
        bench = self._lazy.get()
        prepared = case.prepared()
        try:
            linked = self._lazy.linked(variant, evidence)
        except ToolchainError as error:
            return self._unmeasured(case, variant.candidate.id, variant.code, "failed", error.what)
        measurement = bench.screen(prepared, linked, best)
        self.measured += 1
        self._session.saw(measurement.seen)
        if measurement.lasting:
            case.store.put(measurement, [linked])
        return measurement

    def _unmeasured(self, case: _OneProblem, name: str, code: str, status: Status, reason: str = "") -> Measurement:
        device, policy = self._lazy.device, self._session.policy(self._lazy.device.family)
        return Measurement(
            candidate=name, code=code, problem=case.problem, device=device.digest, policy=policy.digest, status=status,
            reason=reason,
        )  # fmt: skip

    def _known_race(self, case: _OneProblem, variants: Sequence[Variant]) -> list[Measurement] | None:
        subjects = [(e.candidate.id, e.code) for e in variants] + [(f"{BASELINE}{n}", "") for n in case.baselines()]
        race = case.store.find_race(subjects, case.problem)
        return (
            None
            if race is None or any(m.spoiled for m in race)
            else [m for m in race if not (is_baseline(m.candidate) and m.status == "skipped")]
        )

    def _race(self, case: _OneProblem, evidence: Evidence, variants: list[Variant]) -> list[Measurement]:
        stored = self._known_race(case, variants)
        if stored is not None:
            self.reused += len(stored)
            return stored
        linked, bench = [self._lazy.linked(e, evidence) for e in variants], self._lazy.get()
        raced = bench.race(case.prepared(), linked)
        self.measured += len(raced)
        self.raced.append((evidence, case.problem))
        self._session.saw(raced[0].seen)
        if all(m.lasting and m.status != "skipped" for m in raced):
            self.keep_race(evidence.operator, case.problem, raced, linked)
        return raced

    def keep_race(
        self, operator: Operator, problem: Problem, raced: Sequence[Measurement], variants: Sequence[Variant]
    ) -> None:
        """Put a race into the store. A baseline that cannot run here is noted there too, and not tried again."""
        case = self._one(operator, problem)
        names = {f"{BASELINE}{n}" for n in case.baselines()} - {m.candidate for m in raced}
        unable = [self._unmeasured(case, n, "", "skipped") for n in sorted(names)]
        case.store.put_race([*raced, *unable], variants)


class _OneProblem:
    """A problem that is measured. Its inputs and reference are made when something has to run."""

    def __init__(self, bench: LazyBench, operator: Operator, problem: Problem, store: OperatorStore) -> None:
        self._bench = bench
        self.operator, self.problem, self.store = operator, problem, store
        self.task = task_of(operator, problem)
        self._prepared: Prepared | None = None

    def prepared(self) -> Prepared:
        """Inputs and reference."""
        if self._prepared is None:
            self._prepared = self._bench.get().prepare(self.operator, self.problem)
        return self._prepared

    def baselines(self) -> list[str]:
        """Names of the installed baselines that can do the problem."""
        installed = baseline_versions(self.operator)
        runs = family(self._bench.device.family).runs
        return [
            b.name
            for b in self.operator.baselines
            if b.name in installed and runs(b.requires) and b.supports(self.problem)
        ]
