"""Attention's definition, against torch, its baselines, and what its flops and bytes count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from bundled import OPERATORS
from numpy.typing import NDArray

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.spec import problem

OP = OPERATORS["flash_attention"]
CAUSAL = OP.attributes[0].choices
INPUTS = tuple(t.name for t in OP.inputs)


# -- the baselines ----------------------------------------------------------------------------------------------------


def attended(baseline: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """What a baseline computes on the host, and what it should."""
    import torch

    (given,) = (b for b in OP.baselines if b.name == f"torch.{baseline}")
    call = arguments(1, (2, 6, 6, 13, 13, 8), "upper_left", 0.3)
    q, k, v = (torch.from_numpy(t).float() for t in (call.q, call.k, call.v))
    out = torch.full_like(q, float("nan"))
    given.prepare(
        torch, SimpleNamespace(q=q, k=k, v=v, mask=None, bias=None, out=out, scale=0.3, causal="upper_left")
    )()
    return out.numpy(), OP.reference(np, call)["out"]


@pytest.mark.parametrize("baseline", ["scaled_dot_product_attention", "sdpa_flash"])
def test_the_baselines_compute_the_same(baseline: str) -> None:
    got, want = attended(baseline)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_backend_of_gpus_alone_is_asked_for_and_refuses_the_host() -> None:
    with pytest.raises(RuntimeError, match="kernel"):
        attended("sdpa_cudnn")


# -- the definition --------------------------------------------------------------------------------------------------


def arguments(seed: int, shape: Sequence[int], causal: str, scale: float = 0.0) -> SimpleNamespace:
    b, h, hk, m, n, d = shape
    values = np.random.default_rng(seed)
    q, k, v = (values.standard_normal(s) for s in ((b, h, m, d), (b, hk, n, d), (b, hk, n, d)))
    return SimpleNamespace(q=q, k=k, v=v, mask=None, bias=None, scale=scale, causal=causal)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("scale", [0.0, 0.3])
@pytest.mark.parametrize(("m", "n"), [(13, 13), (40, 17), (17, 40), (2100, 30)])
def test_the_reference_is_what_torch_computes(m: int, n: int, scale: float, causal: str) -> None:
    import torch

    call = arguments(1, (2, 6, 2, m, n, 8), causal, scale)
    q, k, v = (torch.from_numpy(t) for t in (call.q, call.k, call.v))
    seen = torch.ones(m, n, dtype=torch.bool)
    if causal != "none":
        seen = seen.tril(n - m if causal == "lower_right" else 0)
    attend = torch.nn.functional.scaled_dot_product_attention
    want = attend(q, k, v, attn_mask=seen, scale=scale or None, enable_gqa=True).nan_to_num()
    got = OP.reference(np, call)["out"]
    np.testing.assert_allclose(got, want.numpy(), atol=1e-12)


LAYOUTS = {"padding": (2, 1, 1), "queries": (1, 1, 9), "batches": (2, 1, 9), "heads": (1, 4, 9), "all": (2, 4, 9)}
"""Batches, heads and queries that masks differ for."""


def masked(which: str, causal: str, layout: str) -> SimpleNamespace:
    """A call with a mask, a bias, or both, each broadcast; one query of some sees no key, others do not see all."""
    call = arguments(4, (2, 4, 2, 9, 14, 16), causal)
    values = np.random.default_rng(6)
    shape = (*LAYOUTS[layout], 14)
    mask, bias = (
        values.random(shape) > 0.3,
        np.where(values.random(shape) > 0.3, values.standard_normal(shape), -np.inf),
    )
    if shape[2] > 1:
        mask[-1, :, 3], bias[-1, :, 3] = False, -np.inf
    call.mask = np.broadcast_to(mask, (2, 4, 9, 14)) if "mask" in which else None
    call.bias = np.broadcast_to(bias, (2, 4, 9, 14)) if "bias" in which else None
    return call


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("which", ["mask", "bias", "mask and bias"])
def test_masks_and_biases_are_those_of_torch(which: str, causal: str, layout: str) -> None:
    import torch

    call = masked(which, causal, layout)
    added = torch.zeros(2, 4, 9, 14, dtype=torch.float64)
    if call.bias is not None:
        added = added + torch.from_numpy(call.bias.copy())
    if call.mask is not None:
        added = added.masked_fill(~torch.from_numpy(call.mask.copy()), -math.inf)
    if causal != "none":
        added = added.masked_fill(~torch.ones(9, 14).bool().tril(5 if causal == "lower_right" else 0), -math.inf)
    q, k, v = (torch.from_numpy(t) for t in (call.q, call.k, call.v))
    with np.errstate(invalid="ignore"):
        got = OP.reference(np, call)["out"]
    scores = q @ k.repeat_interleave(2, 1).mT / 4 + added
    want = scores.softmax(-1).nan_to_num() @ v.repeat_interleave(2, 1)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-12)
    assert layout == "padding" or (got[-1, 0, 3] == 0).all()
    out = torch.full(want.shape, math.nan, dtype=torch.float64)
    tensors = {t: None if getattr(call, t) is None else torch.from_numpy(getattr(call, t).copy()) for t in INPUTS}
    OP.baselines[0].prepare(torch, SimpleNamespace(**tensors, scale=0.0, causal=causal, out=out))()
    np.testing.assert_allclose(out.numpy(), want.numpy(), atol=1e-12)


def test_what_baselines_take() -> None:
    plain = problem(B=1, H=2, HK=2, M=9, N=9, D=64, dtypes={"T": "bf16"})
    groups = msgspec.structs.replace(plain, dims={**plain.dims, "HK": 1})
    takes = {
        present: [
            b.name.removeprefix("torch.") for b in OP.baselines if b.supports(msgspec.structs.replace(one, **more))
        ]
        for present, one, more in (
            ("plain", plain, {}),
            ("mask", plain, {"present": ("mask",)}),
            ("bias", plain, {"present": ("bias",)}),
            ("groups", groups, {"present": ("mask",)}),
        )
    }
    assert takes == {
        "plain": ["scaled_dot_product_attention", "sdpa_flash", "sdpa_cudnn"],
        "mask": ["scaled_dot_product_attention", "sdpa_efficient"],
        "bias": ["scaled_dot_product_attention", "sdpa_cudnn", "sdpa_efficient"],
        "groups": ["scaled_dot_product_attention"],
    }


def test_a_mask_counts_what_is_read_of_it() -> None:
    plain = problem(B=2, H=3, HK=3, M=8, N=20, D=16)
    for strides, causal, elements in (
        ((480, 160, 20, 1), "none", 2 * 3 * 8 * 20),
        ((20, 0, 0, 1), "none", 2 * 20),
        ((0, 0, 20, 1), "none", 8 * 20),
        ((0, 0, 20, 1), "upper_left", 8 * 9 // 2),
        ((20, 0, 0, 1), "upper_left", 2 * 8),
    ):
        chosen = {} if causal == "none" else {"causal": causal}
        without = msgspec.structs.replace(plain, attributes=chosen)
        for name, size in (("mask", 1), ("bias", 4)):
            given = msgspec.structs.replace(without, present=(name,), strides={name: strides})
            assert OP.compulsory_bytes(given) - OP.compulsory_bytes(without) == size * elements


def test_heads_need_not_be_whole_groups() -> None:
    call = arguments(2, (1, 5, 2, 4, 6, 8), "none")
    spread = arguments(2, (1, 5, 2, 4, 6, 8), "none")
    spread.k, spread.v = (t[:, [0, 0, 0, 1, 1]] for t in (call.k, call.v))
    np.testing.assert_array_equal(OP.reference(np, call)["out"], OP.reference(np, spread)["out"])


def test_nothing_to_see_is_zero() -> None:
    call = arguments(3, (1, 1, 1, 3, 0, 4), "none")
    assert (OP.reference(np, call)["out"] == 0).all()
    call = arguments(3, (1, 1, 1, 3, 2, 4), "lower_right")
    out = OP.reference(np, call)["out"]
    assert (out[0, 0, 0] == 0).all()
    assert (out[0, 0, 1] == call.v[0, 0, 0]).all()


def test_flops_count_the_pairs_that_meet() -> None:
    for causal in CAUSAL:
        for m, n in ((5, 5), (7, 3), (3, 7)):
            seen = np.tril(np.ones((m, n)), n - m if causal == "lower_right" else 0) if causal != "none" else 1
            pairs = int((np.ones((m, n)) * seen).sum())
            chosen = {} if causal == "none" else {"causal": causal}
            one = problem(B=2, H=3, HK=1, M=m, N=n, D=4, attributes=chosen)
            assert OP.flops.evaluate(OP.facts(one)) == 4 * 2 * 3 * pairs * 4


def test_checks_have_every_mask_and_more_queries_than_keys() -> None:
    problems = [c.problem for c in derived_checks(OP)]
    for causal in CAUSAL[1:]:
        assert any(p.attributes.get("causal") == causal and p.dims["M"] > p.dims["N"] for p in problems)
        assert any(p.attributes.get("causal") == causal and p.dims["M"] < p.dims["N"] for p in problems)
    assert any(p.dims["H"] % p.dims["HK"] for p in problems)
