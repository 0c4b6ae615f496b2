"""Attention with few queries: the CUDA kernel against the definition, by a stand-in for warps and copies of boxes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from cpu_calls import Edged
from host_kernels import CudaKernel

pytestmark = pytest.mark.slow

OP = OPERATORS["flash_attention"]
CAUSAL = OP.attributes[0].choices


@pytest.fixture(scope="module", params=["f16", "bf16"])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, CudaKernel]:
    """The dtype, and the kernel, which launches as on 7 multiprocessors."""
    kernel = CudaKernel(tmp_path_factory.mktemp("few"), OP, "cuda_few_queries", dtypes={"T": request.param})
    return request.param, kernel


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
    launch: tuple[str, CudaKernel], shape: tuple[int, ...], causal: str, parted: bool, beside: str
) -> None:
    dtype, kernel = launch
    b, h, hk, m, n, d = shape
    values = np.random.default_rng(sum(shape))
    by_heads = n % 3 != 0
    q, out = (Edged((b, h, m, d), rows_of((b, h, m, d), by_heads), v, dtype) for v in (values, None))
    k, v = (Edged((b, hk, n, d), rows_of((b, hk, n, d), by_heads), values, dtype) for _ in range(2))
    mask = Edged((b, h, m, n), (n, 0, 0, 1), values, "bool") if "mask" in beside else None
    bias = Edged((b, h, m, n), (0, m * n, n, 1), values, dtype) if "bias" in beside else None
    given = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
    views = {name: t.view for name, t in {**given, "out": out}.items() if t is not None}
    assert kernel({"scale": 0.0, "causal": CAUSAL.index(causal)}, **views) == 0
    assert (kernel.workspace.size > 0) == parted
    known: dict[str, Any] = {name: None if t is None else t.values for name, t in given.items()}
    if mask is not None:
        known["mask"] = known["mask"] != 0
    with np.errstate(invalid="ignore"):
        want = OP.reference(np, SimpleNamespace(**known, scale=0.0, causal=causal))["out"]
    np.testing.assert_allclose(out.values, want, atol=0.02 if dtype == "bf16" else 0.003)
