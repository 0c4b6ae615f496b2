"""Baselines on the CPU get tensors of the problem's dtypes."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundled import OPERATORS

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.cpu_engine import CpuEngine
from aot_tune.bench.worker.problem_state import ProblemState
from aot_tune.bench.worker.reference_results import write_truth
from aot_tune.bench.worker.worker_session import prepare_baseline
from aot_tune.spec import DTYPES, Baseline, problem


def mine(seen: list[Any], compute: Callable[[Any, Any], Any], output: str) -> Baseline:
    """A baseline of torch's that notes its tensors."""

    def prepare(torch: Any, call: Any) -> Callable[[], object]:
        out = getattr(call, output)
        seen.extend((call.x, out))
        return lambda: out.copy_(compute(torch, call))

    return Baseline("mine", "torch", prepare)


def test_torch_is_right_in_each_dtype_on_tensors_in_the_problems_memory(tmp_path: Path) -> None:
    torch, policy = pytest.importorskip("torch"), Policy()
    for operator, dtype in (("softmax", "bf16"), ("softmax", "f32"), ("rms_norm", "f16"), ("layer_norm", "bf16")):
        seen: list[Any] = []
        op = OPERATORS[operator]
        own = mine(seen, lambda torch, call: torch.softmax(call.x.double(), -1), "out")
        check = Check(problem=problem(R=5, D=768, dtypes={"T": dtype}))
        write_truth(op, check, tmp_path / f"{operator} {dtype}", policy.seed)
        engine = CpuEngine(policy, 1 << 20)
        op = replace(op, baselines=(*op.baselines, own))
        state = ProblemState(engine, op, check, tmp_path / f"{operator} {dtype}")
        prepared = prepare_baseline(engine, state, f"torch.{operator}")
        assert (0 < prepared.error <= 1, prepared.note) == (True, ""), (operator, dtype)
        assert prepared.timer.turn(1, 0).samples[0] > 0
        if operator == "softmax":
            assert prepare_baseline(engine, state, "mine").error <= 1
            assert all(t.dtype == getattr(torch, DTYPES[dtype].torch) for t in seen)
            assert seen[1].data_ptr() == state.at().pieces["out"].address


def test_making_a_frameworks_calls_takes_no_longer_than_a_loop_over_them(tmp_path: Path) -> None:
    """No empty call is taken off its times, so the rest would be to its disadvantage."""

    def nothing() -> None:
        pass

    def bare(calls: int) -> float:
        functions = [nothing] * calls
        begin = time.perf_counter_ns()
        for function in functions:
            function()
        return (time.perf_counter_ns() - begin) / calls

    op = OPERATORS["softmax"]
    state = ProblemState(CpuEngine(Policy(), 0), op, Check(problem=problem(R=5, D=8, dtypes={"T": "f32"})), tmp_path)
    timer = state._engine.framework_timer([nothing], state.rotation())
    took = [(timer.turn(10_000, 0).samples[0], bare(10_000)) for _ in range(30)]
    assert min(t for t, _ in took) < 1.4 * min(b for _, b in took)


def test_a_baselines_module_is_imported_before_the_engine_prepares_for_its_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU new tensors are made there, also those that a module makes for itself when it is imported."""
    (tmp_path / "imported_first.py").write_text("import sys\nprepared = sys.preparing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "preparing", False, raising=False)

    class Preparing(CpuEngine):
        @contextmanager
        def framework(self, *_: Any) -> Iterator[None]:
            sys.preparing = True  # type: ignore[attr-defined]
            yield

    baseline = Baseline("mine", "imported_first", lambda _module, _call: None)
    op = replace(OPERATORS["softmax"], baselines=(baseline,))
    state = ProblemState(
        Preparing(Policy(), 0), op, Check(problem=problem(R=5, D=8, dtypes={"T": "f32"})), tmp_path / "truth"
    )
    with pytest.raises(Exception, match="from_dlpack"):
        prepare_baseline(state._engine, state, "mine")
    assert sys.modules["imported_first"].prepared is False
