"""Compiling in the background: what it takes, what it calls for, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pipelines import FAST, GENERIC, OPERATOR, SMALL

from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.measuring.bench_linker import BenchLinker
from aot_tune.pipeline.scheduling.background_compiler import BackgroundCompiler
from aot_tune.pipeline.scheduling.screen_queue import Priority
from aot_tune.pipeline.session import Session
from aot_tune.search import Budget

OTHERS, DECIDING = Priority.OTHERS, Priority.DECIDING


class World:
    """A session whose compiles take 10 s by its own clock, each when it is let."""

    def __init__(self, budget: float | None = None, fault: BaseException | None = None) -> None:
        self.seconds, self.fault = 0.0, fault
        self.steps = threading.Semaphore(0)
        self.turn = Budget(budget, lambda: self.seconds)
        self.progress = SimpleNamespace(now=lambda: self.seconds)
        self.operators = {"scale": SimpleNamespace(operator=OPERATOR)}

    def compile(self, entries: Iterable[Entry], what: str, ready: Callable[[Entry], None], **named: Any) -> None:
        assert what == FAST.candidate.target
        assert set(named) == {"then"}
        for entry in entries:
            assert self.steps.acquire(timeout=30)
            self.seconds += 10.0
            if self.fault is not None:
                raise self.fault
            ready(entry)

    def begin(
        self, entries: list[Entry], priority_of: Callable[[Entry], Priority] = lambda _: Priority.OTHERS
    ) -> BackgroundCompiler:
        linker = cast(BenchLinker, SimpleNamespace(after=None))
        return BackgroundCompiler(cast(Session, self), linker, entries, priority_of)


def test_compilers_take_the_time_that_they_run_and_no_longer() -> None:
    world = World()
    background = world.begin([FAST, SMALL])
    taken: list[Entry] = []
    while not background.over:
        world.steps.release()
        taken += background.take(wait=True)
    assert taken == [FAST, SMALL]
    world.seconds += 1000.0  # the device is still at work
    background.close()
    assert background.seconds == 20.0
    assert background.waited <= 20.0


def test_what_has_a_higher_priority_calls_and_so_does_the_end() -> None:
    world = World()
    background = world.begin([FAST, SMALL, GENERIC], lambda e: DECIDING if e is SMALL else OTHERS)
    world.steps.release()
    assert background.take(wait=True) == [FAST]
    assert not background.calls(OTHERS)
    world.steps.release()
    while not background.calls(OTHERS):
        pass
    assert not background.calls(DECIDING)
    assert background.take(wait=True) == [SMALL]
    assert not background.calls(OTHERS)
    world.steps.release()
    while not background.calls(DECIDING):
        pass
    assert background.close()[0] == [GENERIC]
    assert background.take(wait=False) == []


def test_a_fault_is_raised_where_things_are_taken() -> None:
    world = World(fault=RuntimeError("no compiler"))
    background = world.begin([FAST])
    world.steps.release()
    with pytest.raises(RuntimeError, match="no compiler"):
        background.take(wait=True)
    background.close()


def test_it_is_over_when_the_budget_leaves_no_time_to_compile_and_closing_ends_it(
    no_thread_left: Callable[[], bool],
) -> None:
    world = World(budget=100.0)
    background = world.begin([FAST, SMALL, GENERIC])
    assert background.take(wait=False) == []
    assert not background.over
    world.seconds = 80.0
    assert background.over
    assert background.calls(1.0)
    assert background.take(wait=True) == []  # does not wait
    world.steps.release()  # whatever gets ready from now on ends it
    background.close()
    assert no_thread_left()
