"""Baselines as frameworks see them; runs in the frameworks' worker, never beside candidates."""

from __future__ import annotations

import importlib
import time

from aot_tune.bench.worker.cpu.state import ProblemState
from aot_tune.bench.worker.cpu.timing import Repeater
from aot_tune.bench.worker.cpu.verify import compare
from aot_tune.bench.worker.inputs import call_of

__all__ = ["PreparedBaseline", "prepare_baseline"]


class PreparedBaseline:
    """A baseline on a problem: one function per copy of the cold tensors.

    `error` is the largest of its outputs' errors in tolerances; `note` says when that is more than 1, as it is for a
    baseline that computes less than the operator (a product without its epilogue).
    """

    def __init__(self, repeater: Repeater, error: float, note: str) -> None:
        self.repeater, self.error, self.note = repeater, error, note


def prepare_baseline(state: ProblemState, name: str) -> PreparedBaseline | str:
    """Import what a baseline requires, hand it the problem's arrays, and run it once; or say why it cannot run."""
    operator = state.operator
    baseline = next((b for b in operator.baselines if b.name == name), None)
    if baseline is None:
        return f"operator {operator.name!r} has no baseline {name!r}"
    try:
        module = importlib.import_module(baseline.requires)
        convert = importlib.import_module(baseline.requires.partition(".")[0]).from_dlpack
    except (ImportError, AttributeError) as missing:
        return f"{baseline.requires} cannot be used here: {missing}"
    functions = []
    for calls in state.rotation():
        call = call_of(operator, state.check, calls.views, convert)
        functions.append(baseline.prepare(module, call))
    first = state.rotation()[0]
    first.poison()
    functions[0]()
    worst, note = 0.0, ""
    for tensor in first.outputs():
        truth, values = state.truth[tensor.name]
        fault, error = compare(tensor, first.views[tensor.name], values, truth.bounds)
        worst, note = max(worst, error), note or fault
    return PreparedBaseline(Repeater(functions, time.perf_counter_ns), worst, note)
