"""Floats of 8 bits in C++ for CPUs and in numpy: each pattern is read right, each float rounded to the nearest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_kernels import TARGETS, CpuKernel

from aot_tune.bench.worker.eight_bit_floats import eight_bits
from aot_tune.bench.worker.stored_elements import array_dtype, limits_of, stored_as, values_of
from aot_tune.spec import Kernel, Operator, Parameter, Target, Tensor, dims, dtype, problem, stride
from aot_tune.spec.load_operators import bundled_templates

torch: Any = pytest.importorskip("torch")

(N,) = dims("N")
TEMPLATE = """
{{ prelude() }}
{% include "common/simd.h.j2" %}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  const int64_t n = {{ dim("N") }};
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
    {{ store("wide", ["i"], load("x", ["i"])) }}
    {{ store("rounded", ["i"], load("given", ["i"])) }}
  }
{% endif %}
  return 0;
}
"""
PATTERNS = np.arange(256, dtype=np.uint8)
DTYPES = ("f8e4m3", "f8e5m2")
WIDTHS = ((TARGETS[0], 0), (TARGETS[0], 4), (TARGETS[-1], 16))
CASES = [(target, dtype, width) for target, width in WIDTHS for dtype in DTYPES]
NAMES = [f"{t.name}-{d}-{w}" for t, d, w in CASES]
OPERATOR = Operator(
    name="convert",
    dims=("N",),
    tensors=(
        Tensor("x", (N,), "T"),
        Tensor("given", (N,), "f32"),
        Tensor("wide", (N,), "f32", output=True),
        Tensor("rounded", (N,), "T", output=True),
    ),
    dtypes={"T": DTYPES},
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


def theirs(name: str) -> Any:
    return getattr(torch, dtype(name).torch)


def values(name: str) -> Any:
    """What torch says that each pattern is."""
    return torch.from_numpy(PATTERNS).view(theirs(name)).float().numpy()


def nearest(name: str, given: Any) -> Any:
    """The patterns of floats as torch rounds them, once they are cut off at the largest value."""
    largest = float(torch.finfo(theirs(name)).max)
    return torch.from_numpy(given).clamp(-largest, largest).to(theirs(name)).view(torch.uint8).numpy()


def difficult(name: str) -> Any:
    """Floats at and beside all values of a dtype and all midpoints between two, and a million others."""
    known = np.sort(values(name)[np.isfinite(values(name))])
    found = np.concatenate([known, known[:-1] / 2 + known[1:] / 2, known[[0, -1]] * 1.05])
    beside = [np.nextafter(found, np.float32(limit)) for limit in (-np.inf, np.inf)]
    bits = np.random.default_rng(7).integers(0, 1 << 32, 1_000_000, dtype=np.uint64).astype(np.uint32)
    limits = np.array([np.inf, -np.inf, np.nan, 464, 480, 61440, 65536, 1e-45, 3e38, -0.0], np.float32)
    return np.concatenate([found, *beside, bits.view(np.float32), limits])


def same(name: str, got: Any, want: Any) -> bool:
    """Whether patterns are the same, but for which NaN it is."""
    nan = np.isnan(values(name))
    return bool(((got == want) | (nan[got] & nan[want])).all())


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_s_patterns_are_torch_s(name: str) -> None:
    ours, given = dtype(name), difficult(name)
    np.testing.assert_array_equal(values_of(ours, PATTERNS), values(name))
    rounded = stored_as(ours, given)
    assert rounded.dtype == array_dtype(ours) == np.uint8
    assert same(name, rounded, nearest(name, given))
    assert same(name, stored_as(ours, given.astype(np.float64)), rounded)


@pytest.mark.parametrize("name", DTYPES)
def test_a_double_is_rounded_once(name: str) -> None:
    form, ours = eight_bits(dtype(name)), dtype(name)
    tie = np.float64(1 + 2.0 ** -(form.fraction + 1))
    above, below = (values_of(ours, stored_as(ours, np.array([tie + sign * 2.0**-50])))[0] for sign in (1, -1))
    assert (above, below) == (1 + 2.0**-form.fraction, 1)


@pytest.mark.parametrize("name", DTYPES)
def test_limits_are_torch_s(name: str) -> None:
    info = torch.finfo(theirs(name))
    assert limits_of(dtype(name)) == (info.eps, info.tiny, info.max)


def make(folder: Path, target: Target, name: str, width: int) -> CpuKernel:
    (folder / "convert.cpp.j2").write_text(TEMPLATE)
    (folder / "one.cpp.j2").write_text("{% set W = 0 %}" + TEMPLATE)
    roots, config = (folder, bundled_templates()), {"W": width} if width else {}
    return CpuKernel(folder, roots, OPERATOR, "vectors" if width else "generic", target, config, {"T": name})


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name", "width"), CASES, ids=NAMES)
def test_kernels_convert_as_torch_does(tmp_path: Path, target: Target, name: str, width: int) -> None:
    given = difficult(name)
    count = given.size - (given.size - 5) % 16  # some are left beside whole vectors
    given = given[-count:].copy()
    x = np.resize(PATTERNS, count)
    wide, rounded = np.full(count, 7, np.float32), np.full(count, 7, np.uint8)
    assert make(tmp_path, target, name, width)(x=x, given=given, wide=wide, rounded=rounded) == 0
    np.testing.assert_array_equal(wide, values(name)[x])
    assert same(name, rounded, nearest(name, given))


def test_a_text_has_the_types_that_it_names_alone(tmp_path: Path) -> None:
    source = make(tmp_path, TARGETS[0], "f8e5m2", 0).source
    assert "struct aot_tune_f8e5m2" in source
    assert "struct aot_tune_f8e4m3" not in source
