"""Products on the CPU: kernels are right for any dtype, stride, size and epilogue that they ask for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from cpu_calls import EPSILON, TARGETS, Edged, build_for_cpu, cpu_kernels, firsts, generic
from places import SHARED

from aot_tune.compile.cxx import CxxToolchain
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import Config, Kernel, Target, all_of
from aot_tune.spec.load_operators import bundled_templates

OP = OPERATORS["gemm"]
ACTIVATIONS = OP.attributes[0].choices
FIRSTS = list(firsts(OP))
IDS = [f"{kernel.name}-{target.name}-{dtype}" for kernel, target, _, dtype in FIRSTS]
SHAPES = (
    (5, 17, 16),
    (70, 90, 333),
    (1, 300, 101),
    (8, 48, 33),
    (33, 65, 2600),
    (3, 1100, 40),
    (260, 20, 71),
    (1, 1, 1),
)
TALL = (1700, 17, 2100)  # more rows than sums are kept of

Call = Callable[..., int]


def by_columns(kernel: Kernel) -> bool:
    """Whether a kernel asks for a b whose columns are contiguous."""
    return kernel.name.startswith(("skinny_nk", "skinny_pairs", "dot"))


def any_b(kernel: Kernel) -> bool:
    """Whether a kernel takes both."""
    return kernel.generic or kernel.name.startswith(("packed", "rows_pairs"))


def takes(kernel: Kernel, shape: Sequence[int], a: Sequence[int]) -> bool:
    """Whether a kernel asks for no other K and strides of a than these."""
    return kernel.name != "rows_pairs" or (shape[2] % 2 == 0 and (not a or a[1] == 1))


def check(
    call: Call,
    shape: Sequence[int],
    dtype: str,
    a: Sequence[int] = (),
    b: Sequence[int] = (),
    out: Sequence[int] = (),
    *,
    activation: str = "none",
    extra: dict[str, Sequence[int]] | None = None,
    left: float = 1.0,
    special: bool = False,
) -> int:
    """Call on random values, with a share of the workspace, and compare with the reference."""
    m, n, k = shape
    values = np.random.default_rng(7)
    given = {"a": Edged((m, k), a or (k, 1), values, dtype), "b": Edged((k, n), b or (n, 1), values, dtype)}
    extents: dict[str, tuple[int, ...]] = {"bias": (n,), "residual": (m, n)}
    given |= {name: Edged(extents[name], s, values, dtype) for name, s in (extra or {}).items()}
    if special:
        given["a"].put(0.0, np.inf), given["a"].put(0.5, np.nan), given["b"].put(0.3, -np.inf)
    made = Edged((m, n), out or (n, 1), None, dtype)
    passed: list[Any] = [ctypes.byref(given[t.name].tensor) if t.name in given else None for t in OP.inputs]
    chosen = (ctypes.c_int32(ACTIVATIONS.index(activation)), ctypes.c_int32(0))
    code = call(*passed, ctypes.byref(made.tensor), *chosen, missing=lambda size: size - int(size * left))
    if code == 0:
        logical = {t.name: given[t.name].values if t.name in given else None for t in OP.inputs}
        with np.errstate(all="ignore"):
            want = OP.reference(np, SimpleNamespace(**logical, activation=activation, math="ieee"))["out"]
        epsilon = EPSILON[dtype]
        near = {"rtol": 2e-5 + epsilon, "atol": (4e-6 + epsilon / 64) * np.sqrt(k)}
        np.testing.assert_allclose(made.values, want, **near, err_msg=f"{shape} {a} {b} {out}")
        assert made.spare_is_untouched()
    return code


def everything(kernel: Kernel, call: Call, dtype: str) -> None:
    """Shapes, layouts and epilogues that a kernel must be right on."""

    def right(shape: Sequence[int], a: Sequence[int] = (), **given: Any) -> bool:
        return not takes(kernel, shape, a) or check(call, shape, dtype, a, **given) == 0

    columns = by_columns(kernel)
    for shape in SHAPES if dtype == "f32" else (*SHAPES, TALL):
        _, n, k = shape
        assert right(shape, b=(1, k) if columns else (n, 1))
        if any_b(kernel):
            assert right(shape, b=(1, k))
    shape = (6, 37, 30)
    b = (1, 31) if columns else (41, 1)
    assert right(shape, (31, 1), b=b, out=(39, 1))
    assert right(shape, (-31, 1), b=b, out=(39, 1))
    assert right(shape, (0, 1), b=b)
    assert right(shape, b=(1, 0) if columns else (0, 1))
    assert right(shape, b=b, special=True)
    if not columns:
        assert right(shape, (1, 7), b=b)
        assert right((40, 37, 30), (-2, 83), b=b)
    if any_b(kernel):
        assert right(shape, b=(-3, 90))
        assert right((20, 37, 30), b=(37 * 5, 5))
    if kernel.generic:
        assert right(shape, out=(2, 12))
    extra = {"bias": (1,), "residual": (37, 1)}
    for activation in ACTIVATIONS:
        assert right(shape, b=b, activation=activation, extra=extra)
    spread = {"bias": (3,), "residual": (2, -12)}
    assert right((6, 37, 2200), b=(1, 2200) if columns else (37, 1), extra=spread)


def takes_less_workspace(kernel: Kernel, call: Call, dtype: str) -> None:
    """Less is for fewer threads, and none is refused; threads of rows in pairs have nothing of their own."""
    shape, b = (300, 40, 2100), (1, 2100) if by_columns(kernel) else (40, 1)
    assert check(call, shape, dtype, b=b, left=1.0 if kernel.name == "rows_pairs" else 0.7) == 0
    assert check(call, shape, dtype, b=b, left=0.0) == 1


def pairs_alone_take_subnormal_values_for_zero(kernel: Kernel, call: Call) -> None:
    values = np.random.default_rng(1)
    a, b = Edged((1, 2), (2, 1), values, "bf16"), Edged((2, 1), (1, 1), values, "bf16")
    out = Edged((1, 1), (1, 1), None, "bf16")
    a.put(0.0, 2.0**-130)
    a.put(0.5, 0.0)
    b.put(0.0, 1.0)
    passed = [ctypes.byref(t.tensor) for t in (a, b)]
    assert call(*passed, None, None, ctypes.byref(out.tensor), ctypes.c_int32(0), ctypes.c_int32(0)) == 0
    assert out.values[0, 0] == (0.0 if kernel.name.endswith(("pairs", "tiles")) else 2.0**-130)


@pytest.mark.parametrize(("kernel", "target", "config", "dtype"), FIRSTS, ids=IDS)
def test_kernels_are_right(kernel: Kernel, target: Target, config: Config, dtype: str, tmp_path: Path) -> None:
    call = build_for_cpu(tmp_path, OP, kernel, target, config, dtype=dtype)
    everything(kernel, call, dtype)
    takes_less_workspace(kernel, call, dtype)
    if dtype == "bf16" and not kernel.name.startswith("rows"):
        pairs_alone_take_subnormal_values_for_zero(kernel, call)


def test_the_generic_kernel_takes_everything(tmp_path: Path) -> None:
    kernel = generic(OP)
    everything(kernel, build_for_cpu(tmp_path, OP, kernel, TARGETS[0], {}, dtype="bf16"), "bf16")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("first ? vload<VW>(c + t) : ", "!first ? vload<VW>(c + t) : "),
        ("(ic - first_row + i) * grid.width", "i * grid.width"),
    ],
)
def test_a_fault_is_noticed(old: str, new: str, tmp_path: Path) -> None:
    kernel, target = OP.kernel("packed"), TARGETS[-1]
    call = build_for_cpu(tmp_path, OP, kernel, target, next(kernel.configs(target.facts)), once(old, new), "bf16")
    with pytest.raises(AssertionError):
        check(call, TALL, "bf16")


def once(old: str, new: str) -> Callable[[str], str]:
    """A change of a source, which has that text once."""

    def change(source: str) -> str:
        assert source.count(old) == 1
        return source.replace(old, new)

    return change


def test_lanes_are_shuffled_without_the_builtin_of_newer_compilers(tmp_path: Path) -> None:
    target = next(t for t in CxxToolchain().targets() if t.name == "cpu-x86-64-v4")
    kernel, older = OP.kernel("dot"), once("__GNUC__ >= 12", "__GNUC__ >= 99")
    config = next(kernel.configs(target.facts))
    everything(kernel, build_for_cpu(tmp_path, OP, kernel, target, config, older, "bf16"), "bf16")


def test_every_kernel_is_for_some_of_the_workload() -> None:
    for kernel in cpu_kernels(OP):
        guards = (*kernel.requires, *kernel.worthwhile)
        assert any(all_of(guards, OP.facts(p)) for p in OP.workload_for("cpu")), kernel.name


AMX = CxxToolchain().targets()[-1]
TILES = OP.kernel("packed_tiles")


def tiles_on_host(folder: Path, change: Callable[[str], str] = lambda source: source) -> Call:
    """Code for tiles whose instructions are functions that do what their manual says; the rest is AVX-512's."""
    more = ("-mno-amx-tile", f'-DAOT_TUNE_TILES="{SHARED / "tiles_on_host.h"}"')
    config = next(TILES.configs(AMX.facts))
    return build_for_cpu(folder, OP, TILES, AMX, config, change, "bf16", more, on="cpu-x86-64-v4-bf16")


def test_tiles_are_right_as_far_as_their_instructions_do_what_their_manual_says(tmp_path: Path) -> None:
    everything(TILES, tiles_on_host(tmp_path), "bf16")


def test_a_fault_of_tiles_is_noticed(tmp_path: Path) -> None:
    call = tiles_on_host(tmp_path, once("AOT_TUNE_TILE_DOT(2, 5, 6)", "AOT_TUNE_TILE_DOT(2, 4, 6)"))
    with pytest.raises(AssertionError):
        check(call, (70, 90, 333), "bf16")


def test_tiles_compile_for_cpus_that_have_them(tmp_path: Path) -> None:
    candidate = candidate_for(OP, TILES, next(TILES.configs(AMX.facts)), AMX, None, {"T": "bf16"})
    source = Renderer([bundled_templates()]).render(OP, candidate, AMX).source
    made = CxxToolchain().compile(source, AMX, tmp_path / "kernel.o", timeout=120)
    assert made.status == "ok", made.log
    assert "warning" not in made.log
