"""Tunes a CPU within a budget: it compiles a few candidates, measures what promises most, and so on."""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import Measurer, finalists
from aot_tune.pipeline.pending import expected_seconds, task_of
from aot_tune.pipeline.scheduling.time_to_link import seconds_after
from aot_tune.pipeline.session import Session
from aot_tune.search.budget import Budget, Gains, Task, most_promising
from aot_tune.spec import Problem
from aot_tune.support.interrupts import AGAIN
from aot_tune.support.run_program import kill_running

__all__ = ["BudgetTuning", "ended_with"]

_LEAST_GAIN = 1e-12
"""What promises less than this only improves the report."""

_COMPILING = 0.4
"""Share of the time for compilers, as long as there is something to measure."""

_PER_JOB = 2
"""How many candidates each compiler gets at a time. Nothing can be measured until the last of them is compiled."""


@contextlib.contextmanager
def ended_with(budget: Budget, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` repeatedly, in a thread of its own, from the end of the budget until the block ends."""
    if budget.seconds is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        wait = budget.left
        while not done.wait(wait):
            if budget.left <= 0:
                stop()
            wait = max(budget.left, AGAIN)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@dataclass
class _OpenProblem:
    """A problem and the candidates that wait to be tried on it, by id. It has `raced` this many times.

    `asked` are the ids of the last question whether the store knows their race, and the answer.
    """

    evidence: Evidence
    problem: Problem
    task: Task
    waiting: dict[str, Variant] = field(default_factory=dict)
    raced: int = 0
    asked: tuple[list[str], bool] = ([], False)
    weight: float = 1.0

    def best(self) -> float | None:
        """The best time in ns so far. Generic variants do not count."""
        row, variants = self.evidence.on(self.problem), self.evidence.variants
        times = (m.ns for c, m in row.items() if c in variants and not variants[c].candidate.generic)
        return min((t for t in times if t is not None), default=None)


class BudgetTuning:
    """Tunes operators on one CPU target until the turn ends. What it learns stays from step to step."""

    def __init__(self, session: Session, pool: DevicePool, evidences: Sequence[Evidence]) -> None:
        self._session, self._pool = session, pool
        self._measurer: Measurer = pool.members[0]
        self._opened = [
            _OpenProblem(evidence, p, task_of(evidence.operator, p), weight=evidence.operator.weight(p))
            for evidence in evidences
            for p in evidence.workload
        ]
        self._weighs = len({p.weight for p in self._opened}) > 1
        self._evidences = evidences
        self._durations = session.pending.durations
        self._gains = Gains(self._durations)
        self._costs: dict[str, dict[str, float]] = {}

    def run(self, variants: list[Variant]) -> None:
        """Compile `variants` and measure them. The best guesses for most problems come first."""
        turn = self._session.turn
        self._arrive(e for evidence in self._evidences for e in evidence.variants.values() if e.code)
        self._vouch_for_generics()  # it must be done, and later it would take as long
        with ended_with(turn, self._stop):
            queue = _in_turn([e for e in variants if e.object is None], self._weight_of)
            begun, compiling = turn.spent, 0.0
            while turn.allows(1e-9):
                task = self._most_gainful()
                if queue and (task is None or compiling <= _COMPILING * (turn.spent - begun)):
                    batch = queue[: self._room(queue[0])]
                    del queue[: len(batch) or len(queue)]
                    before = turn.spent
                    self._compile(batch)
                    compiling += turn.spent - before
                elif task is not None:
                    task()
                else:
                    break

    def finish(self) -> None:
        """If there is time, measure what only improves the report."""
        with ended_with(self._session.turn, self._stop):
            while self._session.turn.allows(1e-9) and (task := self._most_gainful(least=0.0)) is not None:
                task()

    def lacks_time(self) -> bool:
        """Whether something is left undone that promises a gain."""
        return any(gain >= _LEAST_GAIN for p in self._opened for gain, _, _ in self._choices(p))

    def _stop(self) -> None:
        kill_running()
        self._pool.interrupt()

    def _weight_of(self, variant: Variant) -> float:
        """The weight of all problems that a variant is meant for. If each weighs 1, it is their number."""
        mine = (p for p in self._opened if p.task.operator == variant.candidate.operator)
        return math.fsum(p.weight for p in mine if p.evidence.meant_for(variant, p.problem))

    def _room(self, first: Variant) -> int:
        """How many candidates like `first` to compile at once, so that there is time to compile and measure them."""
        operator = self._session.operators[first.candidate.operator]
        each = self._durations.compile(expected_seconds(operator, first))
        most = _PER_JOB * self._session.jobs_of("cxx").count
        return min(most, int(_COMPILING * self._session.turn.left / each))

    def _compile(self, batch: list[Variant]) -> None:
        def ready(variant: Variant) -> None:
            if not variant.compiled and not self._session.turn.allows(1e-9):
                raise InterruptedError("the budget has ended")

        try:
            compiled = self._session.compile(batch, "", self._evidences, ready)
        except InterruptedError:
            return
        self._session.keep(seconds_after(self._session))
        self._arrive(compiled)

    def _arrive(self, variants: Iterable[Variant]) -> None:
        """Queue compiled candidates for their problems. Results that the store knows are taken over at once."""
        by_operator: defaultdict[str, list[Variant]] = defaultdict(list)
        for variant in variants:
            by_operator[variant.candidate.operator].append(variant)
        for opened in self._opened:
            for variant in opened.evidence.tried(opened.problem, by_operator[opened.task.operator]):
                if not opened.evidence.has(variant, opened.problem):
                    if not self._measurer.recall(opened.evidence, opened.problem, variant):
                        opened.waiting[variant.candidate.id] = variant
                    self._costs.pop(opened.task.operator, None)

    def _vouch_for_generics(self) -> None:
        """Try each generic variant on the smallest problem that it serves, because none is shipped unverified."""
        for opened in sorted(self._opened, key=lambda p: p.task.size):
            for variant in [e for e in opened.waiting.values() if e.candidate.generic]:
                rows = opened.evidence.measurements.values()
                if self._session.turn.allows(1e-9) and not any(variant.candidate.id in row for row in rows):
                    self._screen(opened, variant)
        self._measurer.verify(e for evidence in self._evidences for e in evidence.unserved)

    def _most_gainful(self, least: float = _LEAST_GAIN) -> Callable[[], None] | None:
        """The measurement that promises most per second, among those for which there is time; None if there is none.

        It promises at least `least`. If weights differ, problems are started by weight. Then a promise counts in
        proportion to its problem's weight.
        """
        left = self._session.turn.left
        best: tuple[tuple[float, float, float], Callable[[], None]] | None = None
        for opened in self._opened:
            first = opened.weight if self._weighs and opened.best() is None else 0.0
            for gain, seconds, task in self._choices(opened):
                rank = (math.inf if gain == math.inf else first, gain * opened.weight, gain)
                if seconds <= left and gain >= least and (best is None or rank > best[0]):
                    best = rank, task
        return best[1] if best is not None else None

    def _choices(self, opened: _OpenProblem) -> Iterable[tuple[float, float, Callable[[], None]]]:
        """What can be done about a problem: the gain per second, the seconds, and the action."""
        durations = self._durations
        chosen = [e for e in opened.waiting.values() if not e.candidate.generic]
        if opened.waiting:
            seconds = durations.screen(opened.task) + durations.prepare(opened.task)
            gain = self._gains.of_screen(opened.task) if chosen else 0.0
            yield gain, seconds, lambda: self._screen_best(opened)
        if not chosen and (entrants := finalists(opened.evidence, opened.problem)):
            if self._knows_race(opened, entrants):  # it costs no time
                yield math.inf, 0.0, lambda: self._race(opened)
                return
            seconds = durations.race(opened.task) + durations.prepare(opened.task)
            gain = self._gains.of_race(opened.task, opened.raced) if len(entrants) > 1 else 0.0
            yield gain, seconds, lambda: self._race(opened)

    def _knows_race(self, opened: _OpenProblem, entrants: Sequence[Variant]) -> bool:
        ids = [e.candidate.id for e in entrants]
        if opened.asked[0] != ids:
            opened.asked = ids, self._measurer.knows_race(opened.evidence.operator, opened.problem, entrants)
        return opened.asked[1]

    def _screen_best(self, opened: _OpenProblem) -> None:
        operator = opened.task.operator
        if operator not in self._costs:
            self._costs[operator] = _mean_costs(opened.evidence)
        chosen = [c for c, e in opened.waiting.items() if not e.candidate.generic] or list(opened.waiting)
        self._screen(opened, opened.waiting[most_promising(self._costs[operator], chosen)])

    def _screen(self, opened: _OpenProblem, variant: Variant) -> None:
        before = opened.best()
        del opened.waiting[variant.candidate.id]
        self._measurer.screen(opened.evidence, opened.problem, [variant])
        if not variant.candidate.generic and opened.evidence.has(variant, opened.problem):
            self._gains.tried(opened.task, before, opened.best())
        self._costs.pop(opened.task.operator, None)

    def _race(self, opened: _OpenProblem) -> None:
        picked = finalists(opened.evidence, opened.problem)[0].candidate.id
        self._measurer.race(opened.evidence, opened.problem)
        opened.raced += 1
        raced = opened.evidence.on(opened.problem).get(picked)
        if raced is not None and raced.final is not None and raced.ns is not None:
            self._gains.raced(raced.ns, min(opened.best() or raced.ns, raced.ns))
        self._costs.pop(opened.task.operator, None)


def _mean_costs(evidence: Evidence) -> dict[str, float]:
    """By candidate, how far it was from the best: the mean natural logarithm over the problems where it has a time."""
    logs: dict[str, list[float]] = {}
    for row in evidence.measurements.values():
        times = {c: m.ns for c, m in row.items() if m.ns is not None and c in evidence.variants}
        for candidate, time in times.items():
            logs.setdefault(candidate, []).append(math.log(time / min(times.values())))
    return {c: statistics.fmean(values) for c, values in logs.items()}


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
