"""Floats of 16 bits in C++ for CPUs: each pattern of bits is read right, and each float rounded to the nearest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_kernels import TARGETS, CpuKernel, bf16_bits, bf16_values

from aot_tune.spec import Kernel, Operator, Parameter, Target, Tensor, dims, problem, stride
from aot_tune.spec.load_operators import bundled_templates

(N,) = dims("N")
TEMPLATE = """
{{ prelude() }}
{% include "common/simd.h.j2" %}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  const int64_t n = {{ dim("N") }};
  const {{ dtype("x") }}* from = {{ ptr("x") }};
  {{ dtype("rounded") }}* to = {{ ptr("rounded") }};
{% if W %}
  int64_t i = 0;
  for (; i + {{ W }} <= n; i += {{ W }}) {
    {{ store("wide", ["i"], load("x", ["i"], W), W) }}
    {{ store("rounded", ["i"], load("given", ["i"], W), W) }}
  }
  {{ store("wide", ["i"], load("x", ["i"], W, "n - i"), W, "n - i") }}
  {{ store("rounded", ["i"], load("given", ["i"], W, "n - i"), W, "n - i") }}
{% else %}
  for (int64_t i = 0; i < n; ++i) {
    {{ store("wide", ["i"], "from[i]") }}
    to[i] = {{ load("given", ["i"]) }};
  }
{% endif %}
  return 0;
}
"""
PATTERNS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
WIDTHS = ((TARGETS[0], 0), *zip(TARGETS, (4, 8, 16), strict=False))
CASES = [(target, dtype, width) for target, width in WIDTHS for dtype in ("f16", "bf16")]
NAMES = [f"{t.name}-{d}-{w}" for t, d, w in CASES]


def operator() -> Operator:
    return Operator(
        name="convert",
        dims=("N",),
        tensors=(
            Tensor("x", (N,), "T"),
            Tensor("given", (N,), "f32"),
            Tensor("wide", (N,), "f32", output=True),
            Tensor("rounded", (N,), "T", output=True),
        ),
        dtypes={"T": ("f16", "bf16")},
        reference=lambda xp, call: {"wide": call.x, "rounded": call.given},
        flops=N,
        workload=(problem(N=8),),
        kernels=(
            Kernel("generic", "one.cpp.j2", generic=True),
            Kernel(
                "vectors",
                "convert.cpp.j2",
                parameters=(Parameter("W", (4, 8, 16)),),
                requires=tuple(stride(t, 0) == 1 for t in ("x", "given", "wide", "rounded")),
            ),
        ),
    )


@pytest.fixture(name="make")
def fixture_make(tmp_path: Path) -> Callable[[Target, str, int], CpuKernel]:
    (tmp_path / "convert.cpp.j2").write_text(TEMPLATE)
    (tmp_path / "one.cpp.j2").write_text("{% set W = 0 %}" + TEMPLATE)

    def make(target: Target, dtype: str, width: int) -> CpuKernel:
        kernel = "vectors" if width else "generic"
        roots = (tmp_path, bundled_templates())
        return CpuKernel(tmp_path, roots, operator(), kernel, target, {"W": width} if width else {}, {"T": dtype})

    return make


def difficult(dtype: str) -> Any:
    """Floats at and beside all values of a dtype and all midpoints between two, and a million others."""
    values = bf16_values(PATTERNS) if dtype == "bf16" else PATTERNS.view(np.float16).astype(np.float32)
    values = np.sort(values[np.isfinite(values)])
    midpoints = values[:-1] / 2 + values[1:] / 2
    found = np.concatenate([values, midpoints])
    beside = [np.nextafter(found, np.float32(limit)) for limit in (-np.inf, np.inf)]
    bits = np.random.default_rng(7).integers(0, 1 << 32, 1_000_000, dtype=np.uint64).astype(np.uint32)
    limits = np.array([np.inf, -np.inf, np.nan, 65519.996, 65520, 1e-45, 3e38], np.float32)
    return np.concatenate([found, *beside, bits.view(np.float32), limits])


def same(got: Any, want: Any) -> bool:
    return bool(((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all())


def values_of(bits: Any, dtype: str) -> Any:
    return bf16_values(bits) if dtype == "bf16" else bits.view(np.float16).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "dtype", "width"), CASES, ids=NAMES)
def test_conversions(make: Callable[..., CpuKernel], target: Target, dtype: str, width: int) -> None:
    given = difficult(dtype)
    count = given.size - (given.size - 5) % 16  # some are left beside whole vectors
    given = given[-count:].copy()
    x = np.resize(PATTERNS, count)
    wide, rounded = np.full(count, 7, np.float32), np.full(count, 7, np.uint16)
    with np.errstate(over="ignore"):
        want = bf16_bits(given) if dtype == "bf16" else given.astype(np.float16).view(np.uint16)
    kernel = make(target, dtype, width)
    assert kernel(x=x, given=given, wide=wide, rounded=rounded) == 0
    assert same(wide, values_of(x, dtype))
    assert same(values_of(rounded, dtype), values_of(want, dtype))


def test_the_rounding_that_is_expected_of_bf16_is_torch_s() -> None:
    torch = pytest.importorskip("torch")
    given = difficult("bf16")
    theirs = torch.from_numpy(given).to(torch.bfloat16).float().numpy()
    assert same(bf16_values(bf16_bits(given)), theirs)


def test_a_text_has_the_types_that_it_names_alone(make: Callable[..., CpuKernel]) -> None:
    source = make(TARGETS[0], "bf16", 0).source
    assert "struct aot_tune_bf16" in source
    assert "struct aot_tune_f16" not in source
