"""What attention over sequences of different lengths shares: `ragged_attention` and `paged_attention`.

Queries of all sequences lie one after another: sequence b has rows cu_q[b] to cu_q[b + 1] - 1. Dims are M queries of B
sequences, H heads, HK heads of keys, columns D of keys and DV of values.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any

from aot_tune.spec import Attribute, Call, Expr, Problem, Scalar, attribute, dims, maximum, minimum, where

B, H, HK, M, D, DV = dims("B H HK M D DV")
CAUSAL = attribute("causal")

MEAN = 16
"""Tests draw lengths around the mean if it is at least this. Below it, some sequences are empty."""

_SCORES = 2**25  # that the reference holds at a time

OPTIONS = (
    Scalar("scale", "f32", 0.0, other=0.2, least=0.0),
    Scalar("window", "i32", 0.0, other=3.0),
    Scalar("softcap", "f32", 0.0, other=1.5, least=0.0),
)
ATTRIBUTES = (Attribute("causal", ("none", "lower_right")),)

DOCUMENTATION = (
    "out = softmax(scale * q @ k^T) @ v for each head of each sequence. Rows cu_q[b] to cu_q[b + 1] - 1 of q are "
    "those of sequence b; offsets begin with 0, never fall, and end with M at most. {keys} Query head h reads key "
    "head h * HK / H, rounded down. A scale of 0 stands for 1 / sqrt(D). A softcap above 0 bounds scores: softcap * "
    "tanh(score / softcap). The last query of a sequence is at the place of its last key. With causal=lower_right, no "
    "query sees keys behind its place. With a window above 0, none sees a key that is `window` places or more before "
    "its own. lse is the logarithm of the sum of e^score. A query that sees no key, and a row of q beyond cu_q[B], "
    "gives 0, and -inf in lse. Offsets that break these rules give wrong results, but nothing outside the tensors is "
    "read or written."
)


def seen(keys: Expr) -> Expr:
    """How many of so many keys are those of sequences with queries in tests; where some have none, surely so many."""
    count = maximum(B, 1)
    every = (M % count == 0) | (M >= MEAN * B)
    return where(every & (M >= B), keys, keys * minimum(M, count) // (8 * count))


def pairs(keys: Expr) -> Expr:
    """Queries and keys of a head that meet in tests, about: with each query's own keys there are `keys` more.

    The squares of lengths that are spread evenly from a quarter to seven quarters of their mean add up to more.
    """
    count = maximum(B, 1)
    squares = M * M // count + where(M >= MEAN * B, 3 * (B + 1) * M * M // (16 * count * maximum(B - 1, 1)), 0)
    return where(CAUSAL == 1, (squares + M) // 2, squares) + M * keys // count


def split(rng: Any, total: int, count: int) -> list[int]:
    """Offsets of `count` sequences of `total` rows.

    Lengths go evenly from a quarter to seven quarters of the mean, in any order. Short ones are alike, if that is
    possible, or anything from 0 on; then some rows may be left at the end.
    """
    if count == 0 or (total % count == 0 and total < MEAN * count):
        return [b * (total // max(count, 1)) for b in range(count + 1)]
    if total < MEAN * count:
        ends = sorted(rng.integers(0, total + 1, count).tolist())
        return [0, *ends[:-1], ends[-1] if count % 2 else total]
    shares = 0.25 + 1.5 * rng.permutation(count) / (count - 1) if count > 1 else rng.random(1)
    return [0, *(round(end * total / count) for end in shares.cumsum().tolist()[:-1]), total]


def cu_q(rng: Any, call: Any) -> list[int]:
    """Offsets of queries."""
    return split(rng, call.M, call.B)


def limits(offsets: Any, total: int) -> list[tuple[int, int]]:
    """Where each sequence begins and ends, within `total` rows."""
    ends = [min(max(int(offset), 0), total) for offset in offsets]
    return [(begin, max(begin, end)) for begin, end in itertools.pairwise(ends)]


def attend(
    xp: Any,
    call: Call,
    keys_of: Callable[[int], tuple[Any, Any]],
    columns: int,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> dict[str, Any]:
    """The definition. `keys_of(b)` gives a sequence's keys [n, HK, D] and values [n, HK, columns]."""
    rows, heads, width = call.q.shape
    out, lse = xp.zeros((rows, heads, columns)), xp.zeros((rows, heads)) - math.inf
    factor = (call.scale or 1.0 / math.sqrt(max(width, 1))) * k_scale
    alone = True
    for b, (first, end) in enumerate(limits(call.cu_q, rows)):
        if first == end:
            continue
        k, v = keys_of(b)
        keys, key_heads = k.shape[:2]
        group = heads // key_heads if heads % key_heads == 0 else 1  # heads that share keys
        read = [h * key_heads // heads for h in range(0, heads, max(group, 1))]
        few = max(_SCORES // (max(keys * heads, 1)), 1)
        for begin in range(first, end if keys and heads else first, few):
            count = min(few, end - begin)
            part = slice(begin, begin + count)
            shape = (count, len(read), group)
            q = xp.reshape(call.q[part], (*shape, width)).swapaxes(0, 1)
            q = xp.reshape(q, (len(read), count * group, width))
            own_k, own_v = ((t if group > 1 else t[:, read]).swapaxes(0, 1) for t in (k, v))
            places = xp.repeat(xp.arange(begin, begin + count), group) + (keys - end)
            result, level = _attend(xp, call, q, own_k, own_v, places, factor)
            if alone:  # of a product of two matrices, the yardstick of errors makes some sums in order
                result[0], level[0] = _attend(xp, call, q[0], own_k[0], own_v[0], places, factor)
                alone = False
            result = xp.reshape(result * v_scale, (len(read), count, group, columns)).swapaxes(0, 1)
            out[part] = xp.reshape(result, (count, heads, columns))
            lse[part] = xp.reshape(xp.reshape(level, (len(read), count, group)).swapaxes(0, 1), (count, heads))
    return {"out": out, "lse": lse}


def _attend(xp: Any, call: Call, q: Any, k: Any, v: Any, places: Any, factor: float) -> tuple[Any, Any]:
    """Results and logarithms of queries [.., rows, D] at these places among keys [.., n, D]."""
    scores = xp.matmul(q, k.swapaxes(-1, -2)) * factor
    if call.softcap > 0:
        scores = xp.tanh(scores / call.softcap) * call.softcap
    behind = places[:, None] - xp.arange(k.shape[-2])[None, :]
    sees = places * 0 == 0
    if call.causal != "none":
        scores, sees = xp.where(behind >= 0, scores, -math.inf), places >= 0
    if call.window > 0:
        scores = xp.where(behind < call.window, scores, -math.inf)
    highest = xp.where(sees, xp.max(scores, axis=-1), 0.0)
    powers = xp.exp(scores - highest[..., None])
    total = xp.where(sees, xp.sum(powers, axis=-1), 1.0)
    result = xp.where(sees[:, None], xp.matmul(powers / total[..., None], v), 0.0)
    return result, xp.where(sees, xp.log(total) + highest, -math.inf)


def torch_by_sequence(keys_of: Callable[[Call, int], tuple[Any, Any]]) -> Callable[..., Callable[[], object]]:
    """torch's function, sequence by sequence; `keys_of(call, b)` gives the keys and values of one, in each call."""

    def prepare(torch: Any, call: Call) -> Callable[[], object]:
        bias = importlib.import_module("torch.nn.attention.bias")
        rows = limits(call.cu_q.tolist(), call.q.shape[0])
        groups = call.q.shape[1] != keys_heads(call)

        def run() -> None:
            for b, (first, end) in enumerate(rows):
                q, k, v = (t.swapaxes(0, 1)[None] for t in (call.q[first:end], *keys_of(call, b)))
                mask = None if call.causal == "none" else bias.causal_lower_right(end - first, k.shape[2])
                call.out[first:end] = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, scale=call.scale or None, enable_gqa=groups
                )[0].swapaxes(0, 1)

        return run

    return prepare


def keys_heads(call: Call) -> int:
    """Heads of keys: the second last axis of both operators' keys."""
    keys = getattr(call, "k", None)
    return int((call.k_pages if keys is None else keys).shape[-2])


def torch_varlen(arguments: Callable[[Call], dict[str, Any]]) -> Callable[..., Callable[[], object]]:
    """torch's own attention over ragged batches, in versions that have it; `arguments` gives those about keys."""

    def prepare(varlen: Any, call: Call) -> Callable[[], object]:
        given: dict[str, Any] = {"cu_seq_q": call.cu_q, "scale": call.scale or None, **arguments(call)}
        given["window_size"] = (-1, -1 if call.causal == "none" else 0)
        given["max_q"] = max(end - begin for begin, end in limits(call.cu_q.tolist(), call.q.shape[0]))
        given["enable_gqa"] = call.q.shape[1] != keys_heads(call)

        def run() -> None:
            result = varlen.varlen_attn(call.q, **given)
            capturing = importlib.import_module("torch").cuda.is_current_stream_capturing
            if not (call.q.is_cuda and capturing()):
                call.out.copy_(result)

        return run

    return prepare


def whole_groups(given: Problem) -> bool:
    """Whether torch takes the problem: as many heads share each key head, and floats of 16 bits or more."""
    return given.dims["H"] % given.dims["HK"] == 0 and given.dtypes.get("C", "f32") != "f8e4m3"


def short_floats(given: Problem) -> bool:
    """Whether torch's kernels for ragged batches take the problem."""
    alike = given.dims["D"] == given.dims["DV"] <= 256
    return whole_groups(given) and given.dtypes.get("T", "f32") != "f32" and alike
