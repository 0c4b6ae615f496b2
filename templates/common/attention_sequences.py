"""What attention over sequences of different lengths shares: `ragged_attention` and `paged_attention`.

Queries of all sequences lie one after another: sequence b has rows cu_q[b] to cu_q[b + 1] - 1. Dims are M queries of B
sequences, H heads, HK heads of keys, columns D of keys and DV of values.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from aot_tune.spec import Attribute, Call, Expr, Problem, Scalar, attribute, dims, maximum, minimum, where

B, H, HK, M, D, DV = dims("B H HK M D DV")
CAUSAL = attribute("causal")

MEAN = 16
"""Tests draw lengths around the mean if it is at least this. Below it, some sequences are empty."""

_SCORES = 2**25  # that the reference holds at a time
_FEW = 2**13  # pairs of queries and keys: to compute each twice takes no time

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
    lengths: Sequence[int],
    gather: Callable[[Any, Any], tuple[Any, Any]],
    columns: int,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> dict[str, Any]:
    """The definition, of as many sequences at a time as memory allows: those that are shorter repeat their last rows.

    Args:
        lengths: how many keys each sequence has.
        gather: gives keys [n, k, HK, D] and values [n, k, HK, columns] of sequences [n, 1] at their places [n, k].
    """
    rows, heads, width = call.q.shape
    out, lse = xp.zeros((rows, heads, columns)), xp.zeros((rows, heads)) - math.inf
    factor = (call.scale or 1.0 / math.sqrt(max(width, 1))) * k_scale
    several = [
        (b, first, end - first, keys)
        for b, ((first, end), keys) in enumerate(zip(limits(call.cu_q.tolist(), rows), lengths, strict=True))
        if first < end and keys > 0 and heads > 0
    ]
    several.sort(key=lambda one: one[2:])
    while several:
        taken, most, last = _taken(several, heads)
        b, first, queries, keys = (xp.asarray(column)[:, None] for column in zip(*several[:taken], strict=True))
        several = several[taken:]
        k, v = gather(b, xp.clip(xp.arange(last)[None, :], None, keys - 1))
        few = max(_SCORES // (taken * last * heads), 1)
        for begin in range(0, most, few):
            own = xp.clip(xp.arange(begin, min(begin + few, most))[None, :], None, queries - 1)
            part = first + own
            result, level = _of_heads(xp, call, call.q[part], k, v, own + keys - queries, keys, factor)
            out[part], lse[part] = result * v_scale, level
    return {"out": out, "lse": lse}


def _taken(several: Sequence[tuple[int, int, int, int]], heads: int) -> tuple[int, int, int]:
    """How many of the first sequences are computed at once, and the most queries and keys of one of them.

    Queries and keys that are there twice are at most as many as those that are not, unless all are few.
    """
    most = last = needed = 0
    for count, (_, _, queries, keys) in enumerate(several):
        more, needed = (max(most, queries), max(last, keys)), needed + queries * keys
        pairs = (count + 1) * more[0] * more[1]
        if count and (pairs * heads > _SCORES or pairs > max(2 * needed, _FEW)):
            return count, most, last
        most, last = more
    return len(several), most, last


def _of_heads(xp: Any, call: Call, q: Any, k: Any, v: Any, places: Any, keys: Any, factor: float) -> tuple[Any, Any]:
    """Results [n, m, H, DV] and logarithms of queries [n, m, H, D]; query heads that share a key head are rows of one
    product."""
    (n, m, heads, width), (last, key_heads), columns = q.shape, k.shape[1:3], v.shape[3]
    group = heads // key_heads if heads % key_heads == 0 else 1  # heads that share keys
    read = [h * key_heads // heads for h in range(0, heads, group)]
    q = xp.reshape(xp.reshape(q, (n, m, len(read), group, width)).swapaxes(1, 2), (n, len(read), m * group, width))
    own_k, own_v = ((t if group > 1 else t[:, :, read]).swapaxes(1, 2) for t in (k, v))
    places, inside = xp.repeat(places, group, axis=1)[:, None], (xp.arange(last)[None, :] < keys)[:, None, None]
    result, level = _attend(xp, call, q, own_k, own_v, places, inside, factor)
    # Of a product of two matrices, the yardstick of errors makes some sums in order.
    result[0, 0], level[0, 0] = _attend(xp, call, q[0, 0], own_k[0, 0], own_v[0, 0], places[0, 0], inside[0, 0], factor)
    result = xp.reshape(result, (n, len(read), m, group, columns)).swapaxes(1, 2)
    level = xp.reshape(level, (n, len(read), m, group)).swapaxes(1, 2)
    return xp.reshape(result, (n, m, heads, columns)), xp.reshape(level, (n, m, heads))


def _attend(xp: Any, call: Call, q: Any, k: Any, v: Any, places: Any, inside: Any, factor: float) -> tuple[Any, Any]:
    """Results and logarithms of queries [.., rows, D] at places [.., rows], of the keys [.., n, D] that are inside."""
    scores = xp.matmul(q, k.swapaxes(-1, -2)) * factor
    if call.softcap > 0:
        scores = xp.tanh(scores / call.softcap) * call.softcap
    behind = places[..., :, None] - xp.arange(k.shape[-2])
    if call.causal != "none":
        inside = inside & (behind >= 0)
    if call.window > 0:
        inside = inside & (behind < call.window)
    sees = places >= (0 if call.causal != "none" else -math.inf)
    scores = xp.where(inside, scores, -math.inf)
    highest = xp.where(sees, xp.max(scores, axis=-1), 0.0)
    powers = xp.exp(scores - highest[..., None])
    total = xp.where(sees, xp.sum(powers, axis=-1), 1.0)
    result = xp.where(sees[..., None], xp.matmul(powers / total[..., None], v), 0.0)
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
        known = inspect.signature(varlen.varlen_attn).parameters
        if "enable_gqa" in known:  # others do not ask whether heads share keys
            given["enable_gqa"] = call.q.shape[1] != keys_heads(call)
        lacking = given.keys() - known
        if lacking:
            raise TypeError(f"varlen_attn of this torch has no {', '.join(sorted(lacking))}")

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
