"""What tuning wants on a target, most urgent first: what to compile, what to screen, and where to race.

It knows no process, no thread and no device but by name. Without a budget all is measured. A budget is a cut: what
must follow has its time reserved, and what promises most comes first. Where compilers disturb measuring, that is on a
CPU, the next measurement is the one that promises most per second. Elsewhere candidates are screened while others
compile, and races come when nothing compiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from aot_tune.compile import Variant
from aot_tune.pipeline.build_time import TuningTurn, expected_seconds, task_of
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.known_times import mean_logs
from aot_tune.pipeline.measuring.builder import CompileBatch, Job
from aot_tune.pipeline.measuring.measure import finalists
from aot_tune.pipeline.pruning import Resemblances, awaited, competes, follows_another, may_come, rank_of, to_compile
from aot_tune.search.budget import Gains, Task, most_promising
from aot_tune.spec import Operator, Problem

_LEAST_GAIN = 1e-12
"""What promises less than this only improves the report."""
_COMPILING = 0.4
"""Share of the time for compilers that disturb measuring, as long as there is something to measure."""
_PER_JOB = 2
"""How many candidates each such compiler gets at a time. Nothing can be measured until the last of them is compiled."""


class KnownElsewhere(Protocol):
    """What is known of objects and races outside of the evidence."""

    def recall(self, evidence: Evidence, problem: Problem, variant: Variant) -> bool:
        """Add what the store knows of a candidate on a problem. Returns whether it knew anything."""

    def knows_race(self, operator: Operator, problem: Problem, entrants: Sequence[Variant]) -> bool:
        """Whether the store has the race of these candidates."""

    def is_linked(self, variant: Variant) -> bool:
        """Whether an object is linked for the devices."""


@dataclass(frozen=True)
class Constraints:
    """`quiet`: nothing is measured while something compiles. `compilers` and `devices` work at the same time."""

    quiet: bool
    compilers: int = 1
    devices: Callable[[], int] = lambda: 1


@dataclass
class _OpenProblem:
    """A problem and the candidates that wait to be screened on it, by id. It has `raced` this many times.

    `awaited` is the compile time in seconds of followers that its screens decide about. Problems of a lower `rank` tell
    what need not be tried on this one. Those of a lower `turn` come first under a budget, so that operators take turns.
    `asked` are the ids of the last question whether the store knows their race, and the answer.
    """

    number: int
    evidence: Evidence
    problem: Problem
    task: Task
    rank: int
    weight: float
    turn: float
    awaited: float = 0.0
    waiting: dict[str, Variant] = field(default_factory=dict)
    raced: int = 0
    asked: tuple[list[str], bool] = ([], False)

    def waits(self, *, generic_too: bool) -> list[Variant]:
        """What waits: with or without generic variants."""
        return [e for e in self.waiting.values() if generic_too or not e.candidate.generic]

    def rivals(self, *, generic_too: bool) -> list[Variant]:
        """What waits and decides which followers are compiled; and a vendor's own choice, before a budget ends."""
        waits, evidence = self.waits(generic_too=generic_too), self.evidence
        return [e for e in waits if competes(evidence, e) or evidence.leaves_choice(e)]

    def best(self) -> float | None:
        """The best time in ns so far. Generic variants do not count."""
        row, variants = self.evidence.on(self.problem), self.evidence.variants
        times = (m.ns for c, m in row.items() if c in variants and not variants[c].candidate.generic)
        return min((t for t in times if t is not None), default=None)


