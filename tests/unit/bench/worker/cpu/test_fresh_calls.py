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
    """The input as it is, and for each call of a play the output and the input that it finds.

    Results are 3 before the play; each call of it leaves 5 in the output and 7 in the input.
    """
    operator = load_operator(bundled_templates() / "softmax")
    state = ProblemState(operator, Check(problem=problem(R=4, D=64)), folder, Policy(), 1 << 20)
    calls = state.at("inside")
    own, found = calls.views["x"].copy(), []
    calls.views["out"][...] = 3

    def launch(*_arguments: object) -> int:
        found.append((calls.views["out"].copy(), calls.views["x"].copy()))
        calls.views["out"][...], calls.views["x"][...] = 5, 7
        return 0

    FreshCalls(launch, (), calls, state.pristine, call_ns=1e9).play(fresh)
    return own, found


def test_a_fresh_call_finds_poison_and_first_another_value_then_the_inputs_own(tmp_path: Path) -> None:
    own, ((first, other), (second, back)) = found_by_calls(tmp_path, fresh=True)
    assert np.isnan(first).all()
    assert np.isnan(second).all()
    assert np.count_nonzero(other != own) == 1
    assert np.count_nonzero(back == own) == 1


def test_a_repeated_call_finds_what_was_there_written_anew_in_the_same_places(tmp_path: Path) -> None:
    """Else caches differ from where calls are fresh, and honest kernels of several threads are slower there."""
    own, ((first, same), (second, back)) = found_by_calls(tmp_path, fresh=False)
    assert (first == 3).all()
    assert (second == 3).all()
    assert np.array_equal(same, own)
    assert np.count_nonzero(back == own) == 1
