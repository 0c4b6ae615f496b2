"""Attention over keys and values in pages, as caches of servers have them, for queries of sequences of any lengths."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Kernel,
    Operator,
    Problem,
    Scalar,
    Tensor,
    ceildiv,
    dims,
    drawn,
    dtype_index,
    maximum,
    minimum,
    problem,
    where,
)

from ..common.attention_sequences import (
    ATTRIBUTES,
    DOCUMENTATION,
    DV,
    HK,
    MEAN,
    OPTIONS,
    B,
    D,
    H,
    M,
    attend,
    cu_q,
    pairs,
    seen,
    short_floats,
    torch_by_sequence,
    torch_varlen,
    whole_groups,
)
from ..ragged_attention.triton_kernels import PAGED_KERNELS

P, PAGE, W = dims("P PAGE W")
ROOM = W * PAGE
# Tests draw lengths evenly from half the room of a sequence to all of it, and take each page once, if there are enough.
KEYS = where(ROOM >= MEAN, B * (ROOM * 3 // 4), 0)
SEEN = minimum(H, HK) * seen(where(P >= B * W, KEYS - minimum(B, KEYS), minimum(KEYS // 2, P * PAGE // 2)))


def page_table(rng: Any, call: Any) -> Any:
    """Each page as often as others, once if there are enough; where there are not, two numbers that no page has."""
    count = call.B * call.W
    pages = (rng.permutation(max(call.P, count)) % call.P)[:count]
    if count > call.P:
        pages[0], pages[-1] = -1, call.P
    return pages.reshape(call.shape)


def seq_lens(rng: Any, call: Any) -> Any:
    """From half the room for keys to all of it, in any order; where there is little, any."""
    room = call.W * call.PAGE
    if room < MEAN:
        return rng.integers(0, room + 1, call.B)
    shares = (rng.permutation(call.B) + 0.5) / call.B
    return (room / 2 * (1 + shares)).round()


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    pages, size = call.k_pages.shape[:2]
    room = size * call.page_table.shape[1]

    def gather(b: Any, places: Any) -> tuple[Any, Any]:
        at = xp.clip(call.page_table[b, places // size], 0, pages - 1), places % size
        return call.k_pages[at], call.v_pages[at]

    lengths = [min(max(keys, 0), room) for keys in call.seq_lens.tolist()]
    return attend(xp, call, lengths, gather, call.v_pages.shape[3], call.k_scale, call.v_scale)


def _of_torch(call: Call, b: int) -> tuple[Any, Any]:
    """Keys and values of a sequence, from its pages. Lengths are brought to the host once, not in each call."""
    if not hasattr(call, "on_host"):
        call.on_host = call.seq_lens.tolist()
    keys = call.on_host[b]
    used = call.page_table[b][: -(-keys // call.k_pages.shape[1])]
    return call.k_pages[used].flatten(0, 1)[:keys], call.v_pages[used].flatten(0, 1)[:keys]


def _of_varlen(call: Call) -> dict[str, Any]:
    room = call.page_table.shape[1] * call.k_pages.shape[1]
    paged = {"seqused_k": call.seq_lens, "block_table": call.page_table, "cu_seq_k": None, "max_k": room}
    return {"key": call.k_pages, "value": call.v_pages, **paged}


def _batch(
    b: int,
    heads: int,
    key_heads: int,
    room: int,
    page: int,
    d: int = 128,
    dv: int = 0,
    queries: int = 1,
    dtypes: tuple[str, str] = ("bf16", "bf16"),
) -> Problem:
    """Sequences with so many queries each, and room for so many keys, three quarters of which they have."""
    width = -(-room // page)
    sizes = {"B": b, "M": b * queries, "H": heads, "HK": key_heads, "P": b * width, "W": width, "PAGE": page}
    chosen = {"causal": "lower_right"} if queries > 1 else {}
    return problem(**sizes, D=d, DV=dv or d, attributes=chosen, dtypes=dict(zip("TC", dtypes, strict=True)))


def cuda_workload() -> tuple[Problem, ...]:
    """Tokens of Llama-3-8B and of 70B (a part of 8), of few guesses each, of DeepSeek-V3; and parts of prompts."""
    found = [_batch(1, 32, 8, n, page) for n, page in ((8192, 16), (32768, 64))]
    found += [_batch(16, 32, 8, n, page) for n, page in ((1024, 16), (16384, 16), (16384, 64))]
    found += [_batch(64, 32, 8, n, 16) for n in (1024, 8192)]
    found += [_batch(b, 8, 1, n, 16) for b, n in ((1, 32768), (16, 16384))]
    found += [
        _batch(16, 32, 8, 16384, 64, queries=4),
        _batch(16, 16, 16, 8192, 16, 64),
        _batch(16, 16, 8, 8192, 16, 256),
    ]
    found += [_batch(b, 16, 1, 8192, 64, 576, 512) for b in (1, 64)]
    found.append(_batch(4, 32, 8, 8192, 16, queries=2048))
    eight: Any = {"dtypes": ("bf16", "f8e4m3")}
    found += [_batch(b, 32, 8, n, 16, **eight) for b, n in ((1, 32768), (16, 16384))]
    found += [_batch(16, 16, 16, 8192, 16, 64, **eight), _batch(16, 16, 8, 8192, 16, 256, **eight)]
    found += [_batch(64, 16, 1, 8192, 64, 576, 512, **eight), _batch(8, 32, 8, 8192, 16, queries=1024, **eight)]
    half: Any = {"dtypes": ("f16", "f16")}
    for more in ({}, eight, half):
        found += [_batch(8, 16, h, 4096, 16, d, queries=512, **more) for h, d in ((16, 64), (8, 256))]
    found += [_batch(16, 32, 8, 16384, 16, **half), _batch(8, 32, 8, 8192, 16, queries=1024, **half)]
    found += [_batch(16, 16, 16, 8192, 16, 64, **half), _batch(16, 16, 8, 8192, 16, 256, **half)]
    found += [_batch(64, 16, 1, 8192, 64, 576, 512, **half)]
    return (*found, _batch(16, 32, 8, 16384, 16, dtypes=("f16", "f8e4m3")))


def _checks() -> tuple[Problem, ...]:
    """Pages of several sizes; one query for each sequence, some, and many."""
    found = []
    for b, m, page, width, d, dv in (
        (5, 5, 16, 9, 64, 64),
        (3, 201, 16, 23, 128, 128),
        (4, 13, 5, 41, 128, 96),
        (2, 2, 64, 5, 256, 256),
        (2, 6, 128, 3, 576, 512),
    ):
        sizes = {"B": b, "M": m, "H": 6, "HK": 2, "P": b * width + 3, "W": width, "PAGE": page, "D": d, "DV": dv}
        for chosen in ({}, {"causal": "lower_right"}):
            found.append(problem(**sizes, attributes=chosen, present=["lse"]))
    return tuple(found)


operator = Operator(
    name="paged_attention",
    documentation=DOCUMENTATION.format(
        keys="It has seq_lens[b] keys, W * PAGE at most: key j is row j % PAGE of page page_table[b, j // PAGE] of "
        "k_pages and v_pages. A negative length counts as 0, and a page that there is not as the nearest that there "
        "is. With AOT_TUNE_CHECK, it is an error, also behind a sequence's last key. Keys count k_scale times and "
        "values v_scale times, as pages in f8e4m3 need it. Kernels are chosen by W: pass a view of as few columns of "
        "page_table as lengths need."
    ),
    dims=("B", "M", "H", "HK", "P", "W", "PAGE", "D", "DV"),
    tensors=(
        Tensor("q", (M, H, D), "T", read=seen(where(ROOM >= MEAN, M, 0)) * H * D),
        Tensor("k_pages", (P, PAGE, HK, D), "C", read=SEEN * D, cold=True),
        Tensor("v_pages", (P, PAGE, HK, DV), "C", read=SEEN * DV, cold=True),
        Tensor("cu_q", (B + 1,), "i32", values=drawn(cu_q)),
        Tensor("page_table", (B, W), "i32", values=drawn(page_table), read=0, below=P),
        Tensor("seq_lens", (B,), "i32", values=drawn(seq_lens)),
        Tensor("out", (M, H, DV), "T", output=True),
        Tensor("lse", (M, H), "f32", output=True, optional=True),
    ),
    scalars=(*OPTIONS, Scalar("k_scale", "f32", 1.0, other=0.75), Scalar("v_scale", "f32", 1.0, other=1.75)),
    attributes=ATTRIBUTES,
    dtypes={"T": ("f32", "bf16", "f16"), "C": ("f32", "bf16", "f16", "f8e4m3")},
    intermediates="f32",
    # Pages of q's dtype, or with queries in 16 bits of 8 bits.
    legal=(
        (dtype_index("C") == dtype_index("T")) | ((dtype_index("C") == 3) & (dtype_index("T") > 0)),
        (P >= 1) & (PAGE >= 1) & (HK >= 1),
    ),
    reference=reference,
    flops=2 * H * (D + DV) * pairs(maximum(KEYS - M, 0)),
    ranges={"M": (1, 16384), "W": (4, 2048)},
    values={
        "P": (B * W, ceildiv(B * W, 8)),
        "B": (1, 2, 4, 8, 16, 32, 64, 128),
        "H": (8, 16, 32, 64),
        "HK": (1, 2, 4, 8, 16),
        "PAGE": (16, 32, 64, 128),
        "D": (64, 128, 256, 576),
        "DV": (64, 128, 256, 512),
    },
    regimes={"tokens": (M <= 8 * B,), "prompts": (M > 8 * B,)},
    expected=(
        H % HK == 0,
        (D == DV) | (D == 576) & (DV == 512) & (HK == 1),
        (M >= B) & ((M % B == 0) | (M > 8 * B)),
        P == B * W,
        (ROOM >= 512) & (ROOM <= 65536) & (M <= B * ROOM // 2),
    ),
    workload={
        "cpu": (_batch(4, 8, 2, 256, 16, dtypes=("f32", "f32")),),
        "cuda": cuda_workload(),
    },
    checks=_checks(),
    tolerance=16.0,  # as of flash_attention: matrix units take powers that are rounded to 16 bits
    baselines=(
        Baseline("torch.sdpa_by_sequence", "torch", torch_by_sequence(_of_torch), supports=whole_groups),
        Baseline("torch.varlen_attn", "torch.nn.attention.varlen", torch_varlen(_of_varlen), supports=short_floats),
    ),
    kernels=(
        Kernel("generic", "paged_attention/generic.cpp.j2", generic=True),
        Kernel("cuda_generic", "paged_attention/cuda_generic.cu.j2", backend="nvcc", generic=True),
        *PAGED_KERNELS,
    ),
)
