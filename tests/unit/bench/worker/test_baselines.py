"""Baselines on the CPU get tensors of the problem's dtypes."""

from __future__ import annotations

from collections.abc import Callable
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
