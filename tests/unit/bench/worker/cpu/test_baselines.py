"""Baselines on the CPU get tensors of the problem's dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from element_types import write_operators

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.cpu.baselines import prepare_baseline
from aot_tune.bench.worker.cpu.state import ProblemState
from aot_tune.bench.worker.reference_results import write_truth
from aot_tune.spec import DTYPES, Baseline, problem
from aot_tune.spec.load_operators import bundled_templates, load_operator

ROWS = {"softmax": "torch.softmax", "rms_norm": "torch.rms_norm", "layer_norm": "torch.layer_norm"}
ROWS["silu_mul"] = "torch.silu_mul"


@pytest.fixture
def state_of(tmp_path: Path) -> Callable[..., ProblemState]:
    def make(operator: str, dtype: str, *baselines: Baseline, present: Sequence[str] = ()) -> ProblemState:
        op = load_operator(bundled_templates() / operator)
        check, policy = Check(problem=problem(R=5, D=768, present=present, dtypes={"T": dtype})), Policy()
        truth = tmp_path / f"{operator} {dtype}"
        write_truth(op, check, truth, policy.seed)
        return ProblemState(replace(op, baselines=baselines or op.baselines), check, truth, policy, 1 << 20)

    return make


def test_torch_is_right_in_each_dtype(state_of: Callable[..., ProblemState]) -> None:
    pytest.importorskip("torch")
    for operator, baseline in ROWS.items():
        for dtype in ("f32", "bf16", "f16"):
            prepared = prepare_baseline(state_of(operator, dtype), baseline)
            assert (0 < prepared.error <= 1, prepared.note) == (True, ""), (operator, dtype)
            assert prepared.sample(1, 0) > 0


def test_tensors_are_of_the_dtype_and_in_the_problem_s_memory(state_of: Callable[..., ProblemState]) -> None:
    torch = pytest.importorskip("torch")
    seen: list[Any] = []

    def prepare(_torch: Any, call: Any) -> Callable[[], object]:
        seen.extend((call.x, call.out))
        return lambda: call.out.copy_(torch.softmax(call.x.double(), -1))

    state = state_of("softmax", "bf16", Baseline("mine", "torch", prepare))
    assert prepare_baseline(state, "mine").error <= 1
    assert all(t.dtype == torch.bfloat16 for t in seen)
    assert seen[1].data_ptr() == state.at("inside").regions["out"].address


@pytest.mark.parametrize("dtype", ["f8e5m2", "f8e4m3"])
def test_floats_of_eight_bits_are_torch_s(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    op, policy = load_operator(write_operators(tmp_path / "templates") / "rescale"), Policy()
    check = Check(problem=problem(N=500, dtypes={"T": dtype}))
    write_truth(op, check, tmp_path / "truth", policy.seed)
    seen: list[Any] = []

    def prepare(_torch: Any, call: Any) -> Callable[[], object]:
        seen.extend((call.x, call.y))
        return lambda: call.y.copy_((call.x.float() * call.factor).to(call.y.dtype))

    state = ProblemState(
        replace(op, baselines=(Baseline("mine", "torch", prepare),)), check, tmp_path / "truth", policy, 1 << 20
    )
    assert prepare_baseline(state, "mine").error <= 1
    assert all(t.dtype == getattr(torch, DTYPES[dtype].torch) for t in seen)
