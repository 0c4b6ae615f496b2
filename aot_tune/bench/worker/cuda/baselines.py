"""Baselines of frameworks on a GPU: captured in graphs and timed as candidates are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from aot_tune.bench.worker.cuda.engine import Call, Engine
from aot_tune.bench.worker.cuda.state import ProblemState, undo_of
from aot_tune.bench.worker.cuda.timing import Clock, Sampler
from aot_tune.bench.worker.inputs import call_of
from aot_tune.bench.worker.session_of_family import PreparedBaseline, UnusableError, baseline_of

__all__ = ["prepare_baseline"]


def prepare_baseline(engine: Engine, state: ProblemState, name: str, clock: Clock) -> PreparedBaseline:
    """Import what a baseline requires, hand it the problem's tensors, and run it once.

    Raises:
        UnusableError: when it cannot run.
    """
    operator, sets = state.operator, state.rotation()
    if any(place.backward() for place in sets[0].layouts.values()):
        raise UnusableError("torch has no tensors with negative strides")
    baseline, module = baseline_of(operator, name)
    calls: list[Call] = []
    with _math(state.check.problem.attributes.get("math", "")), torch.device(engine.device):
        for one in sets:
            tensors = {t.name: one.tensor(t) for t in operator.tensors if t.name in one.layouts}
            calls.append(_call(baseline.prepare(module, call_of(operator, state.check, tensors))))
        sets[0].poison()
        for _ in range(2):  # in their first call, frameworks allocate, choose and compile
            sets[0].undo()
            calls[0]()
        engine.check()
        error, note = _judge(state)
        sampler = Sampler(engine, calls, state.policy, clock, framework=True, undo=undo_of(sets))
    notes = "; ".join(n for n in (note, sampler.note) if n)
    return PreparedBaseline(lambda _calls, warm: sampler.sample(bool(warm)), error, notes, sampler.close)


def _call(function: Callable[[], object]) -> Call:
    def call() -> int:
        function()
        return 0

    return call


def _judge(state: ProblemState) -> tuple[float, str]:
    first, worst, note = state.rotation()[0], 0.0, ""
    for expected in state.expected.values():
        got = first.tensor(expected.tensor)
        fault, error = "", float(expected.worst(got))
        if not error <= 1.0:
            fault, error = expected.judge(got)
        worst, note = max(worst, error), note or fault
    return worst, note


@contextmanager
def _math(mode: str) -> Iterator[None]:
    """Allow TF32 in torch's products if the problem does."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
