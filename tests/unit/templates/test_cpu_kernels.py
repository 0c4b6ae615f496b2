"""Products and attention on the CPU: kernels are right for any dtype, strides, size and epilogue that they ask for."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from bundled import OPERATORS, RENDERER
from cpu_calls import EPSILON, TARGETS, Edged, build_for_cpu, cpu_kernels, firsts, generic

from aot_tune.compile.cxx import CxxToolchain
from aot_tune.render import candidate_for
from aot_tune.spec import Config, Kernel, Operator, Problem, Target, all_of, problem
from aot_tune.spec.kernel import may_serve, requires_of

Launch = Callable[..., int]
NAMES = ("gemm", "batched_gemm", "flash_attention")
FIRSTS = [(OPERATORS[name], *one) for name in NAMES for one in firsts(OPERATORS[name])]
IDS = [f"{op.name}-{kernel.name}-{target.name}-{dtype}" for op, kernel, target, _, dtype in FIRSTS]


# -- calls: each kernel gets those that its guards let through ---------------------------------------------------------


def products() -> Iterator[Problem]:
    """Of all sizes beside tiles and vectors, factors in both orders; layouts; epilogues."""
    for m, n, k in (
        (5, 17, 16),
        (70, 90, 333),
        (1, 300, 101),
        (8, 48, 33),
        (33, 65, 2600),
        (3, 1100, 40),
        (260, 20, 71),
        (1, 1, 1),
        (1700, 17, 2100),  # more rows than sums are kept of
    ):
        for order in ({}, {"b": (1, 0)}):
            yield problem(M=m, N=n, K=k, order=order)
    for order in ({}, {"b": (1, 0)}):
        column = (1, 31) if order else (41, 1)
        for a, b, out in (
            ((31, 1), column, (39, 1)),
            ((-31, 1), column, (39, 1)),
            ((0, 1), column, (37, 1)),
            ((1, 7), column, (37, 1)),
            ((30, 1), (1, 0) if order else (0, 1), (37, 1)),
            ((30, 1), (-3, 90), (37, 1)),
            ((30, 1), column, (2, 12)),
        ):
            yield problem(M=6, N=37, K=30, strides={"a": a, "b": b, "out": out})
        yield problem(M=40, N=37, K=30, strides={"a": (-2, 83)}, order=order)
        for activation in ("relu", "gelu", "gelu_tanh", "silu", "none"):
            given: Any = {"present": ("bias", "residual"), "order": order}
            given["attributes"] = {} if activation == "none" else {"activation": activation}
            yield problem(M=6, N=37, K=30, **given)
        spread = {"bias": (3,), "residual": (2, -12)}
        yield problem(M=6, N=37, K=2200, present=tuple(spread), strides=spread, order=order)


def batches() -> Iterator[Problem]:
    for b, m, n, k in (
        (3, 5, 17, 16),
        (2, 70, 90, 333),
        (5, 1, 300, 100),
        (64, 8, 48, 33),
        (1, 600, 40, 1100),  # more rows than sums are kept of
        (1, 3, 1100, 40),
        (2, 1, 1, 1),
        (2, 7, 32, 20),  # rows that no tile has, of whole vectors
        (2, 13, 64, 9),
    ):
        for order in ({}, {"b": (0, 2, 1)}):
            yield problem(B=b, M=m, N=n, K=k, order=order)
    for of_b in ((37, 1), (1, 30)):
        for first, second in itertools.product((0, -7 * 37 * 30, 3), ("a", "b")):  # one for all, the last one first
            strides = {"a": (180, 30, 1), "b": (37 * 30, *of_b)}
            yield problem(B=3, M=6, N=37, K=30, strides=strides | {second: (first, *strides[second][1:])})
        for out in ((6 * 41, 41, 1), (37, 3 * 37, 1)):  # the batch within a row, as attention has its heads
            yield problem(B=3, M=6, N=37, K=30, strides={"b": (37 * 30, *of_b), "out": out})
        yield problem(B=3, M=6, N=37, K=30, strides={"a": (1, 3, 18), "b": (37 * 30, *of_b)})
    yield problem(B=2, M=5, N=7, K=9, strides={"a": (45, 1, 5), "b": (-63, 7, -1), "out": (80, 2, 11)})


def attention() -> Iterator[Problem]:
    """Every mask, of the causal ones too; groups of heads; heads between tokens; masks of any strides."""

    def of(shape: Sequence[int], causal: str = "none", **given: Any) -> Problem:
        attributes = {} if causal == "none" else {"causal": causal}
        dims: dict[str, Any] = dict(zip(("B", "H", "HK", "M", "N", "D"), shape, strict=True))
        return problem(**dims, attributes=attributes, **given)

    for causal in ("none", "upper_left", "lower_right"):
        for shape in (
            (2, 3, 2, 13, 37, 29),
            (1, 8, 2, 5, 1030, 80),  # few rows that share the keys among them
            (1, 6, 2, 150, 400, 64),
            (1, 1, 1, 300, 40, 17),
            (1, 2, 5, 9, 8, 16),  # more heads of keys than of queries
            (1, 1, 1, 3, 130, 65),
            (1, 1, 1, 1, 3000, 48),
        ):
            yield of(shape, causal)
    for shape in ((2, 3, 2, 13, 37, 29), (2, 8, 2, 5, 1030, 80), (1, 6, 2, 150, 400, 64)):
        _, h, _, m, n, _ = shape
        for layout in ((n, 0, 0, 1), (0, 0, n + 3, 1), (m * n, 0, n, 1), (h * m * n, m * n, n, 1), (0, m * n, 1, m)):
            yield of(shape, present=("mask",), strides={"mask": layout})
            yield of(shape, "lower_right", present=("bias",), strides={"bias": layout})
        both = {"mask": (n, 0, 0, 1), "bias": (0, -m * n, n, 1)}
        yield of(shape, "upper_left", present=("bias", "mask"), strides=both)
    yield of((1, 1, 1, 300, 40, 17), "lower_right", present=("mask",))
    yield of((1, 1, 1, 2, 5, 300), present=("bias", "mask"))
    yield of((1, 1, 1, 1, 1, 1))
    tokens = {
        t: (rows * heads * 24, 24, heads * 24, 1) for t, heads, rows in zip("qkv", (6, 3, 3), (50, 60, 60), strict=True)
    }
    yield of((2, 6, 3, 50, 60, 24), "lower_right", strides=tokens | {"out": tokens["q"]})
    for layout in ((1, 3, 90, 360), (0, 0, 8, 1), (4000, -300, 30, 2), (600, 200, -20, 1)):
        yield of((2, 3, 2, 5, 7, 8), strides={"q": layout})
        yield of((2, 3, 2, 5, 7, 8), "upper_left", strides={"k": layout, "v": layout})
    yield of((2, 3, 2, 5, 7, 8), strides={"out": (1000, 2 * 120, 12, 1)})


CALLS = {"gemm": [*products()], "batched_gemm": [*batches()], "flash_attention": [*attention()]}


def taken(op: Operator, kernel: Kernel, config: Config, dtype: str) -> list[Problem]:
    found = [msgspec.structs.replace(one, dtypes={"T": dtype}) for one in CALLS[op.name]]
    return [one for one in found if all_of((*op.legal, *requires_of(kernel, config)), op.facts(one))]


# -- their truth ------------------------------------------------------------------------------------------------------


def scalars_of(op: Operator, one: Problem) -> dict[str, float]:
    """Numbers of a call: their defaults, or of some shapes other values."""
    given = {s.name: s.default if one.dims["M"] % 2 else s.other for s in op.scalars}
    return {name: float(np.float32(value or 0)) for name, value in given.items()}


def wanted(op: Operator, one: Problem, tensors: dict[str, Edged]) -> Any:
    """What the operator's definition says."""
    values: dict[str, Any] = {t.name: tensors[t.name].values if t.name in tensors else None for t in op.inputs}
    if values.get("mask") is not None:
        values["mask"] = values["mask"] != 0
    chosen = {a.name: one.attributes.get(a.name, a.choices[0]) for a in op.attributes}
    call = SimpleNamespace(**values, **chosen, **scalars_of(op, one))
    with np.errstate(all="ignore"):
        return op.reference(np, call)["out"]


