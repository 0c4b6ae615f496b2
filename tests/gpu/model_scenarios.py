"""Scenarios of `scenarios.py` for calls as models make them: in place, with leading dims, attention of views."""

import itertools

import torch
from problems import Case
from world import BF16, World, refused

from aot_tune.spec import problem
from aot_tune.spec.calls import aliases_on


def rows_in_place(world: World) -> None:
    """Outputs in an input's memory are those of calls with memory for each, whatever is passed beside."""
    names = [n for n in ("softmax", "rms_norm", "layer_norm", "silu_mul") if n in world.ops.operators]
    for name, rows, width in itertools.product(names, (1, 300), (5, 128, 4096, 5001, 40008, 50257)):
        operator = world.operator(name)
        optional = tuple(t.name for t in operator.tensors if t.optional)
        for present in {(), optional, tuple(t for t in optional if t not in ("weight", "bias"))}:
            chosen = problem(R=rows, D=width, present=present, dtypes=BF16)
            for aliases in aliases_on(operator, chosen):
                apart, shared = (Case(operator, chosen, "dense", 1) for _ in range(2))
                shared.tensors |= {output: shared.tensors[given] for output, given in aliases.items()}
                apart.call(world.ops)
                shared.call(world.ops)
                assert not (fault := apart.fault()), fault
                for output in operator.outputs:
                    if output.name in shared.tensors:
                        torch.testing.assert_close(shared.tensors[output.name], apart.tensors[output.name])


def attention_of_torch(world: World) -> None:
    """Attention as users of torch call theirs: views of projections, masks of all kinds, a token, odd widths."""
    if "flash_attention" not in world.ops.operators:
        return
    torch.manual_seed(0)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    faults = []
    for width, (b, h, hk, m, n) in itertools.product(
        (64, 96, 128, 160, 192, 224, 256), ((2, 8, 2, 1, 1500), (1, 4, 1, 7, 700), (2, 4, 4, 133, 260))
    ):
        q, k, v = (torch.randn(b, t, g, width, device="cuda").bfloat16() for t, g in ((m, h), (n, hk), (n, hk)))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        padding = torch.arange(n, device="cuda") < torch.tensor([n, n // 2], device="cuda")[:b, None, None, None]
        some, added = (torch.rand(b, h, m, n, device="cuda") < 0.7, torch.randn(1, h, m, n, device="cuda").bfloat16())
        some[:, :, 0] = False
        given = ({}, {"mask": padding}, {"mask": some[:1, :1]}, {"bias": added}, {"mask": some, "bias": added})
        for masks, causal in itertools.product(given, ("none", "lower_right")):
            whole = {name: mask.expand(b, h, m, n) for name, mask in masks.items()}
            seen = whole.get("mask", torch.ones(m, n, device="cuda", dtype=torch.bool))
            seen = seen.tril(n - m) if causal == "lower_right" else seen
            bias = whole["bias"].double() if "bias" in whole else 0.0
            hidden = torch.where(seen, bias, -torch.inf).expand(b, h, m, n)
            want = sdpa(*(t.double() for t in (q, k, v)), attn_mask=hidden, enable_gqa=True)
            want = torch.where((hidden == -torch.inf).all(-1, keepdim=True), 0.0, want)
            got = world.ops.flash_attention(q, k, v, **whole, causal=causal)
            worst = float((got.double() - want).abs().max())  # NaN is not less
            if not worst < 0.02 * max(1.0, float(want.abs().max())):
                faults.append(f"D={width} B={b} H={h} HK={hk} M={m} N={n} {sorted(whole)} {causal}: off by {worst:g}")
        short = torch.ones(b, h, m, n + 1, device="cuda", dtype=torch.bool)
        out = torch.full_like(q, 7.0)
        refused((world.ops.Error,), world.ops.flash_attention, q, k, v, mask=short, out=out)
        refused((world.ops.Error,), world.ops.flash_attention, q, k, v, bias=some, out=out)
        assert bool((out == 7.0).all())
    assert not faults, "\n".join(faults[:20])


def leading_dims(world: World) -> None:
    """Tensors of models: what is made has the leading dims, and is what a matrix of rows gets."""
    x, b, weight = (torch.randn(*s, device="cuda").bfloat16() for s in ((2, 3, 256), (256, 64), (256,)))
    rows = x.view(6, 256)
    assert torch.equal(world.ops.gemm(x, b), world.ops.gemm(rows, b).view(2, 3, 64))
    assert torch.equal(world.ops.rms_norm(x, weight), world.ops.rms_norm(rows, weight).view(2, 3, 256))
    assert world.ops.softmax(x[0, 0]).shape == (256,)
    mine = x.clone()
    assert world.ops.layer_norm(mine, out=mine) is mine
    assert torch.equal(mine, world.ops.layer_norm(x))
