"""What a candidate finds where calls are fresh, and where they are repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.cpu.fresh_calls import FreshCalls
from aot_tune.bench.worker.cpu.state import ProblemState
from aot_tune.spec import problem
from aot_tune.spec.load_operators import bundled_templates, load_operator


def found_by_calls(folder: Path, *, fresh: bool) -> tuple[NDArray[Any], list[tuple[NDArray[Any], NDArray[Any]]]]:
    """The input x as it is, and for each call of a play the output and the input that it finds; results are 3."""
    operator = load_operator(bundled_templates() / "softmax")
    state = ProblemState(operator, Check(problem=problem(R=4, D=64)), folder, Policy(), 1 << 20)
    calls = state.at("inside")
    found = []

    def launch(*_arguments: object) -> int:
        found.append((calls.views["out"].copy(), calls.views["x"].copy()))
        calls.views["out"][...] = 3
        return 0

    own = calls.views["x"].copy()
    launch()
    found.clear()
    FreshCalls(launch, (), calls, state.pristine, call_ns=1e9).play(fresh)
    return own, found


def test_a_fresh_call_finds_poison_and_another_value_and_the_last_one_finds_the_inputs_own(tmp_path: Path) -> None:
    own, found = found_by_calls(tmp_path, fresh=True)
    assert len(found) % 2 == 0
    for number, (y, x) in enumerate(found):
        assert np.isnan(y).all()
        assert np.count_nonzero(x != own) == (number + 1) % 2


def test_a_repeated_call_finds_its_results_and_its_inputs(tmp_path: Path) -> None:
    own, found = found_by_calls(tmp_path, fresh=False)
    for y, x in found:
        assert (y == 3).all()
        assert np.array_equal(x, own)