def check(op: Operator, launch: Launch, one: Problem, *, left: float = 1.0, special: bool = False) -> int:
    """Call on random values, with a share of the workspace, and compare; masks hide keys, from one query all.

    `special`: with infinities and NaN in the first input.
    """
    dtype, draws, tensors = one.dtypes["T"], np.random.default_rng(7), dict[str, Edged]()
    for tensor in op.tensors:
        if op.is_present(one, tensor):
            stored = "bool" if tensor.name == "mask" else dtype
            shape, strides = op.shape(one, tensor), op.strides(one, tensor)
            tensors[tensor.name] = Edged(shape, strides, None if tensor.output else draws, stored)
    for name in one.present if op.name == "flash_attention" else ():
        for index in ((..., slice(5, None, 9)), (0, -1, slice(2, 3))):
            tensors[name].write(index, 0.0 if name == "mask" else -np.inf)
    if special:
        tensors[op.inputs[0].name].put(0.0, np.inf)
        tensors[op.inputs[0].name].put(0.5, np.nan)
    chosen = [ctypes.c_float(value) for value in scalars_of(op, one).values()]
    given = [a.choices.index(one.attributes.get(a.name, a.choices[0])) for a in op.attributes]
    passed = [ctypes.byref(tensors[t.name].tensor) if t.name in tensors else None for t in op.tensors]
    code = launch(*passed, *chosen, *map(ctypes.c_int32, given), missing=lambda size: size - int(size * left))
    if code == 0:
        depth = one.dims.get("K", 4)
        near = {"rtol": 2e-5 + EPSILON[dtype], "atol": (5e-6 + EPSILON[dtype] / 64) * np.sqrt(depth)}
        np.testing.assert_allclose(tensors["out"].values, wanted(op, one, tensors), **near, err_msg=one.id)
        assert tensors["out"].spare_is_untouched(), one.id
    return code


