"""Elements of 16 bits in arrays of numpy: conversions, and tolerances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bundled import OPERATORS
from cpu_kernels import bf16_bits, bf16_values

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.reference_results import read_limits, read_truth, write_truth
from aot_tune.bench.worker.stored_elements import array_dtype, stored_as, values_of
from aot_tune.spec import dtype, problem

BF16 = dtype("bf16")
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
def test_tolerances_are_those_on_a_gpu(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    from aot_tune.bench.worker.cuda_truth import write_limits

    op = OPERATORS["layer_norm"]
    check = Check(problem=problem(R=16, D=4096, present=["weight", "bias"], dtypes={"T": name}))
    write_truth(op, check, tmp_path / "here", 5)
    write_limits(op.concrete({"T": name}), check, tmp_path / "there", 5, torch.device("cpu"))
    here, there = read_truth(tmp_path / "here")["out"][0].bounds, read_limits(tmp_path / "there")["out"].bounds
    assert here.relative == pytest.approx(there.relative, rel=1e-3)
    assert here.absolute == pytest.approx(there.absolute, rel=0.02)
