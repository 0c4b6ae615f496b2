"""The problems of a decoder's forward pass, by number of tokens, on one of the devices that share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aot_tune.spec import DEFAULT_ALIGNMENT, Problem, problem
from aot_tune.spec.dtypes import DTYPES
from aot_tune.support.errors import SpecError
from aot_tune.workloads.model_config import DecoderSizes

__all__ = ["decoder_problems"]

_BY_COLUMNS = {"b": (1, 0)}
"""Linear layers store weights so that rows in memory are columns of the product."""

_WEIGHTED = ("weight",)
_ADDED = ("weight", "residual", "residual_out")

Weighted = tuple[str, Problem, float]


def decoder_problems(
    sizes: DecoderSizes, tokens: Iterable[int], *, parallel: int = 1, context: int = 0
) -> list[Weighted]:
    """Operators and problems of a forward pass, with the number of calls of each, for each number of tokens.

    The tokens are of one sequence. They follow `context` others that attention sees. `parallel` devices share heads,
    perceptrons and vocabulary. The problems are those of one device.

    Raises:
        SpecError: when the devices cannot share a size.
    """
    _check_shares(sizes, parallel)
    return [found for count in tokens for found in _forward(sizes, count, parallel, context)]


def _check_shares(sizes: DecoderSizes, parallel: int) -> None:
    shared = {
        "num_attention_heads": sizes.heads,
        "the intermediate size": sizes.expert_width,
        "vocab_size": sizes.vocabulary,
    }
    if parallel < sizes.key_heads:  # otherwise each device has one, and several may have the same
        shared["num_key_value_heads"] = sizes.key_heads
    bad = [f"{name} {size}" for name, size in shared.items() if size % parallel]
    if parallel > sizes.key_heads and parallel % sizes.key_heads:
        bad.append(f"num_key_value_heads {sizes.key_heads}")
    if bad:
        fits = [str(n) for n in range(1, sizes.heads + 1) if _fit(sizes, n)]
        raise SpecError(
            f"{sizes.name}: {parallel} devices cannot share {' and '.join(bad)}",
            why="each device must get an equal share of the heads, the perceptron's columns and the vocabulary",
            fix=f"choose --tp among {', '.join(fits)}",
        )


def _fit(sizes: DecoderSizes, parallel: int) -> bool:
    keys = sizes.key_heads % parallel == 0 or parallel % sizes.key_heads == 0
    return keys and not any(size % parallel for size in (sizes.heads, sizes.expert_width, sizes.vocabulary))


def _forward(sizes: DecoderSizes, tokens: int, parallel: int, context: int) -> Iterator[Weighted]:
    """One forward pass. RMS norm can add a residual, so a layer's sum with its input is computed in the next norm."""
    layers, dtypes = sizes.layers, {"T": sizes.dtype}
    yield "rms_norm", problem(R=tokens, D=sizes.hidden, present=_WEIGHTED, dtypes=dtypes), 1
    yield "rms_norm", problem(R=tokens, D=sizes.hidden, present=_ADDED, dtypes=dtypes), 2 * layers
    yield from _attention(sizes, tokens, parallel, context)
    if sizes.experts:
        yield _linear(sizes, tokens, sizes.experts, sizes.hidden, layers)
        pairs = tokens * sizes.experts_per_token  # spread as evenly as possible
        busy = min(sizes.experts, pairs)
        yield from _perceptron(sizes, -(-pairs // busy), parallel, layers * busy)
    else:
        yield from _perceptron(sizes, tokens, parallel, layers)
    yield _linear(sizes, tokens, sizes.vocabulary // parallel, sizes.hidden, 1)


def _attention(sizes: DecoderSizes, tokens: int, parallel: int, context: int) -> Iterator[Weighted]:
    heads, key_heads = sizes.heads // parallel, max(sizes.key_heads // parallel, 1)
    width, layers, dtypes = sizes.head_width, sizes.layers, {"T": sizes.dtype}
    yield _linear(sizes, tokens, (heads + 2 * key_heads) * width, sizes.hidden, layers, bias=sizes.qkv_bias)
    if sizes.head_norms:
        yield "rms_norm", problem(R=tokens * heads, D=width, present=_WEIGHTED, dtypes=dtypes), layers
        yield "rms_norm", problem(R=tokens * key_heads, D=width, present=_WEIGHTED, dtypes=dtypes), layers
    causal = {} if tokens == 1 else {"causal": "lower_right" if context else "upper_left"}
    attended = problem(
        B=1, H=heads, HK=key_heads, M=tokens, N=context + tokens, D=width, attributes=causal, dtypes=dtypes
    )
    yield "flash_attention", attended, layers
    yield _linear(sizes, tokens, sizes.hidden, heads * width, layers, bias=sizes.out_bias and parallel == 1)


def _perceptron(sizes: DecoderSizes, tokens: int, parallel: int, calls: int) -> Iterator[Weighted]:
    """One product computes gate and up: they are the halves of its rows."""
    width = sizes.expert_width // parallel
    yield _linear(sizes, tokens, 2 * width, sizes.hidden, calls, bias=sizes.mlp_bias)
    halves = {"gate": (2 * width, 1), "up": (2 * width, 1)}
    begins = width * DTYPES[sizes.dtype].itemsize
    aligned = min(begins & -begins, DEFAULT_ALIGNMENT)
    alignment = {"up": aligned} if aligned != DEFAULT_ALIGNMENT else {}
    gated = problem(R=tokens, D=width, strides=halves, alignment=alignment, dtypes={"T": sizes.dtype})
    yield "silu_mul", gated, calls
    yield _linear(sizes, tokens, sizes.hidden, width, calls, bias=sizes.mlp_bias and parallel == 1)


def _linear(sizes: DecoderSizes, rows: int, columns: int, depth: int, calls: int, *, bias: bool = False) -> Weighted:
    """A product with a weight. If devices add up their parts of it, its bias is added after that."""
    present: Sequence[str] = ("bias",) if bias else ()
    asked = problem(M=rows, N=columns, K=depth, order=_BY_COLUMNS, present=present, dtypes={"T": sizes.dtype})
    return "gemm", asked, calls
