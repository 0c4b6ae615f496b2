"""Devices whose measurements compilers do not disturb: candidates are screened while others compile."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.device_pool import BenchLinker, DevicePool, Job, check_agreement
from aot_tune.pipeline.measuring.measure import Measurer, finalists
from aot_tune.pipeline.pending import expected_seconds
from aot_tune.pipeline.pruning import awaited, follows_another, may_come, to_compile
from aot_tune.pipeline.scheduling.screen_queue import Priority, QueuedProblem, ScreenQueue, queued_problems
from aot_tune.pipeline.session import Session
from aot_tune.search.budget import Task
from aot_tune.spec import Operator
from aot_tune.support.run_program import kill_running

__all__ = ["measure_overlapped"]

_KEPT_FOR_RACES = 0.3
"""Share of a budget that is kept for measuring: when no more than this is left, nothing is compiled any more."""

_PATIENCE = 0.2
"""Seconds between two looks at the budget while no object is ready."""


def _may_compile(session: Session) -> bool:
    """Whether the budget still allows compiling."""
    return session.turn.allows(max(_KEPT_FOR_RACES * (session.turn.seconds or 0.0), 1e-9))


def _when(operator: Operator, variant: Variant) -> tuple[float, bool]:
    return -expected_seconds(operator, variant), follows_another(operator, variant.candidate)


class _BackgroundCompiler:
    """Compiles variants in a thread of its own until `close`: the longest first, and followers last among equals.

    If `weight_of` is given, those of more weight come first. `priority_of` tells the priority of a variant's screens.
    `waited` are the seconds in which `take` had nothing to return.
    """

    def __init__(
        self,
        session: Session,
        linker: BenchLinker,
        variants: Sequence[Variant],
        priority_of: Callable[[Variant], Priority],
        weight_of: Callable[[Variant], float] = lambda _: 0.0,
    ) -> None:
        self._session, self._linker, self._priority_of = session, linker, priority_of
        operators = session.operators
        self._variants = sorted(variants, key=lambda e: (-weight_of(e), *_when(operators[e.candidate.operator], e)))
        self._arrived: queue.Queue[Variant | BaseException | None] = queue.Queue()
        self._stopping, self._ended, self._made = threading.Event(), threading.Event(), set[str]()
        self._most = Priority.NOTHING
        self._over = False
        self.waited = 0.0
        self._begun = self._end = session.progress.now()
        self._thread = threading.Thread(target=self._compile, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether everything was taken, or the budget allows no more compiling."""
        return self._over or not _may_compile(self._session)

    @property
    def seconds(self) -> float:
        """How long compilers ran. Ask when they have ended."""
        return self._end - self._begun

    def calls(self, priority: Priority) -> bool:
        """Whether something of a higher priority is ready, or everything has been compiled."""
        return self._most > priority or self._ended.is_set() or self.over

    def take(self, *, wait: bool, until: Callable[[], object] = lambda: False) -> list[Variant]:
        """The variants that became ready since the last call. If there are none and `wait`, wait for the first.

        The wait also ends when `until` says so.

        Raises:
            BaseException: the error that ended the thread.
        """
        begun = self._session.progress.now()
        batch: list[Variant | BaseException | None] = []
        while wait and not batch and not self.over and not until():
            with contextlib.suppress(queue.Empty):
                batch.append(self._arrived.get(timeout=_PATIENCE))
        self.waited += self._session.progress.now() - begun
        self._most = Priority.NOTHING
        with contextlib.suppress(queue.Empty):
            while True:
                batch.append(self._arrived.get_nowait())
        for item in batch:
            if isinstance(item, BaseException):
                raise item
        self._over = self._over or None in batch
        return [e for e in batch if isinstance(e, Variant)]

    def close(self) -> tuple[list[Variant], list[Variant]]:
        """End the compilers that still run. Returns what is ready but was not taken, and what is not compiled."""
        self._stopping.set()
        while self._thread.is_alive():
            kill_running()
            self._thread.join(_PATIENCE)
        batch: list[Variant | BaseException | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                batch.append(self._arrived.get_nowait())
        return [e for e in batch if isinstance(e, Variant)], [e for e in self._variants if e.id not in self._made]

    def _compile(self) -> None:
        last: BaseException | None = None
        try:
            self._session.compile(
                self._variants,
                self._variants[0].candidate.target,
                self._linker.evidence,
                self._ready,
                then=self._linker.after,
            )
        except BaseException as error:  # passed to the thread that measures
            last = error
        self._end = self._session.progress.now()
        self._ended.set()
        self._arrived.put(last)

    def _ready(self, variant: Variant) -> None:
        if self._stopping.is_set():
            raise InterruptedError("the budget has ended, or the build")  # this ends all compiles that wait
        self._made.add(variant.id)
        self._arrived.put(variant)
        self._most = max(self._most, self._priority_of(variant))


class _Timings:
    """Seconds of a target's tuning: of compiling, of measuring, and of both together on the wall clock."""

    def __init__(self) -> None:
        self.compiling = self.waiting = self.wall = 0.0

    @property
    def measuring(self) -> float:
        """Seconds on the wall clock in which the device was at work."""
        return self.wall - self.waiting


def measure_overlapped(
    session: Session,
    pool: DevicePool,
    evidences: Sequence[Evidence],
    variants: list[Variant],
) -> _Timings:
    """Compile `variants`, screen each on its problems as soon as it is ready, and race when all are screened.

    Other variants have their object already, or a record knows all of them. One that follows another waits for it: it
    is compiled when nothing else is and the problems of its leaders are screened, beside the other screens. If only
    races tell about its leaders, it is compiled, screened and raced after them.

    Several devices time a probe first, while compilers begin. If a budget is too short for all screens, time is left
    to race on the problems that were screened.
    """
    begun = session.progress.now()
    new = {e.id for e in variants}
    others = [e for v in evidences for e in v.variants.values() if e.id not in new]
    tuning = _OverlappedTune(session, pool, evidences, list(variants))
    if session.turn.seconds is not None:
        tuning.check_devices()
        tuning.vouch_for_generics()
        tuning.queue.add(others)
    else:
        tuning.queue.add(others)
        tuning.check_devices(meanwhile=tuning.begin_compiling)
    tuning.screen_known()
    while True:
        tuning.screen_all()
        tuning.race_all()
        if not tuning.queue and not tuning.due() and not tuning.resume_generics():
            if session.turn.seconds is None:
                tuning.verify_unserved()
            tuning.timings.wall = session.progress.now() - begun
            return tuning.timings


@dataclass(frozen=True)
class _Outlook:
    """What is to be compiled now, and the numbers of problems on which candidates may still come to be screened."""

    due: list[Variant] = field(default_factory=list)
    coming: Collection[int] = frozenset()


class _OverlappedTune:
    """What is left to compile, screen and race. `left` are variants whose compile has not started.

    `generics` are generic variants that were tried on one problem each. For the races in `granted`, screens have
    stopped once.
    """

    def __init__(self, session: Session, pool: DevicePool, evidences: Sequence[Evidence], left: list[Variant]) -> None:
        self._session, self._pool, self._evidences, self._left = session, pool, evidences, left
        self._linker = BenchLinker(session, pool, evidences)
        self._background: _BackgroundCompiler | None = None
        self._generics: list[Variant] = []
        self._verified = set[str]()
        self._granted: set[Task] = set()
        self._weighed = session.turn.seconds is not None
        self.queue, self.timings = ScreenQueue(evidences, weighed=self._weighed), _Timings()
        self._races = _EarlyRaces(pool, lambda: self.queue.screened != self._seen[0])
        self._seen, self._decided, self._outlook = (-1, -1), 0, _Outlook()

    def due(self) -> list[Variant]:
        """The variants among those left that are to be compiled now."""
        variants: list[Variant] = []
        for evidence in self._evidences:
            mine = self._left_of(evidence)
            variants += to_compile(evidence, mine, self.queue.unsettled(evidence)) if mine else []
        return variants

    def _left_of(self, evidence: Evidence) -> list[Variant]:
        return evidence.now(e for e in self._left if e.candidate.operator == evidence.operator.name)

    def check_devices(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Leave out devices that do not agree, if anything is to be measured."""
        if not (self._session.pending.anything and self._session.turn.allows(1e-9)):
            return
        begun = self._session.progress.now()
        try:
            check_agreement(self._session, self._pool, self._evidences, meanwhile)
        except BaseException:
            self._end()
            raise
        self.timings.waiting += self._session.progress.now() - begun

    def begin_compiling(self) -> None:
        """Start compiling what is due, while devices do something else."""
        self._begin(self.due())

    def vouch_for_generics(self) -> None:
        """Try each generic variant on the smallest problem that it serves, before a budget ends.

        None is shipped unverified, and verifying after the end would take as long.
        """
        generics = [e for e in self._left if e.candidate.generic]
        if not self._session.turn.allows(1e-9):
            return
        self._left = [e for e in self._left if not e.candidate.generic]
        generics = self._session.compile(generics, "generic", self._evidences)
        jobs: list[tuple[int, Job]] = []
        for evidence in self._evidences:
            queued = [p for p in queued_problems(self._evidences) if p.evidence is evidence]
            queued.sort(key=lambda p: (p.evidence.operator.compulsory_bytes(p.problem), p.number))
            for variant in (e for e in evidence.variants.values() if e.candidate.generic and e.object is not None):
                served = (p for p in queued if evidence.tried(p.problem, [variant]))
                jobs += [(p.number, partial(_screen_one, p, variant)) for p in itertools.islice(served, 1)]
        self._pool.each(jobs)
        self.verify_unserved()
        self._generics = generics

    def verify_unserved(self) -> None:
        """Verify the generic variants that serve no problem, such as those of other dtypes, while there are workers."""
        if jobs := self._verifications():
            self._pool.each(jobs)

    def _verifications(self) -> list[tuple[int, Job]]:
        """Jobs that verify such variants, without those given out before."""
        unserved = [e for evidence in self._evidences for e in evidence.unserved]
        new = [e for e in unserved if e.candidate.id not in self._verified]
        first = -1 - len(self._verified)  # negative, so not the number of a problem
        self._verified |= {e.candidate.id for e in new}
        return [(first - i, partial(_verify, [e])) for i, e in enumerate(new)]

    def resume_generics(self) -> bool:
        """Queue the generic variants for the rest of their problems. Returns whether any are queued."""
        resumed, self._generics = self._generics, []
        self.queue.add(resumed if self._session.turn.allows(1e-9) else ())
        return bool(self.queue)

    def screen_known(self) -> None:
        """Screen what has an object before anything is compiled."""
        while self.queue and not self._races_wait():
            self.queue.screen(self._pool, lambda _: bool(self._races_wait()))

    def screen_all(self) -> None:
        """Compile what is due and what becomes due by it. Screen what is ready, by priority.

        Stop when the rest of the budget is needed for races.
        """
        try:
            while True:
                if granted := self._races_wait():
                    self._granted |= granted
                    return
                if self._background is None:
                    self._begin(self.due())
                if self._background is not None:
                    self.queue.add(self._background.take(wait=not self.queue, until=self._races_wait))
                    if self._background.over:
                        self._end()
                        continue
                elif not self.queue:
                    return
                self.queue.screen(self._pool, self._stops, self._more)
        finally:
            self._end()

    def _more(self) -> Sequence[tuple[int, Job]]:
        """What a device does when it has nothing left while others are at work.

        First it screens what is ready. If nothing compiles or is due, it races on problems whose screens are complete,
        then verifies generic variants. What became due by screens is compiled when no race is under way. What became
        due by races is compiled when no race is left. If a budget may end before all is done, races come last.
        """
        if self._races_wait():
            return ()
        if self._background is not None:
            self.queue.add(self._background.take(wait=False))
            if self._background.over:
                self._end()
        if self._background is None and (due := self._look_ahead()) and not self._races.under_way:
            self._begin(due)
        jobs = self.queue.jobs(self._stops)
        if jobs or self._background is not None or self._weighed or self._outlook.due:
            return jobs
        return self._races.jobs(self.queue.settled(), self._outlook.coming) or self._verifications()

    def _look_ahead(self) -> list[Variant]:
        """What is to be compiled now. It is computed again after a screen, or when all races have ended."""
        screened, raced = self.queue.screened, self._races.done
        if screened != self._seen[0] or (raced != self._seen[1] and not self._races.under_way):
            self._seen, self._decided = (screened, raced), self.queue.decided
            self._outlook = self._looked()
        return self._outlook.due

    def _looked(self) -> _Outlook:
        due, coming = list[Variant](), set[int]()
        for evidence in self._evidences:
            mine = self._left_of(evidence)
            if not mine:
                continue
            unsettled = self.queue.unsettled(evidence)  # read this first, because devices add results meanwhile
            now = evidence.as_now()
            first = to_compile(now, mine, unsettled)
            due += first
            begins = {e.id for e in first}
            later = may_come(now, [e for e in mine if e.id not in begins], unsettled)
            meant = (n for n, p in self.queue.problems_of(evidence) if any(now.meant_for(e, p) for e in later))
            coming.update(meant)
        return _Outlook(due, coming)

    def _begin(self, due: list[Variant]) -> None:
        """Start compiling what is due. If the budget does not allow that, leave it out."""
        now = {e.id for e in due}
        self._outlook = _Outlook(coming=self._outlook.coming)
        self._left = [e for e in self._left if e.id not in now]
        self.queue.add(e for e in due if e.object is not None)  # a probe was compiled before
        due = [e for e in due if e.object is None]
        if due and _may_compile(self._session):
            seconds: dict[tuple[str, str], float] = {}
            for evidence in self._evidences:
                if self._session.turn.seconds is None:  # with a budget there may be no time for it
                    evidence.due.update(now)
                awaiting = awaited(evidence, self._left_of(evidence))
                seconds |= {(evidence.operator.name, p): s for p, s in awaiting.items()}
            self.queue.rank(seconds)
            queue = self.queue
            self._background = _BackgroundCompiler(self._session, self._linker, due, queue.priority_of, queue.weight_of)

    def _end(self) -> None:
        """End the compilers and add up their seconds. What they did not finish is left again."""
        if self._background is not None:
            ready, unfinished = self._background.close()
            self.queue.add(ready)
            self._left += unfinished
            self.timings.compiling += self._background.seconds
            self.timings.waiting += self._background.waited
            self._background = None

    def _stops(self, priority: Priority) -> bool:
        """Whether there is something better to do than screens of this priority."""
        background = self._background  # another device may end it
        if background is not None:
            better = background.calls(priority)
        else:  # new decisions may have made something due
            better = priority < Priority.DECIDING and self.queue.decided != self._decided
        return better or bool(self._races_wait())

    def _races_wait(self) -> set[Task]:
        """The screened problems without a race, once the budget has just time for their races. Any thread may ask."""
        if self._session.turn.seconds is None:
            return set()
        races = {t: s for t, s in self._session.pending.races().items() if t not in self._granted}
        each = 1 / len(self._pool.members)  # the longest race may come last, on one device alone
        seconds = each * sum(races.values()) + (1 - each) * max(races.values(), default=0.0)
        return set(races) if self._session.turn.left <= seconds else set()

    def race_all(self) -> None:
        """Race on every problem where a race is due: with a budget by weight, without one the longest first.

        Entrants without an object, which only a record knew, are compiled together first. If the budget does not allow
        that, the times of the record stand.
        """
        queued = queued_problems(self._evidences, weighed=self._weighed)
        queued = sorted(queued, key=lambda p: -p.weight) if self._weighed else _longest_first(queued)
        due = [(p, entrants) for p in queued if (entrants := finalists(p.evidence, p.problem))]
        missing = {e.candidate.id: e for _, entrants in due for e in entrants if e.object is None}
        if missing and _may_compile(self._session):
            self._session.compile(missing.values(), "finalists", self._evidences)
            due = [(p, p.evidence.now(entrants)) for p, entrants in due]
        races = [(p, entrants) for p, entrants in due if all(e.object is not None for e in entrants)]
        unknown = [
            entrants for p, entrants in races if not self._pool.knows_race(p.evidence.operator, p.problem, entrants)
        ]
        self._linker.all({e.code: e for entrants in unknown for e in entrants}.values())
        self._pool.each(((p.number, partial(_race, p)) for p, _ in races), of=self.queue.operator_of)


def _screen_one(queued: QueuedProblem, variant: Variant, measurer: Measurer) -> None:
    if not queued.evidence.has(variant, queued.problem):
        measurer.screen(queued.evidence, queued.problem, [variant])


def _verify(variants: Sequence[Variant], measurer: Measurer) -> None:
    measurer.verify(variants)


def _race(queued: QueuedProblem, measurer: Measurer) -> None:
    measurer.race(queued.evidence, queued.problem)


def _longest_first(queued: Sequence[QueuedProblem]) -> list[QueuedProblem]:
    """Problems in the order of their races: short ones come last, so that devices end at about the same time."""
    return sorted(queued, key=lambda p: (-p.evidence.operator.compulsory_bytes(p.problem), p.number))


class _EarlyRaces:
    """Races of a pool. `called_off` says that none may start now. `done` counts those that ended."""

    def __init__(self, pool: DevicePool, called_off: Callable[[], bool]) -> None:
        self._pool, self._called_off = pool, called_off
        self._lock, self._given = threading.Lock(), set[int]()
        self.done = 0

    @property
    def under_way(self) -> bool:
        """Whether a race runs or is about to start."""
        return bool(self._given)

    def jobs(self, settled: Sequence[QueuedProblem], coming: Collection[int]) -> list[tuple[int, Job]]:
        """The races that may start, on problems with no screens left.

        Problems in `coming`, by number, are left out, because something may still be screened there. So are problems
        whose entrants are not compiled and linked.
        """
        queued = [p for p in settled if p.number not in coming and p.number not in self._given and self._may_race(p)]
        with self._lock:
            self._given.update(p.number for p in queued)
        return [(p.number, partial(self._race, p)) for p in _longest_first(queued)]

    def _may_race(self, queued: QueuedProblem) -> bool:
        screened = queued.problem.id in queued.evidence.fresh
        entrants = finalists(queued.evidence, queued.problem) if screened else []
        if not entrants or not all(e.object is not None for e in entrants):
            return False
        return all(map(self._is_linked, entrants)) or self._pool.knows_race(
            queued.evidence.operator, queued.problem, entrants
        )

    def _is_linked(self, variant: Variant) -> bool:
        return variant.object is not None and self._pool.shared.is_linked(variant.object)

    def _race(self, queued: QueuedProblem, measurer: Measurer) -> bool:
        raced = not self._called_off()
        if raced:  # if its workers fail, it stays under way: another device takes it over
            measurer.race(queued.evidence, queued.problem)
        with self._lock:
            self._given.discard(queued.number)
            self.done += raced
        return raced
