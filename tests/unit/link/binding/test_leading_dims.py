"""Calls of tensors with any number of leading dims, for which an operator declares one."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensors import Wrapped

Array = Any
LEADS: list[tuple[int, ...]] = [
    (), (1,), (4,), (2, 3), (1, 5), (2, 1, 3), (3, 1), (2, 2, 2, 1, 2), (0, 3), (3, 0), (1, 1),
]  # fmt: skip


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def rms(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * weight


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, Wrapped])
def test_outputs_have_the_leading_dims_of_the_call(ops: ModuleType, make: Any) -> None:
    for lead in LEADS:
        x, residual, weight = normal(*lead, 6), normal(*lead, 6) + 1, normal(6)
        made = ops.rms_norm(make(x), make(weight))
        assert tuple(made.shape) == (*lead, 6)
        np.testing.assert_allclose(np.asarray(made), rms(x, weight), rtol=1e-5)
        both = ops.rms_norm(make(x), make(weight), make(residual), residual_out=True)
        np.testing.assert_allclose(np.asarray(both[0]), rms(x + residual, weight), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(both[1]), x + residual)
        out = np.empty_like(x)
        given = make(out)
        assert ops.rms_norm(make(x), make(weight), out=given) is given
        np.testing.assert_allclose(out, rms(x, weight), rtol=1e-5)


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.numpy()])
def test_strides_that_do_not_are_refused_with_the_remedy(ops: ModuleType, make: Any) -> None:
    x, weight = torch.from_numpy(normal(3, 2, 6)).transpose(0, 1), torch.from_numpy(normal(6))
    with pytest.raises(
        ops.ArgumentValueError,
        match=r"rms_norm: the leading dims of 'x' cannot be taken as one without a copy: shape \(2, 3, 6\), strides "
        r"\(6, 12, 1\) in elements; pass x.contiguous\(\), of numpy numpy.ascontiguousarray\(x\)",
    ):
        ops.rms_norm(make(x), make(weight))
    out = torch.empty(3, 2, 6).transpose(0, 1)
    with pytest.raises(ops.ArgumentValueError, match=r"the leading dims of 'out' cannot .* pass a contiguous tensor"):
        ops.rms_norm(make(x.contiguous()), make(weight), out=make(out))
    np.testing.assert_allclose(
        ops.rms_norm(make(x.contiguous()), make(weight)), rms(x.numpy(), weight.numpy()), rtol=1e-5
    )


def test_all_have_the_same_leading_dims(ops: ModuleType) -> None:
    weight = normal(6)
    for x, residual in ((normal(2, 3, 6), normal(6, 6)), (normal(2, 3, 6), normal(3, 2, 6)), (normal(6), normal(1, 6))):
        with pytest.raises(
            ops.ArgumentValueError, match=r"'residual' has the leading dims \(.*\), 'x' has \(.*\); want"
        ):
            ops.rms_norm(x, weight, residual)
        with pytest.raises(ops.ArgumentValueError, match=r"'out' has the leading dims"):
            ops.rms_norm(x, weight, out=residual)
    with pytest.raises(ops.ArgumentValueError, match="'x' has 0 axes, wanted 2"):
        ops.rms_norm(np.array(1, np.float32), weight)
    with pytest.raises(ops.ArgumentValueError, match="'x' has 9 axes, wanted 2"):
        ops.rms_norm(torch.zeros(*[1] * 8, 6), weight)


def test_questions_are_of_the_folded_call(ops: ModuleType) -> None:
    x, weight = normal(2, 4, 8), normal(8)
    assert ops.explain("rms_norm", x, weight)["dims"] == {"M": 8, "N": 8}
    assert ops.is_tuned("rms_norm", x, weight) == ops.is_tuned("rms_norm", x.reshape(8, 8), weight)
    with pytest.raises(ops.ArgumentValueError, match="leading dims of 'x' cannot be taken as one"):
        ops.explain("rms_norm", x.swapaxes(0, 1), weight)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), max_size=4))
def test_whatever_is_taken_is_right(ops: ModuleType, axes: list[tuple[int, int]]) -> None:
    """Of all strides: the same as for numpy's view of two axes, or refused where numpy has none."""
    memory = normal(200)
    shape, strides = [n for n, _ in axes] + [4], [s * 4 for _, s in axes] + [4]
    x = np.lib.stride_tricks.as_strided(memory[100:], shape, strides)
    weight = normal(4)
    try:
        viewed = x.reshape(-1, 4, copy=False)
    except ValueError:
        with pytest.raises(ops.ArgumentValueError, match="cannot be taken as one"):
            ops.rms_norm(x, weight)
    else:
        got = ops.rms_norm(x, weight)
        assert got.shape == x.shape
        np.testing.assert_array_equal(got.reshape(viewed.shape), ops.rms_norm(viewed, weight))