class TuningPlan:
    """What is wanted of some operators on one target, see `WantedWork`. What it learns stays from step to step.

    Within a budget, nothing is measured on a CPU that promises a gain of less than `least`.
    """

    def __init__(
        self, evidences: Sequence[Evidence], turn: TuningTurn, known: KnownElsewhere, limits: Constraints
    ) -> None:
        self._evidences, self._turn, self._known, self._limits = evidences, turn, known, limits
        self._limited = turn.limited
        self._by_gain = limits.quiet and self._limited
        self._open = [
            _OpenProblem(
                number,
                evidence,
                problem,
                task_of(evidence.operator, problem),
                rank_of(evidence.operator, problem),
                evidence.operator.weight(problem) if self._limited else 1.0,
                place if self._limited else 0.0,
            )
            for number, (evidence, problem, place) in enumerate(
                (v, p, i / len(v.workload)) for v in evidences for i, p in enumerate(v.workload)
            )
        ]
        self._weighs = len({p.weight for p in self._open}) > 1
        self._left: list[Variant] = []
        self._compiling: dict[str, Variant] = {}
        self._incoming: list[Variant] = []
        self._running: dict[int, tuple[Job, float | None]] = {}
        self._homes = _Homes()
        self._now: set[int] = set()
        self._begun = turn.spent
        self._spent_compiling = self._compiles_since = 0.0
        self._gains = Gains(turn.durations)
        self._costs: dict[str, dict[str, float]] = {}
        self._verified: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._linking: set[str] = set()
        self._readied: set[str] = set()
        self._resemblances: dict[int, tuple[int, Resemblances]] = {}
        self._fallen = {id(e): _fallen(e) for e in evidences}
        self._changes, self._looked_at = 0, -1
        self._due: list[Variant] = []
        self._coming: Collection[int] = ()
        self.least = _LEAST_GAIN

    def add(self, variants: Iterable[Variant]) -> None:
        """Want these compiled, and everything screened that has an object or is recorded."""
        self._left, self._begun, self._spent_compiling = list(variants), self._turn.spent, 0.0
        if self._by_gain:
            self._left = _in_turn(self._left, self._weight_of)
        new = {e.id for e in self._left}
        self._arrive(e for v in self._evidences for e in v.variants.values() if e.code and e.id not in new)
        self._changes += 1

    def lacks_time(self) -> bool:
        """Whether something is left undone that promises a gain."""
        return any(gain >= _LEAST_GAIN for p in self._open for gain, _, _ in self._choices(p))

    # What compilers get.

    def batch(self) -> CompileBatch | None:
        if self._turn.over or self._compiling:
            return None
        if self.stops_compiling():
            return self._finalists([self._open[n] for n in sorted(self._now)])
        variants, what = self._next_batch()
        made = [e for e in variants if e.object is not None]  # a probe was compiled before
        self._arrive(made)
        variants = [e for e in variants if e.object is None]
        if not variants:
            waits = any(p.waits(generic_too=not self._limited) for p in self._open)
            return None if self._running or waits or self._look_ahead() else self._finalists(self._open)
        self._compiling = {e.id: e for e in variants}
        self._compiles_since = self._turn.spent
        return CompileBatch(variants, self._evidences, what)

    def _next_batch(self) -> tuple[list[Variant], str]:
        """What to compile now, which then is not left any more, and what to call it."""
        generics = [e for e in self._left if e.candidate.generic] if self._limited else []
        if generics or not self._left:
            return self._taken(generics), "generic"
        if self._by_gain:
            return self._gainful_batch(), ""
        if self._limits.quiet:
            return self._taken(self._left), self._evidences[0].target.name
        if self._is_racing():
            return [], ""
        due = sorted(self._look_ahead(), key=self._when)
        if due:
            self._await(due)
        return self._taken(due), due[0].candidate.target if due else ""

    def _taken(self, variants: Iterable[Variant]) -> list[Variant]:
        """Some of the variants that are left, as they are now; and they are not left any more."""
        ids = {e.id for e in variants}
        taken = [e for e in self._left if e.id in ids]
        order = {e.id: i for i, e in enumerate(variants)}
        self._left = [e for e in self._left if e.id not in ids]
        self._due = []
        self._changes += bool(taken)
        now = {e.id: e for v in self._evidences for e in v.now(t for t in taken if t.id in v.variants)}
        return sorted((now[e.id] for e in taken), key=lambda e: order[e.id])

    def _when(self, variant: Variant) -> tuple[float, float, bool]:
        operator = self._operator(variant)
        weight = self._weight_of(variant) if self._weighs else 0.0
        return -weight, -expected_seconds(operator, variant), follows_another(operator, variant.candidate)

    def _await(self, due: Sequence[Variant]) -> None:
        """State which screens decide about what is left after `due`."""
        begins, seconds = {e.id for e in due}, dict[tuple[int, str], float]()
        for evidence in self._evidences:
            if not self._limited:  # with a budget there may be no time for it
                evidence.due.update(begins)
            rest = [e for e in self._left_of(evidence) if e.id not in begins]
            seconds |= {(id(evidence), p): s for p, s in awaited(evidence, rest).items()}
        for opened in self._open:
            opened.awaited = seconds.get((id(opened.evidence), opened.problem.id), 0.0)

    def _gainful_batch(self) -> list[Variant]:
        """The best guesses for most problems, if it is the compilers' turn. So few that the rest can be measured."""
        spent = self._turn.spent - self._begun
        if self._most_gainful() is not None and self._spent_compiling > _COMPILING * spent:
            return []
        each = self._turn.durations.compile(expected_seconds(self._operator(self._left[0]), self._left[0]))
        room = min(_PER_JOB * self._limits.compilers, int(_COMPILING * self._turn.left / each))
        taken = self._taken(self._left[: room or len(self._left)])
        return taken if room else []

    def _finalists(self, among: Iterable[_OpenProblem]) -> CompileBatch | None:
        """Entrants of races that only a record knew, and those that are not linked, while no race is under way."""
        if self._limits.quiet or self._is_racing():
            return None
        entrants: dict[str, Variant] = {}
        for opened in among:
            picked = finalists(opened.evidence, opened.problem)
            known = not picked or (all(e.object is not None for e in picked) and self._knows_race(opened, picked))
            entrants |= {} if known else {e.id: e for e in picked if e.id not in self._readied}
        if all(self._known.is_linked(e) for e in entrants.values()):
            return None
        self._linking = set(entrants)
        missing = [e for e in entrants.values() if e.object is None]
        self._compiling = {e.id: e for e in missing}
        self._compiles_since = self._turn.spent
        return CompileBatch(missing, self._evidences, "finalists" if missing else "", list(entrants.values()))

    def _is_racing(self) -> bool:
        return any(job.what == "race" for job, _ in self._running.values())

    def stops_compiling(self) -> bool:
        """See `WantedWork`: the budget has ended, or the rest of it is needed for races. These wait for links."""
        return self._limited and (self._turn.over or (self._races_must_begin() and not self._linking))

    def arrived(self, variant: Variant) -> None:
        """See `WantedWork`. While devices wait for the whole batch, they get it in its order.

        Elsewhere it waits until what came before was screened on all problems, unless it decides what is compiled.
        """
        if not self._limits.quiet and variant.id in self._compiling:
            self._incoming.append(self._compiling.pop(variant.id))
            own = [p for p in self._open if p.awaited > 0.0 and p.task.operator == variant.candidate.operator]
            if any(competes(p.evidence, variant) and p.evidence.meant_for(variant, p.problem) for p in own):
                self._take_in()

    def _take_in(self) -> bool:
        """Want screened what has arrived. Returns whether there was anything."""
        incoming, self._incoming = self._incoming, []
        self._arrive(e for v in self._evidences for e in v.now(i for i in incoming if i.id in v.variants))
        return bool(incoming)

    def compiled(self) -> None:
        self._take_in()
        self._readied |= self._linking
        self._linking = set()
        rest, self._compiling = list(self._compiling.values()), {}
        self._spent_compiling += self._turn.spent - self._compiles_since
        now = [e for v in self._evidences for e in v.now(t for t in rest if t.id in v.variants)]
        place = {e.id: i for i, e in enumerate(rest)}
        self._arrive(sorted((e for e in now if e.code), key=lambda e: place[e.id]))
        if not self._limits.quiet:
            self._left += [e for e in now if e.object is None]
        self._reconsider()
        self._changes += 1

    def _arrive(self, variants: Iterable[Variant]) -> None:
        """Want variants with an object screened. Where promises count, what the store knows is taken over at once."""
        by_operator: dict[str, list[Variant]] = {}
        for variant in variants:
            by_operator.setdefault(variant.candidate.operator, []).append(variant)
        for opened in self._open if by_operator else ():
            evidence, problem = opened.evidence, opened.problem
            for variant in evidence.tried(problem, by_operator.get(opened.task.operator, ())):
                if not evidence.wants(variant, problem):
                    continue
                if not (self._by_gain and self._known.recall(evidence, problem, variant)):
                    opened.waiting.setdefault(variant.id, variant)
                self._costs.pop(opened.task.operator, None)

    # What devices get.

    def job(self, device: Hashable) -> Job | None:
        if self._turn.over:
            return None
        if self._limited and (job := self._vouch(device)) is not None:
            return job
        if self._by_gain:
            best = self._most_gainful(self.least)
            return best() if best is not None else None
        if self._limits.quiet:
            return next(self._in_order(), None) or self._verification()
        return self._overlapped(device)

    def _vouch(self, device: Hashable) -> Job | None:
        """Screen each generic variant on its smallest problem: none ships unverified, and later it takes as long."""
        begun = {v.id for job, _ in self._running.values() for v in job.variants}
        for opened in sorted(self._open, key=lambda p: (p.task.size, p.number)):
            for variant in (e for e in opened.waiting.values() if e.candidate.generic and e.id not in begun):
                if opened.number not in self._running and not opened.evidence.made_of(variant.id):
                    return self._screens(opened, [variant], device)
        return self._verification()

    def _verification(self) -> Job | None:
        """Verify a generic variant that serves no problem, such as one of other dtypes, while there are workers."""
        new = (e for v in self._evidences for e in v.unserved if e.id not in self._verified)
        variant = next(new, None)
        if variant is None:
            return None
        self._verified.add(variant.id)
        number = self._numbers.setdefault(variant.id, -1 - len(self._numbers))  # the number of no problem
        job = Job(number, "verify", lambda measurer: measurer.verify([variant]), variants=[variant])
        self._running[number] = job, None
        return job

    def _in_order(self) -> Iterator[Job]:
        """The jobs of one problem after the other: all screens, then the race."""
        for opened in self._open:
            if opened.number in self._running:
                continue
            if opened.waiting:
                yield self._screens(opened, self._placed(opened, opened.waiting.values()))
            elif finalists(opened.evidence, opened.problem):
                yield self._race(opened)

    def _overlapped(self, device: Hashable) -> Job | None:
        """Screens first: those that decide what is compiled. Races come when nothing compiles or is to be compiled.

        If a budget may end before all is done, races begin when the rest of it is needed for them.
        """
        if self._races_must_begin():
            if self._compiling or self._linking:  # they end first
                return None
            if job := self._next_race(device, now=True):
                return job
        if job := self._next_screens(device, generic_too=not self._limited):
            return job
        if self._compiling or self._linking or self._look_ahead():
            return None
        if job := self._next_race(device, now=False):
            return job
        return self._next_screens(device, generic_too=True) if self._limited else self._verification()

    def _next_screens(self, device: Hashable, *, generic_too: bool) -> Job | None:
        """The most urgent screens of one problem. First come those that decide what is compiled."""
        while True:
            taken_up = self._now | self._running.keys()
            ready = [p for p in self._open if p.number not in taken_up and p.waits(generic_too=generic_too)]
            deciding = [p for p in ready if p.awaited > 0.0 and p.rivals(generic_too=generic_too)]
            ready = deciding or ready
            ready.sort(key=lambda p: (-p.weight, -p.awaited * bool(deciding), p.rank, p.turn, p.number))
            if not ready:
                if self._take_in():
                    continue
                return None
            opened = self._picked(device, ready)
            taken = (opened.rivals if deciding else opened.waits)(generic_too=generic_too)
            if kept := self._without_passed(opened, taken):
                return self._screens(opened, kept[: self._room(opened)], device)

    def _room(self, opened: _OpenProblem) -> int | None:
        """How many screens of a problem there is time for before races must begin, the problem's own included."""
        if not self._limited:
            return None
        durations = self._turn.durations
        due = (p for p in self._open if p is opened or (self._was_screened(p) and self._is_worth_it(p)))
        left = self._turn.left - self._seconds_of_races(due)
        return max(1, int((left - durations.prepare(opened.task)) / durations.screen(opened.task)))

    def _without_passed(self, opened: _OpenProblem, taken: Sequence[Variant]) -> list[Variant]:
        """Candidates that are not passed over because of a similar problem. All of them wait no longer."""
        count, resemblances = self._resemblances.get(id(opened.evidence), (0, None))
        if resemblances is None or count != len(opened.evidence.variants):
            count, resemblances = len(opened.evidence.variants), Resemblances(opened.evidence)
            self._resemblances[id(opened.evidence)] = count, resemblances
        passed = resemblances.pass_over(opened.problem, taken)
        if passed:
            self._turn.spared(opened.task, len(passed))
            self._changes += 1
        for variant in taken:
            if variant.id in passed:
                del opened.waiting[variant.id]
        ordered = self._placed(opened, [e for e in taken if e.id not in passed])
        return sorted(ordered, key=lambda e: not competes(opened.evidence, e))

    def _next_race(self, device: Hashable, *, now: bool) -> Job | None:
        """The race of a problem on which nothing is to be screened any more, the longest first.

        If it is to be `now`, screens that wait do not matter, and problems of more weight come first.
        """
        ready = [
            p
            for p in self._open
            if p.number not in self._running
            and (now or not (p.waits(generic_too=not self._limited) or p.number in self._coming))
            and p.problem.id in p.evidence.fresh
            and self._may_race(p)
        ]
        if not ready:
            return None
        ready.sort(key=lambda p: (-p.weight, -p.task.size, p.number))
        return self._race(self._picked(device, ready), device)

    def _may_race(self, opened: _OpenProblem) -> bool:
        """Whether a race is due, and its entrants are compiled and linked: a linker could disturb other devices."""
        entrants = finalists(opened.evidence, opened.problem)
        if not entrants:
            opened.evidence.race_done(opened.problem.id)
        if not entrants or any(e.object is None for e in entrants):
            return False
        linked = all(self._known.is_linked(e) or e.id in self._readied for e in entrants)
        return linked or self._knows_race(opened, entrants)

    def _picked(self, device: Hashable, ready: Sequence[_OpenProblem]) -> _OpenProblem:
        """What one of several devices takes of what is ready, in order. If weights differ, these decide."""
        if self._limits.devices() < 2:
            return ready[0]
        numbers = [p.number for p in ready if p.weight == ready[0].weight]
        return self._open[self._homes.pick(device, numbers, {p.number: p.task.operator for p in self._open})]

    def _races_must_begin(self) -> bool:
        """Whether a budget has just time for the races that are due; the longest may come last, on one device."""
        if not self._limited or self._limits.quiet:
            return False
        self._now = {n for n in self._now if self._is_worth_it(self._open[n])}
        if not self._now and self._turn.left <= self._seconds_of_races(p for p in self._open if self._was_screened(p)):
            due = [p for p in self._open if self._was_screened(p) and self._is_worth_it(p)]
            self._now = {p.number for p in due} if self._turn.left <= self._seconds_of_races(due) else set()
        return bool(self._now)

    def _was_screened(self, opened: _OpenProblem) -> bool:
        """Whether something was screened since the last race on a problem, and no race is under way."""
        job = self._running.get(opened.number, (None,))[0]
        return opened.problem.id in opened.evidence.fresh and (job is None or job.what != "race")

    def _seconds_of_races(self, problems: Iterable[_OpenProblem]) -> float:
        durations, each = self._turn.durations, 1 / max(self._limits.devices(), 1)
        seconds = [durations.race(p.task) + durations.prepare(p.task) for p in problems]
        return each * math.fsum(seconds) + (1 - each) * max(seconds, default=0.0)

    def _is_worth_it(self, opened: _OpenProblem) -> bool:
        entrants = finalists(opened.evidence, opened.problem)
        return len(entrants) > 1 and all(e.object is not None for e in entrants)

    def _screens(self, opened: _OpenProblem, variants: Sequence[Variant], device: Hashable = None) -> Job:
        evidence, problem = opened.evidence, opened.problem
        for variant in variants:
            del opened.waiting[variant.id]

        def do(measurer: Any) -> None:
            measurer.screen(evidence, problem, variants)

        return self._given(opened, Job(opened.number, "screen", do, evidence, problem, variants), device)

    def _race(self, opened: _OpenProblem, device: Hashable = None) -> Job:
        evidence, problem = opened.evidence, opened.problem

        def do(measurer: Any) -> None:
            measurer.race(evidence, problem)

        entrants = finalists(evidence, problem)
        self._now.discard(opened.number)
        return self._given(opened, Job(opened.number, "race", do, evidence, problem, entrants), device)

    def _given(self, opened: _OpenProblem, job: Job, device: Hashable) -> Job:
        self._running[opened.number] = job, opened.best()
        self._homes.move(opened.number, device)
        return job

    def measured(self, job: Job) -> None:
        before = self._running.pop(job.number)[1]
        self._changes += 1
        if job.number < 0:
            return
        opened = self._open[job.number]
        self._costs.pop(opened.task.operator, None)
        if job.what == "race":
            opened.raced += 1
            raced = opened.evidence.on(opened.problem).get(job.variants[0].id) if job.variants else None
            if raced is not None and raced.final is not None and raced.ns is not None:
                self._gains.raced(raced.ns, min(opened.best() or raced.ns, raced.ns))
            return
        for variant in job.variants:
            if not variant.candidate.generic and opened.evidence.has(variant, opened.problem):
                self._gains.tried(opened.task, before, opened.best())
        self._reconsider()

    def lost(self, device: Hashable, job: Job) -> None:
        del self._running[job.number]
        self._homes.lose(device)
        self._changes += 1
        if job.number < 0:
            self._verified -= {e.id for e in job.variants}
        elif job.what == "screen":
            opened = self._open[job.number]
            opened.waiting |= {e.id: e for e in job.variants if not opened.evidence.has(e, opened.problem)}

    # What promises most.

    def _most_gainful(self, least: float = _LEAST_GAIN) -> Callable[[], Job] | None:
        """The measurement that promises most per second, among those for which there is time; None if there is none.

        It promises at least `least`. If weights differ, problems are started by weight. Then a promise counts in
        proportion to its problem's weight.
        """
        left = self._turn.left
        best: tuple[tuple[float, float, float], Callable[[], Job]] | None = None
        for opened in self._open:
            first = opened.weight if self._weighs and opened.best() is None else 0.0
            for gain, seconds, job in self._choices(opened):
                rank = (math.inf if gain == math.inf else first, gain * opened.weight, gain)
                if seconds <= left and gain >= least and (best is None or rank > best[0]):
                    best = rank, job
        return best[1] if best is not None else None

    def _choices(self, opened: _OpenProblem) -> Iterable[tuple[float, float, Callable[[], Job]]]:
        """What can be done about a problem: the gain per second, the seconds, and the job."""
        durations, chosen = self._turn.durations, opened.waits(generic_too=False)
        if opened.waiting:
            seconds = durations.screen(opened.task) + durations.prepare(opened.task)
            gain = self._gains.of_screen(opened.task) if chosen else 0.0
            yield gain, seconds, partial(self._screen_best, opened)
        if not chosen and (entrants := finalists(opened.evidence, opened.problem)):
            if self._knows_race(opened, entrants):  # it costs no time
                yield math.inf, 0.0, partial(self._race, opened)
                return
            seconds = durations.race(opened.task) + durations.prepare(opened.task)
            gain = self._gains.of_race(opened.task, opened.raced) if len(entrants) > 1 else 0.0
            yield gain, seconds, partial(self._race, opened)

    def _screen_best(self, opened: _OpenProblem) -> Job:
        operator = opened.task.operator
        if operator not in self._costs:
            evidence = opened.evidence
            self._costs[operator] = mean_logs(evidence.measurements, evidence.variants)
        chosen = [e.id for e in opened.waits(generic_too=False)] or list(opened.waiting)
        return self._screens(opened, [opened.waiting[most_promising(self._costs[operator], chosen)]])

    def _knows_race(self, opened: _OpenProblem, entrants: Sequence[Variant]) -> bool:
        ids = [e.candidate.id for e in entrants]
        if opened.asked[0] != ids:
            opened.asked = ids, self._known.knows_race(opened.evidence.operator, opened.problem, entrants)
        return opened.asked[1]

    def _weight_of(self, variant: Variant) -> float:
        """The weight of all problems that a variant is meant for. If each weighs 1, it is their number."""
        mine = (p for p in self._open if p.task.operator == variant.candidate.operator)
        return math.fsum(p.weight for p in mine if p.evidence.meant_for(variant, p.problem))

    # What follows from results.

    def _look_ahead(self) -> list[Variant]:
        """What is due to be compiled. Problems on which candidates may still come to be screened are noted."""
        if self._looked_at != self._changes:
            self._looked_at = self._changes
            due, coming = list[Variant](), set[int]()
            for evidence in self._evidences if self._left else ():
                mine = self._left_of(evidence)
                if not mine:
                    continue
                unsettled = self._unsettled(evidence)  # read this first, because devices add results meanwhile
                now = evidence.as_now()
                first = to_compile(now, mine, unsettled)
                due += first
                begins = {e.id for e in first}
                rest = [e for e in mine if e.id not in begins]
                later = may_come(now, rest, unsettled, self._compiling.keys() | {e.id for e in self._incoming})
                own = (p for p in self._open if p.evidence is evidence)
                coming.update(p.number for p in own if any(now.meant_for(e, p.problem) for e in later))
            self._due, self._coming = due, coming
        return self._due

    def _left_of(self, evidence: Evidence) -> list[Variant]:
        return evidence.now(e for e in self._left if e.id in evidence.variants)

    def _unsettled(self, evidence: Evidence) -> set[str]:
        """Ids of problems where rivals wait or a device works. Under a budget, generic variants wait to the end."""
        mine = (p for p in self._open if p.evidence is evidence)
        waits = partial(_OpenProblem.rivals, generic_too=not self._limited)
        return {p.problem.id for p in mine if p.number in self._running or waits(p)}

    def _reconsider(self) -> None:
        """If candidates have failed since the last call, want again what was passed over."""
        for evidence in () if self._limits.quiet else self._evidences:
            before, self._fallen[id(evidence)] = self._fallen[id(evidence)], _fallen(evidence)
            if before == self._fallen[id(evidence)]:
                continue
            passed = evidence.reconsider()
            for opened in (p for p in self._open if p.evidence is evidence):
                mine = [evidence.variants[c] for c, problem in passed if problem == opened.problem.id]
                again = [e for e in evidence.tried(opened.problem, mine) if evidence.wants(e, opened.problem)]
                opened.waiting |= {e.id: e for e in self._placed(opened, again)}

    def _placed(self, opened: _OpenProblem, variants: Iterable[Variant]) -> list[Variant]:
        """Variants in the order in which they were proposed."""
        wanted = {e.id: e for e in variants}
        return [wanted[c] for c in opened.evidence.variants if c in wanted]

    def _operator(self, variant: Variant) -> Operator:
        return next(e.operator for e in self._evidences if e.operator.name == variant.candidate.operator)


