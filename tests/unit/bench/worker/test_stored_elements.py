"""Elements of 16 bits in arrays of numpy: conversions, what they are drawn as, and what is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_kernels import bf16_bits, bf16_values

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.cpu.verify import compare
from aot_tune.bench.worker.reference_results import logical_inputs, read_truth, write_truth
from aot_tune.bench.worker.stored_elements import array_dtype, limits_of, stored_as, values_of
from aot_tune.spec import dtype, problem
from aot_tune.spec.load_operators import bundled_templates, load_operator

BF16, F16 = dtype("bf16"), dtype("f16")
PATTERNS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def test_every_bf16_is_read_and_written_as_it_is() -> None:
    values = values_of(BF16, PATTERNS)
    np.testing.assert_array_equal(values, bf16_values(PATTERNS))
    back = stored_as(BF16, values)
    assert back.dtype == array_dtype(BF16) == np.uint16
    nan = np.isnan(values)
    np.testing.assert_array_equal(back[~nan], PATTERNS[~nan])
    assert np.isnan(values_of(BF16, back[nan])).all()


def test_floats_are_rounded_to_the_nearest_bf16() -> None:
    bits = np.random.default_rng(3).integers(0, 1 << 32, 300_000, dtype=np.uint64).astype(np.uint32)
    midpoints = (PATTERNS.astype(np.uint32) << 16) | 0x8000
    beside = np.concatenate([midpoints - 1, midpoints, midpoints + 1])
    given = np.concatenate([bits, beside, np.array([0x7F800001, 0xFFFFFFFF], np.uint32)]).view(np.float32)
    np.testing.assert_array_equal(values_of(BF16, stored_as(BF16, given)), bf16_values(bf16_bits(given)))
    np.testing.assert_array_equal(stored_as(BF16, given[:9].astype(np.float64)), bf16_bits(given[:9]))


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_inputs_are_drawn_in_their_dtype(name: str) -> None:
    softmax, on = load_operator(bundled_templates() / "softmax"), problem(R=3, D=70, dtypes={"T": name})
    values = logical_inputs(softmax, Check(problem=on, special="x"), 5)["x"]
    narrow = dtype(name)
    np.testing.assert_array_equal(values, values_of(narrow, stored_as(narrow, values)))
    assert np.isnan(values).sum() == 1
    assert np.isinf(values).sum() == 2


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_what_rounds_to_the_dtype_passes_and_what_is_further_off_does_not(tmp_path: Path, name: str) -> None:
    norm, on = (
        load_operator(bundled_templates() / "rms_norm"),
        problem(R=7, D=4096, present=["weight"], dtypes={"T": name}),
    )
    check, narrow = Check(problem=on), dtype(name)
    write_truth(norm, check, tmp_path / "truth", 5)
    truth, values = read_truth(tmp_path / "truth")["out"]
    out = norm.concrete(on.dtypes).tensor("out")

    def error(got: Any) -> float:
        fault, worst = compare(out, stored_as(narrow, np.asarray(got)), values, truth.bounds)
        assert bool(fault) == (worst > 1)
        return worst

    assert error(values) <= 0.25  # half a step, of the two that four times the yardstick's error are
    assert error(values * (1 + 8 * limits_of(narrow).eps)) > 1
    lost = np.array(values)
    lost[3, 4095] = np.nan
    assert error(lost) > 1
    doubled = np.array(values)
    doubled[6] *= 2
    assert error(doubled) > 1


@pytest.mark.parametrize("name", ["bf16", "f16"])
@pytest.mark.parametrize("operator", ["softmax", "layer_norm"])
def test_tolerances_are_those_on_a_gpu(tmp_path: Path, operator: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    from aot_tune.bench.worker.cuda.truth import read_limits, write_limits

    op = load_operator(bundled_templates() / operator)
    present = [t.name for t in op.tensors if t.name in ("weight", "bias")]
    check = Check(problem=problem(R=16, D=4096, present=present, dtypes={"T": name}))
    write_truth(op, check, tmp_path / "here", 5)
    write_limits(op.concrete({"T": name}), check, tmp_path / "there", 5, torch.device("cpu"))
    here, there = read_truth(tmp_path / "here")["out"][0].bounds, read_limits(tmp_path / "there")["out"].bounds
    assert here.relative == pytest.approx(there.relative, rel=1e-3)
    assert here.absolute == pytest.approx(there.absolute, rel=0.02)
