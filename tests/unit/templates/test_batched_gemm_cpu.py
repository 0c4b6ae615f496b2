"""Batched products on the CPU: kernels made of gemm's blocks are right for any batch, stride and size they ask for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from bundled import OPERATORS
from cpu_calls import EPSILON, TARGETS, Edged, build_for_cpu, cpu_kernels, firsts, generic

from aot_tune.spec import Config, Kernel, Target, all_of

OP = OPERATORS["batched_gemm"]
FIRSTS = list(firsts(OP))
IDS = [f"{kernel.name}-{target.name}-{dtype}" for kernel, target, _, dtype in FIRSTS]
SHAPES = (
    (3, 5, 17, 16),
    (2, 70, 90, 333),
    (5, 1, 300, 100),
    (64, 8, 48, 33),
    (1, 33, 65, 600),
    (1, 600, 40, 1100),  # more rows than sums are kept of
    (1, 3, 1100, 40),
    (1, 200, 20, 70),
    (2, 1, 1, 1),
    (2, 7, 32, 20),  # rows that no tile has, of whole vectors
    (2, 13, 64, 9),
)
Strides = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def by_columns(kernel: str) -> bool:
    """Whether a kernel asks for a b whose columns are contiguous."""
    return kernel in ("skinny_nk", "skinny_pairs")


def strides_of(kernel: str, shape: Sequence[int], columns: bool | None = None) -> Strides:
    _, m, n, k = shape
    b = (n * k, 1, k) if (by_columns(kernel) if columns is None else columns) else (n * k, n, 1)
    return (m * k, k, 1), b, (m * n, n, 1)


def check(
    call: Callable[..., int], shape: Sequence[int], strides: Strides, missing: int = 1, dtype: str = "f32"
) -> int:
    """Call on random values, with an n-th of the workspace, and compare with numpy's product."""
    batches, m, n, k = shape
    values = np.random.default_rng(7)
    a = Edged((batches, m, k), strides[0], values, dtype)
    b = Edged((batches, k, n), strides[1], values, dtype)
    out = Edged((batches, m, n), strides[2], None, dtype)
    passed = [ctypes.byref(t.tensor) for t in (a, b, out)]
    code = call(*passed, ctypes.c_int32(0), missing=lambda size: size - size // missing)
    if code == 0:
        want = np.matmul(a.values, b.values)
        near = {"rtol": 1e-5 + EPSILON[dtype], "atol": (2e-6 + EPSILON[dtype] / 64) * np.sqrt(k)}
        np.testing.assert_allclose(out.values, want, **near, err_msg=f"{shape} {strides}")
        assert out.spare_is_untouched()
    return code


def everything(kernel: str, call: Callable[..., int], dtype: str = "f32") -> None:
    def right(shape: Sequence[int], strides: Strides) -> bool:
        if kernel == "rows_pairs" and (shape[3] % 2 or strides[0][2] != 1):
            return True  # it asks for others
        return check(call, shape, strides, dtype=dtype) == 0

    any_b = kernel == "generic" or kernel.startswith(("packed", "rows_pairs"))
    for shape in SHAPES:
        assert right(shape, strides_of(kernel, shape))
        if any_b:
            assert right(shape, strides_of(kernel, shape, columns=True))
    shape = (3, 6, 37, 30)
    a, b, out = strides_of(kernel, shape)
    for batch in (0, -7 * b[0], 3):  # one for all, the last one first, one that begins within another
        assert right(shape, (a, (batch, *b[1:]), out))
        assert right(shape, ((batch, *a[1:]), b, out))
    assert right(shape, (a, b, (6 * 41, 41, 1)))
    assert right(shape, (a, b, (37, 3 * 37, 1)))  # the batch within a row, as attention has its heads
    if not by_columns(kernel):
        assert right(shape, ((1, 3, 18), b, out))
    if any_b:
        assert right(shape, (a, (1, 3, 90), out))


@pytest.mark.parametrize(("kernel", "target", "config", "dtype"), FIRSTS, ids=IDS)
def test_kernels_are_right(kernel: Kernel, target: Target, config: Config, dtype: str, tmp_path: Path) -> None:
    call = build_for_cpu(tmp_path, OP, kernel, target, config, dtype=dtype)
    everything(kernel.name, call, dtype)
    if kernel.name in ("packed", "skinny_nk", "skinny_kn"):  # less workspace is for fewer threads, none is refused
        shape = (5, 8, 100, 100)
        assert check(call, shape, strides_of(kernel.name, shape), missing=2, dtype=dtype) == 0
        assert check(call, shape, strides_of(kernel.name, shape), missing=1 << 40, dtype=dtype) == 1


def test_the_generic_kernel_takes_everything(tmp_path: Path) -> None:
    call = build_for_cpu(tmp_path, OP, generic(OP), TARGETS[0], {}, dtype="f16")
    everything("generic", call, "f16")
    assert check(call, (2, 5, 7, 9), ((45, 1, 5), (-63, 7, -1), (80, 2, 11)), dtype="f16") == 0


def test_a_fault_is_noticed(tmp_path: Path) -> None:
    def change(source: str) -> str:
        old = "const int64_t batch = part / parts_of_each"
        assert source.count(old) == 1
        return source.replace(old, "const int64_t batch = part / (parts_of_each + 1)")

    kernel, target = OP.kernel("packed"), TARGETS[0]
    call = build_for_cpu(tmp_path, OP, kernel, target, next(kernel.configs(target.facts)), change)
    shape = (7, 23, 21, 300)
    with pytest.raises(AssertionError):
        check(call, shape, strides_of("packed", shape))


def test_every_kernel_is_for_some_of_the_workload_and_has_few_configs() -> None:
    for kernel in cpu_kernels(OP):
        guards = (*kernel.requires, *kernel.worthwhile)
        assert any(all_of(guards, OP.facts(p)) for p in OP.workload_for("cpu")), kernel.name
        for target in TARGETS:
            found = len(list(kernel.configs(target.facts)))
            assert found <= 6
            assert found > 0 or (kernel.name.endswith("pairs") and not target.facts["bf16_dot"])
