"""Functions on rows for tests: plain, with heuristics, autotuned, and with both in either order."""

# ruff: noqa: N803 - constexprs are written in capitals

import triton
import triton.language as tl

from .parts import SCALE, activate


@triton.jit
def plain(x, y, n, step, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * step + column, mask=column < n, other=0.0).to(tl.float32)
    tl.store(y + row * step + column, (activate(value) * SCALE).to(y.dtype.element_ty), mask=column < n)


@triton.heuristics(
    {
        "BLOCK": lambda args: triton.next_power_of_2(args["n"]),
        "HAS_BIAS": lambda args: args["bias"] is not None,
        "WIDE": lambda args: args["BLOCK"] >= 4096 if args["x"].element_size() == 2 else args["BLOCK"] >= 2048,
        "ROWS": lambda args: max(1, min(8, triton.cdiv(args["x"].shape[0], 132))),
    }
)
@triton.jit
def with_heuristics(
    x, bias, y, n, step, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr
):
    for i in range(ROWS):
        row = tl.program_id(0) * ROWS + i
        column = tl.arange(0, BLOCK)
        value = tl.load(x + row * step + column, mask=column < n, other=0.0).to(tl.float32)
        if HAS_BIAS:
            value += tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)
        if WIDE:
            value = activate(value)
        tl.store(y + row * step + column, value.to(y.dtype.element_ty), mask=column < n)


def keep_small(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] <= named_args["n"] * kwargs.get("FACTOR", 2)] or configs[:1]


@triton.heuristics({"EVEN": lambda args: args["n"] % 16 == 0})
@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((128, 2), (512, 4), (2048, 8))],
    key=["n"],
    prune_configs_by={"early_config_prune": keep_small},
    reset_to_zero=["total"],
    restore_value=["y"],
)
@triton.heuristics({"FULL": lambda args: (args["n"] % args["BLOCK"] == 0) & (args["num_warps"] > 2)})
@triton.jit
def tuned(x, y, total, n, EVEN: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < n if not FULL else None
        value = tl.load(x + row * n + column, mask=mask).to(tl.float32)
        tl.store(y + row * n + column, value.to(y.dtype.element_ty), mask=mask)
        tl.atomic_add(total, tl.sum(value))


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})],
    key=["n"],
    prune_configs_by={"perf_model": lambda BLOCK, n, **_: abs(BLOCK - n), "top_k": 1},
)
@triton.jit
def modelled(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 0.0)


@triton.jit(do_not_specialize=["a"], do_not_specialize_on_alignment=["b", "q"])
def marked(p, q, a, b, c: tl.int64, d, flag, scale, MODE: tl.constexpr = "sum", KIND: tl.constexpr = tl.float32):
    tl.store(p, (tl.load(q) + a + b + c + d).to(p.dtype.element_ty))
    if flag:
        tl.store(p + 1, scale)
