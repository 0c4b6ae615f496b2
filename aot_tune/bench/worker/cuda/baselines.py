"""Baselines of frameworks on a GPU: captured in graphs and timed as candidates are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from aot_tune.bench.worker.cuda.engine import Call, Engine
from aot_tune.bench.worker.cuda.state import ProblemState
from aot_tune.bench.worker.cuda.timing import Clock, Sampler
from aot_tune.bench.worker.inputs import call_of

__all__ = ["TorchBaseline", "prepare_baseline"]


class TorchBaseline:
    """A baseline on a problem, ready to be timed.

    `error` is the largest of its outputs' errors in tolerances; `note` says when that is more than 1, as it is for a
    baseline that computes less than the operator (a product without its epilogue).
    """

    def __init__(self, sampler: Sampler, error: float, note: str) -> None:
        self.sampler, self.error, self.note = sampler, error, note

    def close(self) -> None:
        """Let its graph go."""
        self.sampler.close()


def prepare_baseline(engine: Engine, state: ProblemState, name: str, clock: Clock) -> TorchBaseline | str:
    """Import what a baseline requires, hand it the problem's tensors, and run it once; or say why it cannot run."""
    operator = state.operator
    baseline = next((b for b in operator.baselines if b.name == name), None)
    if baseline is None:
        return f"operator {operator.name!r} has no baseline {name!r}"
    sets = state.rotation()
    if any(place.backward() for place in sets[0].layouts.values()):
        return "torch has no tensors with negative strides"
    try:
        module = importlib.import_module(baseline.requires)
    except ImportError as missing:
        return f"{baseline.requires} cannot be used here: {missing}"
    calls: list[Call] = []
    with _math(state.check.problem.attributes.get("math", "")), torch.device(engine.device):
        for one in sets:
            tensors = {t.name: one.tensor(t) for t in operator.tensors if t.name in one.layouts}
            calls.append(_call(baseline.prepare(module, call_of(operator, state.check, tensors))))
        sets[0].poison()
        for _ in range(2):  # frameworks allocate, choose and compile in their first call
            calls[0]()
        engine.check()
        error, note = _judge(state)
        sampler = Sampler(engine, calls, state.policy, clock, framework=True)
    return TorchBaseline(sampler, error, "; ".join(n for n in (note, sampler.note) if n))


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
    """TF32 in torch's products where the problem has it."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