def everything(op: Operator, kernel: Kernel, config: Config, launch: Launch, dtype: str) -> None:
    calls = taken(op, kernel, config, dtype)
    assert len(calls) > 10
    for one in calls:
        assert check(op, launch, one) == 0, one.id
    assert check(op, launch, calls[0], special=True) == 0


@pytest.mark.parametrize(("op", "kernel", "target", "config", "dtype"), FIRSTS, ids=IDS)
def test_kernels_are_right(
    op: Operator, kernel: Kernel, target: Target, config: Config, dtype: str, tmp_path: Path
) -> None:
    """With less workspace too, which is for fewer threads; without any a call is refused, or right."""
    launch = build_for_cpu(tmp_path, op, kernel, target, config, dtype=dtype)
    everything(op, kernel, config, launch, dtype)
    largest = max(taken(op, kernel, config, dtype), key=lambda one: one.dims.get("K", 1) * one.dims["N"])
    assert check(op, launch, largest, left=0.0 if kernel.name == "rows_pairs" else 0.7) in (0, 1)
    assert check(op, launch, largest, left=0.0) in (0, 1)


@pytest.mark.parametrize(("name", "dtype"), [("gemm", "bf16"), ("batched_gemm", "f16"), ("flash_attention", "bf16")])
def test_generic_kernels_take_everything(name: str, dtype: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    launch = build_for_cpu(tmp_path, op, generic(op), TARGETS[0], {}, dtype=dtype)
    assert len(taken(op, generic(op), {}, dtype)) == len(CALLS[name])
    everything(op, generic(op), {}, launch, dtype)


def test_subnormal_bf16_count_but_for_instructions_of_pairs(tmp_path: Path) -> None:
    op, target = OPERATORS["gemm"], TARGETS[-1]
    kernels = [op.kernel("dot"), *([op.kernel("dot_pairs")] if target.facts["bf16_dot"] else [])]
    for kernel in kernels:
        (tmp_path / kernel.name).mkdir()
        config = next(kernel.configs(target.facts))
        launch = build_for_cpu(tmp_path / kernel.name, op, kernel, target, config, dtype="bf16")
        a, b, out = (Edged(s, (s[1], 1), np.random.default_rng(1), "bf16") for s in ((1, 2), (2, 1), (1, 1)))
        a.put(0.0, 2.0**-130)
        a.put(0.5, 0.0)
        b.put(0.0, 1.0)
        passed = [ctypes.byref(a.tensor), ctypes.byref(b.tensor), None, None, ctypes.byref(out.tensor)]
        assert launch(*passed, ctypes.c_int32(0), ctypes.c_int32(0)) == 0
        assert out.values[0, 0] == (0.0 if kernel.name == "dot_pairs" else 2.0**-130)


def test_lanes_are_shuffled_without_the_builtin_of_newer_compilers(tmp_path: Path) -> None:
    op, target = OPERATORS["gemm"], next(t for t in CxxToolchain().targets() if t.name == "cpu-x86-64-v4")
    kernel = op.kernel("dot")

    def older(source: str) -> str:
        assert "__GNUC__ >= 12" in source
        return source.replace("__GNUC__ >= 12", "__GNUC__ >= 99")

    config = next(kernel.configs(target.facts))
    everything(op, kernel, config, build_for_cpu(tmp_path, op, kernel, target, config, older, "bf16"), "bf16")


def test_tiles_compile_for_cpus_that_have_them(tmp_path: Path) -> None:
    op, target = OPERATORS["gemm"], CxxToolchain().targets()[-1]
    kernel = op.kernel("packed_tiles")
    candidate = candidate_for(op, kernel, next(kernel.configs(target.facts)), target, None, {"T": "bf16"})
    source = RENDERER.render(op, candidate, target).source
    made = CxxToolchain().compile(source, target, tmp_path / "kernel.o", timeout=120)
    assert made.status == "ok", made.log
    assert "warning" not in made.log


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_is_for_some_of_the_workload_and_has_configs(name: str) -> None:
    op = OPERATORS[name]
    facts = [op.facts(one) for one in op.workload_for("cpu")]
    for kernel in cpu_kernels(op):
        assert any(may_serve(kernel, one, worthwhile=True) for one in facts), kernel.name
        for target in TARGETS:
            needs = kernel.name.endswith("tiles") or (kernel.name.endswith("pairs") and not target.facts["bf16_dot"])
            assert needs or any(True for _ in kernel.configs(target.facts)), (kernel.name, target.name)
