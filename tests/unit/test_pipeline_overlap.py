"""Screening while other candidates still compile: order, followers, faults, and the end of a budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aot_tune.bench import Measurement
from aot_tune.compile import Object
from aot_tune.pipeline.crew import Crew, Job
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.overlap import measure_overlapped
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.render import Candidate, Rendered, requirements
from aot_tune.search import Budget
from aot_tune.spec import Kernel, Operator, Parameter, Problem, Target, Tensor, dims, problem

(N,) = dims("N")
TARGET = Target(name="cuda-sm_90a", family="cuda", level=90, last=90)
OPERATOR = Operator(
    name="scale",
    dims=("N",),
    dtypes={"T": ("bf16", "f16")},
    tensors=(Tensor("x", (N,), "T"), Tensor("out", (N,), "T", output=True)),
    reference=lambda xp, call: {"out": call.x},
    flops=N,
    workload={"cuda": (problem(N=8), problem(N=64), problem(N=8, dtypes={"T": "f16"}))},
    kernels=(
        Kernel("generic", "g.cu.j2", backend="nvcc", generic=True),
        Kernel(
            "slow",
            "s.cu.j2",
            backend="nvcc",
            parameters=(Parameter("W", (1, 2, 3)),),
            follows={"f16": "bf16"},
            compile_seconds=40.0,
        ),
        Kernel("quick", "q.cu.j2", backend="nvcc", dtypes={"T": ("bf16",)}, compile_seconds=1.0),
    ),
)
TIMES = {1: 100.0, 2: 101.0, 3: 150.0}
"""Of the kernel `slow` by its W: the first two are among the best, the third is not."""


def entry(kernel: str, dtype: str, width: int = 0) -> Entry:
    candidate = Candidate(
        operator="scale",
        kernel=kernel,
        backend="nvcc",
        target=TARGET.name,
        config={"W": width} if width else {},
        generic=kernel == "generic",
        dtypes={"T": dtype},
    )
    symbol = f"{kernel}_{dtype}_{width}"
    rendered = Rendered(candidate=candidate, source=symbol, digest=symbol, symbol=symbol, lines=[])
    return Entry(candidate=candidate, rendered=rendered, requires=requirements(OPERATOR, candidate))


class World:
    """A session, a crew and a measurer that only note what they are asked for."""

    def __init__(self, budget: float | None = None, delay: float = 0.0, fault: BaseException | None = None) -> None:
        self.compiled: list[str] = []
        self.screened: list[tuple[str, str]] = []
        self.raced: list[str] = []
        self.delay, self.fault = delay, fault
        self.main = threading.get_ident()
        self.turn = Budget(budget)
        self.progress = SimpleNamespace(now=time.monotonic)
        self.operators = {"scale": SimpleNamespace(operator=OPERATOR)}
        self.benches = [SimpleNamespace(shared_object=lambda _entry: None)]
        self.members = [self]

    def compile(self, entries: Iterable[Entry], _what: str, ready: Callable[[Entry], None]) -> None:
        assert threading.get_ident() != self.main
        for one in entries:
            time.sleep(self.delay)
            if self.fault is not None:
                raise self.fault
            self.compiled.append(one.rendered.symbol)
            one.object = Object(
                key="",
                path="x",
                digest=one.rendered.symbol,
                symbol=one.rendered.symbol,
                source="",
                target=TARGET.name,
                status="ok",
                error="",
                cached=False,
            )
            ready(one)

    def each(self, jobs: Iterable[tuple[int, Job]]) -> None:
        for _, job in jobs:
            job(cast(Any, self))

    def recorded(self, *_: object) -> bool:
        return False

    def screen(self, _loaded: object, evidence: Evidence, where: Problem, tried: list[Entry], _tick: object) -> None:
        for one in tried:
            self.screened.append((where.id, one.rendered.symbol))
            width = cast(int, one.candidate.config.get("W", 0))
            evidence.add(
                Measurement(
                    candidate=one.candidate.id,
                    object=one.digest,
                    problem=where,
                    device="d",
                    policy="p",
                    status="ok",
                    screen=(TIMES.get(width, 200.0),) * 4,
                )
            )

    def race(self, _loaded: object, _evidence: Evidence, where: Problem) -> None:
        self.raced.append(where.id)

    def run(self, entries: list[Entry]) -> Evidence:
        evidence = Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in entries})
        pairs = [(cast(LoadedOperator, SimpleNamespace(operator=OPERATOR)), evidence)]
        measure_overlapped(cast(Session, self), cast(Crew, self), pairs, entries, lambda _note: None)
        return evidence


def everyone() -> list[Entry]:
    slow = [entry("slow", dtype, width) for dtype in ("bf16", "f16") for width in TIMES]
    return [entry("generic", "bf16"), entry("generic", "f16"), entry("quick", "bf16"), *slow]


def test_long_compiles_begin_and_followers_wait_for_what_they_follow() -> None:
    world = World()
    world.run(everyone())
    assert world.compiled[:3] == ["slow_bf16_1", "slow_bf16_2", "slow_bf16_3"]
    assert world.compiled[-2:] == ["slow_f16_1", "slow_f16_2"]  # 3 was not among the best: it is not even compiled
    assert ("N=8 T=f16", "slow_f16_1") in world.screened
    assert {where for where, symbol in world.screened if symbol == "slow_bf16_1"} == {"N=8", "N=64"}
    assert world.raced == ["N=8", "N=64", "N=8 T=f16"]


def test_each_candidate_is_screened_once_on_each_of_its_problems() -> None:
    world = World(delay=0.01)
    world.run(everyone())
    assert len(world.screened) == len(set(world.screened)) == 2 * 5 + 1 * 3


def test_a_fault_of_the_compiling_thread_ends_the_tuning() -> None:
    with pytest.raises(RuntimeError, match="no compiler"):
        World(fault=RuntimeError("no compiler")).run(everyone())
    assert threading.active_count() == 1


def test_at_the_end_of_the_budget_what_is_there_is_raced() -> None:
    world = World(budget=1.2, delay=0.5)
    begin = time.monotonic()
    world.run(everyone())
    assert time.monotonic() - begin < 5
    assert 0 < len(world.compiled) < 9
    assert world.raced
