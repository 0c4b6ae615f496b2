"""Attention's kernels for the CPU: right for any sizes, masks, groups of heads and layouts that they ask for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from cpu_calls import EPSILON, TARGETS, Edged, build_for_cpu, cpu_kernels, firsts, generic

from aot_tune.spec import Config, Kernel, Target, all_of

OP = OPERATORS["flash_attention"]
CAUSAL = OP.attributes[0].choices
FIRSTS = list(firsts(OP))
IDS = [f"{kernel.name}-{target.name}-{dtype}" for kernel, target, _, dtype in FIRSTS]


WANTED: dict[str, Any] = {}
"""What calls are to give: those of one kernel are those of the next."""


def wanted(tensors: Mapping[str, Edged], causal: str, scale: float) -> Any:
    """The reference's result."""
    given = {t.name: tensors[t.name].values if t.name in tensors else None for t in OP.inputs}
    given["mask"] = given["mask"] if given["mask"] is None else given["mask"] != 0
    with np.errstate(all="ignore"):
        return OP.reference(np, SimpleNamespace(**given, scale=float(np.float32(scale)), causal=causal))["out"]


def check(
    call: Callable[..., int],
    shape: Sequence[int],
    causal: str = "none",
    *,
    scale: float = 0.0,
    strides: Mapping[str, Sequence[int]] | None = None,
    special: bool = False,
    missing: int = 1,
    dtype: str = "f32",
    present: Sequence[str] = (),
) -> int:
    """Call on random values, with an n-th of the workspace, and compare with the reference.

    A mask and a bias, where they are present, hide the same keys from some queries, and from one all.
    """
    dims = dict(zip(OP.dims, shape, strict=True))
    values = np.random.default_rng(5)
    tensors: dict[str, Edged] = {}
    for tensor in OP.tensors:
        if tensor.optional and tensor.name not in present:
            continue
        extents = tuple(e.evaluate(dims) for e in tensor.shape)
        dense = tuple(int(np.prod(extents[axis + 1 :])) for axis in range(4))
        layout = (strides or {}).get(tensor.name, dense)
        stored = "bool" if tensor.name == "mask" else dtype
        tensors[tensor.name] = Edged(extents, layout, None if tensor.output else values, stored)
    for name in present:
        hidden = 0.0 if name == "mask" else -np.inf
        tensors[name].write((..., slice(5, None, 9)), hidden)
        tensors[name].write((0, -1, slice(2, 3)), hidden)
    if special:
        tensors["q"].put(0.0, np.inf)
        tensors["q"].put(0.5, np.nan)
    passed = [ctypes.byref(tensors[t.name].tensor) if t.name in tensors else None for t in OP.tensors]
    chosen = (ctypes.c_float(scale), ctypes.c_int32(CAUSAL.index(causal)))
    code = call(*passed, *chosen, missing=lambda size: size - size // missing)
    if code == 0:
        key = repr((shape, causal, scale, strides, special, dtype, present))
        if key not in WANTED:
            WANTED[key] = wanted(tensors, causal, scale)
        want = WANTED[key]
        near = {"rtol": 2e-5 + EPSILON[dtype], "atol": 1e-5 + EPSILON[dtype] / 64}
        np.testing.assert_allclose(tensors["out"].values, want, **near, err_msg=f"{shape} {causal} {strides} {present}")
        assert tensors["out"].spare_is_untouched(), (shape, causal)
    return code


def by_tokens(heads: int, tokens: int, width: int) -> tuple[int, ...]:
    """Heads beside each other in a token's row, as projections leave them."""
    return tokens * heads * width, width, heads * width, 1


def with_masks(right: Callable[..., bool]) -> None:
    """Masks and biases: for each batch, for each query, for each head and query, of any strides; both; causal ones."""
    for shape in ((2, 3, 2, 13, 37, 29), (2, 8, 2, 5, 1030, 80), (1, 6, 2, 150, 400, 64)):
        _, h, _, m, n, _ = shape
        for layout in ((n, 0, 0, 1), (0, 0, n + 3, 1), (m * n, 0, n, 1), (h * m * n, m * n, n, 1), (0, m * n, 1, m)):
            assert right(shape, present=["mask"], strides={"mask": layout})
            assert right(shape, "lower_right", present=["bias"], strides={"bias": layout})
        both = {"mask": (n, 0, 0, 1), "bias": (0, -m * n, n, 1)}
        assert right(shape, "upper_left", present=["bias", "mask"], strides=both)
    assert right((1, 1, 1, 300, 40, 17), "lower_right", present=["mask"])
    assert right((1, 1, 1, 40, 700, 8), special=True, present=["mask"])
    assert right((1, 1, 1, 2, 5, 300), present=["bias", "mask"])


def everything(kernel: str, call: Callable[..., int], dtype: str = "f32") -> None:
    """Shapes, masks and layouts that a kernel must be right on."""

    def right(shape: Sequence[int], causal: str = "none", **given: Any) -> bool:
        return check(call, shape, causal, dtype=dtype, **given) == 0

    for causal in CAUSAL:
        for shape in (
            (2, 3, 2, 13, 37, 29),
            (1, 2, 1, 70, 67, 40),
            (1, 8, 2, 5, 1030, 80),  # few rows that share the keys among them
            (1, 6, 2, 150, 400, 64),
            (1, 1, 1, 300, 40, 17),
            (1, 2, 5, 9, 8, 16),  # more heads of keys than of queries
        ):
            assert right(shape, causal)
        assert right((1, 1, 1, 3, 130, 65), causal, scale=0.7)
        assert right((1, 1, 1, 1, 3000, 48), causal)
    with_masks(right)
    assert right((1, 1, 1, 1, 1, 1))
    assert right((1, 1, 1, 2, 5, 300))
    assert right((1, 2, 1, 9, 9, 8), special=True)
    assert right((1, 1, 1, 40, 700, 8), special=True)
    tokens = {
        "q": by_tokens(6, 50, 24),
        "k": by_tokens(3, 60, 24),
        "v": by_tokens(3, 60, 24),
        "out": by_tokens(6, 50, 24),
    }
    assert right((2, 6, 3, 50, 60, 24), "lower_right", strides=tokens)
    shape = (2, 3, 2, 5, 7, 8)
    for layout in ((1, 3, 90, 360), (0, 0, 8, 1), (4000, -300, 30, 2), (600, 200, -20, 1)):
        assert right(shape, strides={"q": layout})
        if layout[3] == 1:
            assert right(shape, "upper_left", strides={"k": layout, "v": layout})
        elif kernel in ("blocks", "generic"):
            assert right(shape, "upper_left", strides={"k": layout})
    assert right(shape, strides={"out": (1000, 2 * 120, 12, 1)})


@pytest.mark.parametrize(("kernel", "target", "config", "dtype"), FIRSTS, ids=IDS)
def test_kernels_are_right(kernel: Kernel, target: Target, config: Config, dtype: str, tmp_path: Path) -> None:
    call = build_for_cpu(tmp_path, OP, kernel, target, config, dtype=dtype)
    everything(kernel.name, call, dtype)
    shape = (1, 1, 1, 2, 3000, 64)  # less workspace is for fewer threads, and none is refused
    assert [check(call, shape, missing=n, dtype=dtype) for n in (1, 2, 1 << 40)] == [0, 0, 1]


def test_the_generic_kernel_takes_everything(tmp_path: Path) -> None:
    everything("generic", build_for_cpu(tmp_path, OP, generic(OP), TARGETS[0], {}, dtype="bf16"), "bf16")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("blocks", "seen[v0 * VW + VW - 1] == 0", "seen[v0 * VW] == 0"),
        ("few_rows", "call.masked() && total == 0.0f", "false"),
        ("few_rows", "sums.total[r] * fade[r] + sum", "sums.total[r] + sum"),
    ],
)
def test_a_fault_is_noticed(name: str, old: str, new: str, tmp_path: Path) -> None:
    def change(source: str) -> str:
        assert source.count(old) == 1
        return source.replace(old, new)

    kernel, target = OP.kernel(name), TARGETS[-1]
    call = build_for_cpu(tmp_path, OP, kernel, target, next(kernel.configs(target.facts)), change)
    with pytest.raises(AssertionError):
        everything(name, call)


def test_every_kernel_is_for_some_of_the_workload_and_has_few_configs() -> None:
    for kernel in cpu_kernels(OP):
        guards = (*kernel.requires, *kernel.worthwhile)
        assert any(all_of(guards, OP.facts(p)) for p in OP.workload_for("cpu")), kernel.name
        for target in TARGETS:
            assert 1 <= len(list(kernel.configs(target.facts))) <= 6