class _Homes:
    """Which device has prepared which problem, by number. Preparing it again on another device takes time."""

    def __init__(self) -> None:
        self._of: dict[int, Hashable] = {}

    def move(self, number: int, device: Hashable) -> None:
        self._of[number] = device

    def lose(self, device: Hashable) -> None:
        self._of = {number: home for number, home in self._of.items() if home is not device}

    def pick(self, device: Hashable, ready: Sequence[int], operators: dict[int, str]) -> int:
        """One of the numbers that are ready: its own, then a free one, then what another device would do last.

        Of the free ones it prefers those of an operator that it works on, because its workers have loaded what it
        needs; then those of the operator that the fewest devices have. It takes from the busiest device.
        """
        own = [n for n in ready if self._of.get(n) is device]
        if own:
            return own[0]
        mine = {operators[n] for n, home in self._of.items() if home is device}
        if free := [n for n in ready if n not in self._of]:
            at = Counter(o for o, _ in {(operators[n], home) for n, home in self._of.items()})
            left = Counter(operators[n] for n in free)
            return min(free, key=lambda n: (operators[n] not in mine, at[operators[n]], -left[operators[n]]))
        queues = Counter(self._of[n] for n in ready)
        return min(reversed(ready), key=lambda n: (operators[n] not in mine, -queues[self._of[n]]))


def _fallen(evidence: Evidence) -> int:
    """How many candidates failed or did not compile."""
    return len(evidence.broken) + sum(e.does_not_compile for e in evidence.variants.values())


def _in_turn(variants: list[Variant], weight: Callable[[Variant], float]) -> list[Variant]:
    """The first variants of all kernels, then the second ones, and so on.

    In each turn, an operator's kernels come by the `weight` of the problems that they serve. Operators take turns.
    """
    by_kernel: dict[tuple[str, str], list[Variant]] = {}
    for variant in variants:
        by_kernel.setdefault((variant.candidate.operator, variant.candidate.kernel), []).append(variant)
    served = {kernel: weight(queue[0]) for kernel, queue in by_kernel.items()}
    ranks: dict[tuple[str, str], int] = {}
    for operator in {o for o, _ in by_kernel}:
        mine = sorted((k for k in by_kernel if k[0] == operator), key=lambda k: -served[k])
        ranks |= {kernel: rank for rank, kernel in enumerate(mine)}
    turns = [
        (turn, ranks[kernel], -served[kernel], variant)
        for kernel, queue in by_kernel.items()
        for turn, variant in enumerate(queue)
    ]
    return [variant for *_, variant in sorted(turns, key=lambda t: t[:3])]
