"""Compiles in the background while devices measure what is compiled already."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

from aot_tune.compile import Variant
from aot_tune.pipeline.measuring.bench_linker import BenchLinker
from aot_tune.pipeline.pending import expected_seconds
from aot_tune.pipeline.prune.after_leader import follows_another
from aot_tune.pipeline.scheduling.screen_queue import Priority
from aot_tune.pipeline.session import Session
from aot_tune.spec import Operator
from aot_tune.support.run_program import kill_running

__all__ = ["BackgroundCompiler", "may_compile"]

_KEPT_FOR_RACES = 0.3
"""Share of a budget that is kept for measuring: when no more than this is left, nothing is compiled any more."""

_PATIENCE = 0.2
"""Seconds between two looks at the budget while no object is ready."""


def may_compile(session: Session) -> bool:
    """Whether the budget still allows compiling."""
    return session.turn.allows(max(_KEPT_FOR_RACES * (session.turn.seconds or 0.0), 1e-9))


def _when(operator: Operator, entry: Variant) -> tuple[float, bool]:
    return -expected_seconds(operator, entry), follows_another(operator, entry.candidate)


class BackgroundCompiler:
    """Compiles entries in a thread of its own until `close`: the longest first, and followers last among equals.

    If `weight_of` is given, entries of more weight come first. `priority_of` tells the priority of an entry's screens.
    `waited` are the seconds in which `take` had nothing to return.
    """

    def __init__(
        self,
        session: Session,
        linker: BenchLinker,
        entries: Sequence[Variant],
        priority_of: Callable[[Variant], Priority],
        weight_of: Callable[[Variant], float] = lambda _: 0.0,
    ) -> None:
        self._session, self._linker, self._priority_of = session, linker, priority_of
        operators = {n: loaded.operator for n, loaded in session.operators.items()}
        self._entries = sorted(entries, key=lambda e: (-weight_of(e), *_when(operators[e.candidate.operator], e)))
        self._found: queue.Queue[Variant | BaseException | None] = queue.Queue()
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
        return self._over or not may_compile(self._session)

    @property
    def seconds(self) -> float:
        """How long compilers ran. Ask when they have ended."""
        return self._end - self._begun

    def calls(self, priority: Priority) -> bool:
        """Whether something of a higher priority is ready, or everything has been compiled."""
        return self._most > priority or self._ended.is_set() or self.over

    def take(self, *, wait: bool, until: Callable[[], object] = lambda: False) -> list[Variant]:
        """The entries that became ready since the last call. If there are none and `wait`, wait for the first.

        The wait also ends when `until` says so.

        Raises:
            BaseException: the error that ended the thread.
        """
        begun = self._session.progress.now()
        batch: list[Variant | BaseException | None] = []
        while wait and not batch and not self.over and not until():
            with contextlib.suppress(queue.Empty):
                batch.append(self._found.get(timeout=_PATIENCE))
        self.waited += self._session.progress.now() - begun
        self._most = Priority.NOTHING
        with contextlib.suppress(queue.Empty):
            while True:
                batch.append(self._found.get_nowait())
        for one in batch:
            if isinstance(one, BaseException):
                raise one
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
                batch.append(self._found.get_nowait())
        return [e for e in batch if isinstance(e, Variant)], [e for e in self._entries if e.id not in self._made]

    def _compile(self) -> None:
        last: BaseException | None = None
        try:
            self._session.compile(
                self._entries,
                self._entries[0].candidate.target,
                self._linker.evidence,
                self._ready,
                then=self._linker.after,
            )
        except BaseException as error:  # passed to the thread that measures
            last = error
        self._end = self._session.progress.now()
        self._ended.set()
        self._found.put(last)

    def _ready(self, entry: Variant) -> None:
        if self._stopping.is_set():
            raise InterruptedError("the budget has ended, or the build")  # this ends all compiles that wait
        self._made.add(entry.id)
        self._found.put(entry)
        self._most = max(self._most, self._priority_of(entry))
