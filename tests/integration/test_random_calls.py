"""Random calls of the installed operators, legal and wrong ones, in all ways: some of those of tests/fuzz.py."""

from types import ModuleType

import numpy as np
import pytest
import torch
from fuzz import prepare
from torch_library import shim_cache


def test_random_calls(ops: ModuleType, request: pytest.FixtureRequest) -> None:
    with shim_cache(request.config):
        fuzz = prepare(ops)
    made = [fuzz.call(7, number) for number in range(600)]
    wrong = [told for _, told in made if told]
    assert not wrong, "\n".join(wrong)
    kinds = {kind for kind, _ in made}
    assert {f"{way} {kind}" for way in ("raw", "python", "shim") for kind in ("legal", "extent", "rank")} <= kinds


def test_torch_checks_random_calls(ops: ModuleType, request: pytest.FixtureRequest) -> None:
    with shim_cache(request.config):
        fuzz = prepare(ops)
    wrong = list(fuzz.checked_by_torch(7, 1))
    assert not wrong, "\n".join(wrong)


def test_layouts_of_new_outputs(ops: ModuleType) -> None:
    """Axes of extent 1 have strides as in fake tensors, wherever they are in memory."""
    q, k = torch.ones(1000).as_strided((7, 1, 3, 7), (70, 70, 3, 10)), torch.ones(7, 2, 64, 7)
    assert ops.flash_attention(q, k, k).stride() == (21, 3, 1, 3)


def test_special_values(ops: ModuleType) -> None:
    """Which are not drawn: infinities, NaN, and sums of nothing."""
    x = np.array([[-np.inf, 0, 1], [np.nan, 0, 1], [1e30, 1e30, -1e30]], np.float32)
    got = np.from_dlpack(ops.softmax(x))
    assert got[0, 0] == 0
    assert np.isnan(got[1]).all()
    np.testing.assert_allclose(got[2], [0.5, 0.5, 0])
    gate = np.array([[-np.inf, np.nan, 200, -200]], np.float32)
    np.testing.assert_allclose(
        np.from_dlpack(ops.silu_mul(gate, np.ones_like(gate))), [[0, np.nan, 200, 0]], atol=1e-30
    )
    bias = np.arange(3, dtype=np.float32)
    empty_sum = np.from_dlpack(ops.gemm(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32), bias))
    np.testing.assert_array_equal(empty_sum, np.stack([bias, bias]))
