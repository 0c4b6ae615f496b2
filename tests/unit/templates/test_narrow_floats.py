"""Floats of 16 and 8 bits in C++ for CPUs and in numpy: each pattern is read, each float rounded as by torch."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_kernels import TARGETS, CpuKernel
from small_operators import make_operator

from aot_tune.bench.worker.stored_elements import array_dtype, eight_bits, limits_of, stored_as, values_of
from aot_tune.render import Renderer
from aot_tune.spec import Kernel, Operator, Parameter, Target, Tensor, dims, dtype, stride
from aot_tune.spec.load_operators import bundled_templates

(N,) = dims("N")
SIXTEEN, EIGHT = ("f16", "bf16"), ("f8e4m3", "f8e5m2")
NARROW = SIXTEEN + EIGHT
TEMPLATE = """
{{ prelude() }}
{% include "common/simd.h.j2" %}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  const int64_t n = {{ dim("N") }};
  int64_t i = 0;
{% for one in NAMES %}
{% if W %}
  for (i = 0; i + {{ W }} <= n; i += {{ W }}) {
    {{ store("wide_" ~ one, ["i"], load("x_" ~ one, ["i"], W), W) }}
    {{ store("rounded_" ~ one, ["i"], load("given_" ~ one, ["i"], W), W) }}
  }
  {{ store("wide_" ~ one, ["i"], load("x_" ~ one, ["i"], W, "n - i"), W, "n - i") }}
  {{ store("rounded_" ~ one, ["i"], load("given_" ~ one, ["i"], W, "n - i"), W, "n - i") }}
{% else %}
  for (i = 0; i < n; ++i) {
    {{ store("wide_" ~ one, ["i"], load("x_" ~ one, ["i"])) }}
    {{ store("rounded_" ~ one, ["i"], load("given_" ~ one, ["i"])) }}
  }
{% endif %}
{% endfor %}
  return 0;
}
"""


def operator(names: tuple[str, ...]) -> Operator:
    """An operator that converts to and from these."""
    tensors = [
        tensor
        for one in names
        for tensor in (
            Tensor(f"x_{one}", (N,), one),
            Tensor(f"given_{one}", (N,), "f32"),
            Tensor(f"wide_{one}", (N,), "f32", output=True),
            Tensor(f"rounded_{one}", (N,), one, output=True),
        )
    ]
    vectors = Kernel(
        "vectors",
        "vectors.cpp.j2",
        parameters=(Parameter("W", (4, 8, 16)),),
        requires=tuple(stride(t.name, 0) == 1 for t in tensors),
    )
    generic = Kernel("generic", "one.cpp.j2", generic=True)
    return make_operator(name="convert", extents="N", tensors=tuple(tensors), kernels=(generic, vectors))


def make(folder: Path, target: Target, names: tuple[str, ...], width: int) -> CpuKernel:
    text = f"{{% set NAMES = {list(names)} %}}{TEMPLATE}"
    (folder / "vectors.cpp.j2").write_text(text)
    (folder / "one.cpp.j2").write_text("{% set W = 0 %}" + text)
    kernel, config = ("vectors", {"W": width}) if width else ("generic", {})
    renderer = Renderer((folder, bundled_templates()))
    return CpuKernel(folder, operator(names), kernel, target, config, renderer=renderer)


def patterns(name: str) -> Any:
    """All patterns of a dtype's bits."""
    count, stored = (1 << 16, np.uint16) if name in SIXTEEN else (1 << 8, np.uint8)
    return np.arange(count, dtype=np.uint32).astype(stored)


@functools.cache
def torch() -> Any:
    """Imported where it is used: it takes seconds."""
    return pytest.importorskip("torch")


def theirs(name: str) -> Any:
    return getattr(torch(), dtype(name).torch)


def values(name: str) -> Any:
    """What torch says that each pattern is."""
    return torch().from_numpy(patterns(name)).view(theirs(name)).float().numpy()


