"""Baselines as frameworks see them. This runs in the frameworks' worker, never beside candidates."""

from __future__ import annotations

import importlib
import time
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from aot_tune.bench.worker.cpu.state import ProblemState, changes_of, restoring
from aot_tune.bench.worker.cpu.timing import Repeater, warm_sample
from aot_tune.bench.worker.cpu.verify import compare
from aot_tune.bench.worker.inputs import call_of
from aot_tune.bench.worker.session_of_family import PreparedBaseline, UnusableError, baseline_of
from aot_tune.spec import DType

__all__ = ["prepare_baseline"]


def prepare_baseline(state: ProblemState, name: str) -> PreparedBaseline:
    """Import what a baseline requires, hand it the problem's arrays, and run it once.

    Raises:
        UnusableError: when it cannot run.
    """
    operator = state.operator
    baseline, module = baseline_of(operator, name)
    framework = importlib.import_module(baseline.requires.partition(".")[0])
    functions = []
    for calls in state.rotation():
        try:
            arrays = {n: _handed_on(framework, operator.tensor(n).dtype, view) for n, view in calls.views.items()}
        except AttributeError as missing:
            raise UnusableError(f"{baseline.requires} cannot be used here: {missing}") from missing
        functions.append(baseline.prepare(module, call_of(operator, state.check, arrays)))
    first = state.rotation()[0]
    changes = changes_of(state.rotation(), functions[0])
    first.poison()
    functions[0]()
    worst, note = 0.0, ""
    for tensor in first.outputs():
        truth, values = state.truth[tensor.name]
        fault, error = compare(tensor, first.views[tensor.name], values, truth.bounds)
        worst, note = max(worst, error), note or fault
    if changes:
        first.poison()
    repeater = Repeater(functions, time.perf_counter_ns, [restoring(c) for c in changes])
    return PreparedBaseline(lambda calls, warm: warm_sample(repeater.sample, calls, warm), worst, note)


def _handed_on(framework: ModuleType, dtype: DType, view: NDArray[Any]) -> Any:
    """A framework's tensor of the elements of a view, in the same memory.

    Raises:
        AttributeError: when the framework takes no tensors of others, or has no such dtype.
    """
    if dtype.numpy:
        return framework.from_dlpack(view)
    return framework.from_dlpack(view.view(f"int{dtype.bits}")).view(getattr(framework, dtype.torch))
