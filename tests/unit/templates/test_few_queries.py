"""Attention with few queries: the CUDA kernel against the definition, by a stand-in for warps and copies of boxes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS, RENDERER
from cpu_calls import Edged
from host_compiler import CUDA, shared_object

from aot_tune.compile.device_targets import CUDA_TARGETS
from aot_tune.render import candidate_for

pytestmark = pytest.mark.slow

OP = OPERATORS["flash_attention"]
CAUSAL = OP.attributes[0].choices


@pytest.fixture(scope="module", params=["f16", "bf16"])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Callable[..., int]]:
    """The dtype, and a function that asks for workspace, launches as on 7 multiprocessors, and returns its size."""
    (target,) = (t for t in CUDA_TARGETS if t.name == "cuda-sm_90a")
    candidate = candidate_for(OP, OP.kernel("cuda_few_queries"), {}, target, None, {"T": request.param})
    rendered = RENDERER.render(OP, candidate, target)
    source: Path = tmp_path_factory.mktemp("few") / "kernel.cpp"
    source.write_text('#include "warps.h"\n' + rendered.source)
    library = ctypes.CDLL(str(shared_object(source, *CUDA)))

    def call(*arguments: Any) -> int:
        size = ctypes.c_size_t()
        assert library[f"{rendered.symbol}_workspace"](*arguments, ctypes.byref(size)) == 0
        memory = np.full(size.value + 16, 0xFF, np.uint8)
        start = ctypes.c_void_p(memory.ctypes.data + -memory.ctypes.data % 16)
        assert library[f"{rendered.symbol}_launch"](*arguments, start, size, None) == 0
        return size.value

    return request.param, call


def rows_of(shape: tuple[int, ...], by_heads: bool) -> tuple[int, ...]:
    """Strides of rows that lie head by head, or all heads of a row together."""
    _, heads, rows, width = shape
    step = (rows * width, width) if by_heads else (width, heads * width)
    return (heads * rows * width, *step, 1)


@pytest.mark.parametrize(
    ("shape", "causal", "parted"),
    [
        # B H HK M N D: a key head among several blocks, several to a block, and parts of two
        ((1, 2, 2, 1, 1500, 64), "none", True),
        ((1, 2, 2, 1, 70, 64), "none", False),
        ((5, 3, 3, 1, 700, 80), "none", True),
        ((3, 7, 7, 2, 64, 64), "none", False),
        ((6, 5, 5, 1, 40, 256), "none", False),
        # 16, 32 and 64 rows of a tile, and two tiles; other widths
        ((1, 16, 2, 2, 900, 128), "lower_right", True),
        ((1, 20, 1, 3, 300, 96), "upper_left", False),
        ((1, 6, 1, 5, 260, 192), "none", True),
        ((1, 8, 1, 9, 200, 256), "lower_right", True),
        ((1, 4, 2, 40, 17, 32), "lower_right", False),
    ],
)
@pytest.mark.parametrize("beside", ["", "mask", "mask and bias"])
def test_results_are_those_of_the_definition(
    launch: tuple[str, Callable[..., int]], shape: tuple[int, ...], causal: str, parted: bool, beside: str
) -> None:
    dtype, call = launch
    b, h, hk, m, n, d = shape
    values = np.random.default_rng(sum(shape))
    by_heads = n % 3 != 0
    q, out = (Edged((b, h, m, d), rows_of((b, h, m, d), by_heads), v, dtype) for v in (values, None))
    k, v = (Edged((b, hk, n, d), rows_of((b, hk, n, d), by_heads), values, dtype) for _ in range(2))
    mask = Edged((b, h, m, n), (n, 0, 0, 1), values, "bool") if "mask" in beside else None
    bias = Edged((b, h, m, n), (0, m * n, n, 1), values, dtype) if "bias" in beside else None
    tensors = [None if t is None else ctypes.byref(t.tensor) for t in (q, k, v, mask, bias, out)]
    size = call(*tensors, ctypes.c_float(0.0), ctypes.c_int32(CAUSAL.index(causal)))
    assert (size > 0) == parted
    given = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
    known: dict[str, Any] = {name: None if t is None else t.values for name, t in given.items()}
    if mask is not None:
        known["mask"] = known["mask"] != 0
    with np.errstate(invalid="ignore"):
        want = OP.reference(np, SimpleNamespace(**known, scale=0.0, causal=causal))["out"]
    np.testing.assert_allclose(out.values, want, atol=0.02 if dtype == "bf16" else 0.003)
