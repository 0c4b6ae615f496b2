"""Calls of the installed operators from Python: values against float64, layouts, and frameworks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

Array = Any
SHAPES = [(1, 1), (1, 768), (3, 7), (16, 768), (5, 4096), (33, 129), (70, 1000)]
GEMM_SHAPES = [(1, 1, 1), (1, 768, 768), (16, 768, 768), (7, 5, 3), (33, 65, 129), (64, 100, 200), (300, 33, 17)]
ACTIVATIONS = ["none", "relu", "gelu", "gelu_tanh", "silu"]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def activated(name: str, x: Array) -> Array:
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return 0.5 * x * (1 + torch.erf(torch.from_numpy(x / math.sqrt(2))).numpy())
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x)) if name == "silu" else x


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias


def rms_norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weight


ROWS: dict[str, tuple[Callable[..., Array], str]] = {
    "softmax": (softmax, "x"),
    "silu_mul": (lambda gate, up: activated("silu", gate) * up, "xx"),
    "layer_norm": (layer_norm, "xww"),
    "rms_norm": (rms_norm, "xw"),
}


def strided(array: Array) -> Array:
    """The same values at every second element, rows further apart."""
    wide = np.full((*(s + 3 for s in array.shape[:-1]), array.shape[-1] * 2 + 5), np.nan, np.float32)
    view = wide[(*(slice(0, s) for s in array.shape[:-1]), slice(1, 1 + 2 * array.shape[-1], 2))]
    view[...] = array
    return view


def transposed(array: Array) -> Array:
    return np.ascontiguousarray(array.T).T


def read_only(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def unaligned(array: Array) -> Array:
    flat = np.empty(array.size + 1, np.float32)
    flat[1:] = array.ravel()
    return flat[1:].reshape(array.shape)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "dense": lambda a: a,
    "strided": strided,
    "transposed": transposed,
    "read_only": read_only,
    "unaligned": unaligned,
}


def plain(result: Any) -> Array:
    return result.numpy() if isinstance(result, torch.Tensor) else np.from_dlpack(result)


@pytest.mark.parametrize("name", ROWS)
def test_rows(ops: ModuleType, name: str) -> None:
    reference, kinds = ROWS[name]
    for layout, (rows, width) in itertools.product(LAYOUTS, SHAPES):
        arrays = [normal(i, rows, width) if k == "x" else normal(i, width) for i, k in enumerate(kinds)]
        want = reference(*(a.astype(np.float64) for a in arrays))
        arrays = [LAYOUTS[layout](a) for a in arrays]
        before = [a.copy() for a in arrays]
        got = plain(getattr(ops, name)(*arrays))
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=f"{layout} {rows} x {width}")
        for array, copy in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gemm(ops: ModuleType, layout: str) -> None:
    for m, n, k in GEMM_SHAPES:
        a, b, bias, residual = normal(1, m, k), normal(2, k, n), normal(3, n), normal(4, m, n)
        product = a.astype(np.float64) @ b
        bound = 1e-6 * (np.abs(a) @ np.abs(b)) + 1e-5
        a, b, bias, residual = (LAYOUTS[layout](x) for x in (a, b, bias, residual))
        assert (np.abs(plain(ops.gemm(a, b)) - product) <= bound).all(), (m, n, k)
        for name in ACTIVATIONS:
            got = plain(ops.gemm(a, b, bias, residual, activation=name))
            wanted = activated(name, product + bias) + residual
            assert (np.abs(got - wanted) <= 1.2 * bound + 1e-5).all(), (m, n, k, name)
        for given in ({"bias": bias}, {"residual": residual}):
            got = plain(ops.gemm(a, b, **given))
            assert (np.abs(got - (product + next(iter(given.values())))) <= bound + 1e-5).all(), (m, n, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_with_masks_of_torch_and_with_wrong_ones(ops: ModuleType, dtype: torch.dtype) -> None:
    b, h, hk, m, n, d = 2, 4, 2, 5, 33, 96
    draw = torch.Generator().manual_seed(1)
    tokens = [torch.randn(b, t, g, d, generator=draw).to(dtype) for t, g in ((m, h), (n, hk), (n, hk))]
    q, k, v = (t.transpose(1, 2) for t in tokens)
    padding = torch.arange(n) < torch.tensor([n, 0])[:, None, None, None]
    added = torch.randn(1, h, m, n, generator=draw).to(dtype)
    attend = torch.nn.functional.scaled_dot_product_attention
    near = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    for name, given in (("mask", padding), ("bias", added)):
        whole = given.expand(b, h, m, n)
        wanted = whole if name == "mask" else whole.double()
        want = attend(*(t.double() for t in (q, k, v)), attn_mask=wanted, enable_gqa=True).nan_to_num()
        torch.testing.assert_close(ops.flash_attention(q, k, v, **{name: whole}).double(), want, **near)
    out = torch.full_like(q, 7.0)
    for error, wrong in (
        (ops.ArgumentValueError, {"mask": padding}),
        (ops.ArgumentValueError, {"mask": torch.ones(b, h, m, n + 1, dtype=torch.bool)}),
        (ops.ArgumentValueError, {"bias": added[0]}),
        (ops.ArgumentTypeError, {"bias": padding.expand(b, h, m, n)}),
        (ops.ArgumentTypeError, {"mask": torch.ones(b, h, m, n, dtype=torch.uint8)}),
    ):
        with pytest.raises(error, match=next(iter(wrong))):
            ops.flash_attention(q, k, v, out=out, **wrong)
    assert bool((out == 7.0).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_in_place(ops: ModuleType, dtype: str) -> None:
    """An output in the memory of its input is that of a call with memory for each, to the last bit."""
    for rows, width in SHAPES:
        x, up, residual = (torch.from_numpy(normal(i, rows, width)).to(getattr(torch, dtype)) for i in range(3))
        weight = torch.from_numpy(normal(4, width)).to(x.dtype)
        for name, more in (("softmax", ()), ("silu_mul", (up,)), ("rms_norm", (weight,)), ("layer_norm", (weight,))):
            function, mine = getattr(ops, name), x.clone()
            assert function(mine, *more, out=mine) is mine
            assert torch.equal(mine, function(x, *more)), (name, rows, width)
        mine, sums = x.clone(), residual.clone()
        ops.rms_norm(mine, weight, sums, out=mine, residual_out=sums)
        out, total = ops.rms_norm(x, weight, residual, residual_out=True)
        assert torch.equal(mine, out)
        assert torch.equal(sums, total)
        mine = up.clone()
        ops.silu_mul(x, mine, out=mine)
        assert torch.equal(mine, ops.silu_mul(x, up))


def test_special_values(ops: ModuleType) -> None:
    x = np.array([[-np.inf, 0, 1], [np.nan, 0, 1], [1e30, 1e30, -1e30]], np.float32)
    got = plain(ops.softmax(x))
    assert got[0, 0] == 0
    assert np.isnan(got[1]).all()
    np.testing.assert_allclose(got[2], [0.5, 0.5, 0])
    gate = np.array([[-np.inf, np.nan, 200, -200]], np.float32)
    np.testing.assert_allclose(plain(ops.silu_mul(gate, np.ones_like(gate))), [[0, np.nan, 200, 0]], atol=1e-30)


def test_overlapping_outputs_are_refused(ops: ModuleType) -> None:
    memory = normal(1, 4, 64)
    before = memory.copy()
    for x, out in ((memory[:3], memory[1:]), (memory[:, :40], memory[:, 20:60])):
        with pytest.raises(ValueError, match="overlaps"):
            ops.softmax(x, out=out)
    with pytest.raises(ValueError, match="overlaps"):
        ops.gemm(memory[:, :4], memory[:, :4], out=memory[:, :4])
    with pytest.raises(ValueError, match="read-only"):
        ops.softmax(normal(2, 4, 64), out=np.broadcast_to(np.zeros(64, np.float32), (4, 64)))
    with pytest.raises(ValueError, match="elements that share memory"):
        ops.softmax(normal(2, 4, 64), out=np.lib.stride_tricks.as_strided(memory, (4, 64), (0, 4)))
    np.testing.assert_array_equal(memory, before)
    ops.softmax(memory[:, :32], out=memory[:, 32:])  # neighbours do not overlap
    np.testing.assert_allclose(memory[:, 32:], softmax(before[:, :32].astype(np.float64)), rtol=2e-5, atol=1e-6)


def test_zero_size(ops: ModuleType) -> None:
    assert plain(ops.softmax(np.zeros((0, 5), "f4"))).shape == (0, 5)
    assert plain(ops.softmax(np.zeros((5, 0), "f4"))).shape == (5, 0)
    assert plain(ops.gemm(np.zeros((0, 4), "f4"), np.zeros((4, 3), "f4"))).shape == (0, 3)
    bias = normal(1, 3)
    empty_sum = plain(ops.gemm(np.zeros((2, 0), "f4"), np.zeros((0, 3), "f4"), bias))
    np.testing.assert_array_equal(empty_sum, np.stack([bias, bias]))
