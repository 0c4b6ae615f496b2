"""Products of groups of rows, each by the matrix of its expert: four operators of one form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Expr,
    IntegerSums,
    Operator,
    Problem,
    Tensor,
    ceildiv,
    dims,
    drawn,
    minimum,
    problem,
    uniform,
    where,
)

from .kernels import kernels

M, C, N, K, E = dims("M C N K E")

BY_COLUMNS = {"b": (0, 2, 1)}
"""Weights as models keep them: K contiguous."""

BUSY = where(E % 8 == 0, E - E // 8, E)
"""Experts that may have rows in calls for tests and timing: an eighth has none."""
LIVE = where(M % 2 == 0, M, M - M // 16)
"""Rows that are some expert's there: odd numbers have others behind."""
TOUCHED = minimum(LIVE - LIVE // 4, BUSY)
"""Experts that have rows there, as many as when a router chooses evenly."""
MEAN = where(C % 2 == 0, ceildiv(C, 8), ceildiv(C, 2))
"""Rows of an expert that has some, on average, where each has room for C: rooms are mostly empty."""
MASKED_ROWS = where(C == 0, 0, BUSY * MEAN)


def draw_ends(rng: Any, call: Any) -> Any:
    """Ends of LIVE rows among the experts: TOUCHED have some, by a router that likes some more than others."""
    sizes = 0 * rng.permutation(call.E)
    extents = {"M": call.M, "E": call.E}
    live, touched = LIVE.evaluate(extents), TOUCHED.evaluate(extents)
    if touched:
        shares = rng.standard_exponential(touched)
        sizes[rng.permutation(call.E)[:touched]] = 1 + rng.multinomial(live - touched, shares / shares.sum())
    return sizes.cumsum()


def draw_counts(rng: Any, call: Any) -> Any:
    """Rows of each expert: MEAN on average where there are some, and always less than twice MEAN."""
    counts = 0 * rng.permutation(call.E)
    busy, mean = BUSY.evaluate({"E": call.E}), MEAN.evaluate({"C": call.C})
    if busy and mean:
        more = rng.integers(-(mean - 1), mean, busy // 2)
        counts[rng.permutation(call.E)[:busy]] = [*(mean + more), *(mean - more), *[mean] * (busy % 2)]
    return counts


def rows_of(call: Call) -> list[Any]:
    """The index of each expert's rows in `a` and in `out`, for any numbers in `ends` or `counts`."""
    experts = range(call.b.shape[0])
    if hasattr(call, "counts"):
        return [(e, slice(0, min(max(int(call.counts[e]), 0), call.a.shape[1]))) for e in experts]
    found, end = [], 0
    for e in experts:
        begin, end = end, min(max(int(call.ends[e]), end), call.a.shape[0])
        found.append(slice(begin, end))
    return found


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition, an expert at a time."""
    out = call.out * 1 if hasattr(call, "counts") else xp.zeros((call.a.shape[0], call.b.shape[2]))
    for expert, rows in enumerate(rows_of(call)):
        a, b = call.a[rows], call.b[expert]
        if hasattr(call, "scale_a"):
            a = a * xp.repeat(call.scale_a[rows], 128, axis=1)[:, : a.shape[1]]
            scales = xp.repeat(xp.repeat(call.scale_b[expert], 128, axis=0), 128, axis=1)
            b = b * scales[: b.shape[0], : b.shape[1]]
        out[rows] = xp.matmul(a, b)
    return {"out": out}


def rows_of_none(call: Call) -> Any:
    """The rows of `out` behind all experts'."""
    return call.out[:0] if hasattr(call, "counts") else call.out[max([0, *(r.stop for r in rows_of(call))]) :]


def torch_loop(torch: Any, call: Call) -> Callable[[], object]:
    """A product for each expert that has rows. The ends or counts are read beforehand."""
    products = [(call.a[r], call.b[e], call.out[r]) for e, r in enumerate(rows_of(call)) if len(call.a[r])]
    rest = rows_of_none(call)

    def run() -> None:
        for a, b, out in products:
            torch.mm(a, b, out=out)
        rest.zero_()

    return run


def torch_grouped(torch: Any, call: Call) -> Callable[[], object]:
    """torch's grouped product. It has no `.out` form: its result is copied to `out`, but not in what is timed."""
    rest = rows_of_none(call)

    def run() -> None:
        result = torch._grouped_mm(call.a, call.b, offs=call.ends)
        if not _is_timed(torch, call):
            call.out.copy_(result)
        rest.zero_()

    return run


def _is_timed(torch: Any, call: Call) -> bool:
    return call.a.is_cuda and torch.cuda.is_current_stream_capturing()


def torch_scaled_loop(torch: Any, call: Call) -> Callable[[], object]:
    """A scaled product for each expert that has rows, of a multiple of 4 rows, as torch takes no others.

    Scales lie as cuBLASLt wants them beforehand. Results are copied to `out`, but not in what is timed.
    """
    products, pad = [], torch.nn.functional.pad
    for e, rows in enumerate(rows_of(call)):
        if count := len(call.a[rows]):
            more = (0, 0, 0, -count % 4)
            a = pad(call.a[rows].view(torch.uint8), more).view(call.a.dtype)
            scale_a = pad(call.scale_a[rows], more).t().contiguous().t()
            scale_b = call.scale_b[e].t().contiguous().t()
            products.append((a, call.b[e], scale_a, scale_b, call.out.new_empty((len(a), call.b.shape[2])), rows))
    rest, product = rows_of_none(call), torch.ops.aten._scaled_mm.out

    def run() -> None:
        for a, b, scale_a, scale_b, found, rows in products:
            product(a, b, scale_a, scale_b, out_dtype=found.dtype, use_fast_accum=False, out=found)
            if not _is_timed(torch, call):
                call.out[rows] = found[: len(call.out[rows])]
        rest.zero_()

    return run


def torch_dequantised_loop(torch: Any, call: Call) -> Callable[[], object]:
    """A product of floats for each expert that has rows."""
    products = [(r, e) for e, r in enumerate(rows_of(call)) if len(call.a[r])]
    rest, (k, n) = rows_of_none(call), call.b.shape[1:]

    def run() -> None:
        for r, e in products:
            a = call.a[r].float() * call.scale_a[r].repeat_interleave(128, 1)[:, :k]
            scales = call.scale_b[e].repeat_interleave(128, 0)[:k].repeat_interleave(128, 1)[:, :n]
            call.out[r] = torch.mm(a, call.b[e].float() * scales)
        rest.zero_()

    return run


def _workload(family: str, *, masked: bool, scaled: bool) -> tuple[Problem, ...]:
    """For CPUs a small one; for GPUs layers of DeepSeek-V3 and Qwen-3, at few tokens and many.

    They have some of the 256 and 128 experts: references hold the weights of all in f64.
    """
    rows = "C" if masked else "M"
    order = {"order": BY_COLUMNS}
    if family == "cpu":
        dtypes = {} if scaled else {"dtypes": {"T": "bf16"}}
        return (problem(**{"E": 8, rows: 24 if masked else 96}, N=192, K=256, **order, **dtypes),)
    shapes: tuple[tuple[int, int, int, int], ...]  # rows (of an expert if masked), experts, N, K
    if masked:
        shapes = ((64, 16, 4096, 7168), (256, 32, 7168, 2048), (4096, 4, 4096, 7168), (128, 128, 1536, 2048))
    else:
        shapes = (
            (8, 16, 4096, 7168),  # DeepSeek-V3: gate and up, then down
            (128, 32, 7168, 2048),
            (4096, 16, 4096, 7168),
            (8192, 32, 7168, 2048),
            (16384, 8, 4096, 7168),
            (64, 32, 3072, 4096),  # Qwen3-235B-A22B
            (8192, 32, 4096, 1536),
            (512, 128, 1536, 2048),  # Qwen3-30B-A3B
            (32768, 128, 2048, 768),
        )
    found = [problem(**{"E": e, rows: m}, N=n, K=k, **order) for m, e, n, k in shapes]
    if not scaled:
        found.append(problem(**{"E": 128, rows: shapes[-1][0]}, N=1536, K=2048))
        found.append(problem(**{"E": 128, rows: shapes[-1][0]}, N=1536, K=2048, **order, dtypes={"T": "f16"}))
    return tuple(found)


def grouped(name: str, documentation: str, *, masked: bool = False, scaled: bool = False) -> Operator:
    """One of the operators. `masked`: each expert has room for C rows; `scaled`: f8 with scales of blocks."""
    rows: tuple[Expr, ...] = (E, C) if masked else (M,)
    live = MASKED_ROWS if masked else LIVE
    touched = where(C == 0, 0, BUSY) if masked else TOUCHED
    out = "bf16" if scaled else "T"
    sizes = Tensor("counts", (E,), "i32", values=drawn(draw_counts, reads=()))
    if not masked:
        sizes = Tensor("ends", (E,), "i32", values=drawn(draw_ends, reads=()))
    scales = (
        Tensor("scale_a", (*rows, ceildiv(K, 128)), read=live * ceildiv(K, 128), values=uniform(0.5, 2.0)),
        Tensor("scale_b", (E, ceildiv(K, 128), ceildiv(N, 128)), cold=True, values=uniform(0.5, 2.0),
               read=touched * ceildiv(K, 128) * ceildiv(N, 128)),
    )  # fmt: skip
    baselines = (Baseline("torch.mm of each expert", "torch", torch_loop),)
    if scaled:
        baselines = (
            Baseline("torch._scaled_mm of each expert", "torch", torch_scaled_loop, supports=_whole_blocks),
            Baseline("torch.mm of each expert, dequantised", "torch", torch_dequantised_loop, supports=_parted_blocks),
        )
    elif not masked:
        baselines += (Baseline("torch._grouped_mm", "torch", torch_grouped, supports=_is_bf16),)
    return Operator(
        name=name,
        documentation=documentation,
        dims=("E", "C" if masked else "M", "N", "K"),
        tensors=(
            Tensor("a", (*rows, K), "T", read=live * K),
            Tensor("b", (E, K, N), "T", cold=True, read=touched * K * N),
            sizes,
            *(scales if scaled else ()),
            Tensor("out", (*rows, N), out, output=not masked, inout=masked, read=live * N if masked else None),
        ),
        dtypes={"T": ("f8e4m3",) if scaled else ("bf16", "f16")},
        intermediates="f32",
        reference=reference,
        exact=IntegerSums(K, thinned="b"),
        tolerance=8.0 if scaled else 4.0,  # as of scaled_mm
        flops=2 * live * N * K,
        ranges={"C" if masked else "M": (1, 4096 if masked else 65536), "N": (512, 8192), "K": (512, 8192)},
        values={"E": (4, 8, 16, 32, 64, 128)},
        regimes={"few rows": (C <= 128,) if masked else (M <= 16 * E,)},
        workload={f: _workload(f, masked=masked, scaled=scaled) for f in ("cpu", "cuda")},
        baselines=baselines,
        kernels=kernels(masked=masked, scaled=scaled),
    )


def _whole_blocks(given: Problem) -> bool:
    """Whether torch has the call: whole blocks of scales, a multiple of 4 along K, where b is by columns."""
    return given.dims["N"] % 128 == given.dims["K"] % 512 == 0 and dict(given.order) == BY_COLUMNS


def _parted_blocks(given: Problem) -> bool:
    return not _whole_blocks(given)


def _is_bf16(given: Problem) -> bool:
    return given.dtypes.get("T", "bf16") == "bf16"
