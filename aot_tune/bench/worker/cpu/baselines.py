"""Baselines as frameworks see them; runs in the frameworks' worker, never beside candidates."""

from __future__ import annotations

import importlib
import time

from aot_tune.bench.worker.cpu.state import ProblemState
from aot_tune.bench.worker.cpu.timing import Repeater, warm_sample
from aot_tune.bench.worker.cpu.verify import compare
from aot_tune.bench.worker.inputs import call_of
from aot_tune.bench.worker.prepared_baseline import PreparedBaseline, UnusableError, baseline_of

__all__ = ["prepare_baseline"]


def prepare_baseline(state: ProblemState, name: str) -> PreparedBaseline:
    """Import what a baseline requires, hand it the problem's arrays, and run it once.

    Raises:
        UnusableError: when it cannot run.
    """
    operator = state.operator
    baseline, module = baseline_of(operator, name)
    try:
        convert = importlib.import_module(baseline.requires.partition(".")[0]).from_dlpack
    except AttributeError as missing:
        raise UnusableError(f"{baseline.requires} cannot be used here: {missing}") from missing
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
    repeater = Repeater(functions, time.perf_counter_ns)
    return PreparedBaseline(lambda calls, warm: warm_sample(repeater.sample, calls, warm), worst, note)