def nearest(name: str, given: Any) -> Any:
    """The patterns of floats as torch rounds them; those of 8 bits once they are cut off at the largest value."""
    largest = float(torch().finfo(theirs(name)).max)
    cut = torch().from_numpy(given).clamp(-largest, largest) if name in EIGHT else torch().from_numpy(given)
    return cut.to(theirs(name)).view(torch().uint8 if name in EIGHT else torch().uint16).numpy()


def difficult(name: str) -> Any:
    """Floats at and beside all values of a dtype and all midpoints between two, and many others."""
    known = np.sort(values(name)[np.isfinite(values(name))])
    with np.errstate(over="ignore"):
        found = np.concatenate([known, known[:-1] / 2 + known[1:] / 2, known[[0, -1]] * np.float32(1.05)])
    beside = [np.nextafter(found, np.float32(limit)) for limit in (-np.inf, np.inf)]
    bits = np.random.default_rng(7).integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    limits = np.array(
        [np.inf, -np.inf, np.nan, 464, 480, 61440, 65519.996, 65520, 65536, 1e-45, 3e38, -0.0], np.float32
    )
    return np.concatenate([found, *beside, bits.view(np.float32), limits])


def same(name: str, got: Any, want: Any) -> bool:
    """Whether patterns are the same, but for which NaN it is."""
    nan = np.isnan(values(name))
    return bool(((got == want) | (nan[got] & nan[want])).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "width"),
    [(TARGETS[0], 0), (TARGETS[0], 4), *((TARGETS[-1], TARGETS[-1].facts["vector_bytes"] // size) for size in (8, 4))],
)
def test_kernels_convert_as_torch_does(tmp_path: Path, target: Target, width: int) -> None:
    count = max(difficult(name).size for name in NARROW)
    count += (5 - count) % 16  # some are left beside whole vectors
    arrays = {}
    for name in NARROW:
        arrays[f"x_{name}"], arrays[f"given_{name}"] = (
            np.resize(patterns(name), count),
            np.resize(difficult(name), count),
        )
        arrays[f"wide_{name}"] = np.full(count, 7, np.float32)
        arrays[f"rounded_{name}"] = np.full(count, 7, patterns(name).dtype)
    assert make(tmp_path, target, NARROW, width)(**arrays) == 0
    for name in NARROW:
        got, want = arrays[f"wide_{name}"], values(name)[arrays[f"x_{name}"]]
        assert ((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all(), name
        assert same(name, arrays[f"rounded_{name}"], nearest(name, arrays[f"given_{name}"])), name


def test_a_text_has_the_types_that_it_names_alone(tmp_path: Path) -> None:
    source = make(tmp_path, TARGETS[0], ("bf16", "f8e5m2"), 0).source
    assert "struct aot_tune_bf16" in source
    assert "struct aot_tune_f8e5m2" in source
    assert "struct aot_tune_f16" not in source
    assert "struct aot_tune_f8e4m3" not in source


@pytest.mark.parametrize("name", ["bf16", *EIGHT])
def test_numpy_s_patterns_are_torch_s(name: str) -> None:
    ours, given = dtype(name), difficult(name)
    np.testing.assert_array_equal(values_of(ours, patterns(name)), values(name))
    finite = np.isfinite(values(name))
    np.testing.assert_array_equal(stored_as(ours, values(name)[finite]), patterns(name)[finite])
    rounded = stored_as(ours, given)
    assert rounded.dtype == array_dtype(ours) == patterns(name).dtype
    assert same(name, rounded, nearest(name, given))
    assert same(name, stored_as(ours, given.astype(np.float64)), rounded)
    info = torch().finfo(theirs(name))
    assert limits_of(ours) == (info.eps, info.tiny, info.max)
    if name in EIGHT:
        form = eight_bits(ours)
        tie = np.float64(1 + 2.0 ** -(form.fraction + 1))  # a double is rounded once
        above, below = (values_of(ours, stored_as(ours, np.array([tie + sign * 2.0**-50])))[0] for sign in (1, -1))
        assert (above, below) == (1 + 2.0**-form.fraction, 1)
