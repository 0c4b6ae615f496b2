"""CUTLASS kernels of gemm and batched_gemm: their configs, guards and arguments; tests/integration compiles them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from bundled import OPERATORS as BUNDLED

from aot_tune.compile.cuda.gpu_targets import TARGETS
from aot_tune.plan.options import effort_limit
from aot_tune.render import Renderer, candidate_for, requirements
from aot_tune.spec import Kernel, Operator, problem
from aot_tune.spec.expr import all_of
from aot_tune.spec.load_operators import bundled_templates

OPERATORS = {name: BUNDLED[name] for name in ("gemm", "batched_gemm")}
TARGET = {t.name: t for t in TARGETS}
HOPPER = TARGET["cuda-sm_90a"]
KERNELS = [(op, k) for op in OPERATORS.values() for k in op.kernels if k.name.startswith("cutlass")]
IDS = [f"{op.name}-{kernel.name}" for op, kernel in KERNELS]


@cache
def space(operator: str, kernel: str) -> list[dict[str, Any]]:
    """The configs that a kernel has on Hopper; gemm's take seconds to list."""
    return list(OPERATORS[operator].kernel(kernel).configs(HOPPER.facts))


def configs_of(op: Operator, kernel: Kernel, row: Any) -> list[dict[str, Any]]:
    return [c for c in space(op.name, kernel.name) if all(c[n] == v for n, v in row.items())]


def render(op: Operator, kernel: Kernel, row: Any, dtype: str) -> str:
    [config] = configs_of(op, kernel, row)
    candidate = candidate_for(op, kernel, config, HOPPER, None, {"T": dtype})
    return Renderer([bundled_templates()]).render(op, candidate, HOPPER).source


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_every_row_of_the_order_is_one_config_and_renders(op: Operator, kernel: Kernel) -> None:
    for row in kernel.order:
        assert len(configs_of(op, kernel, row)) == 1, row
    for dtypes in op.dtype_choices(kernel):
        for row in kernel.order[:2]:
            assert "GemmUniversal" in render(op, kernel, row, dtypes["T"])
    assert not list(kernel.configs(TARGET["cuda-sm_80"].facts))


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_what_is_launched_early_waits(op: Operator, kernel: Kernel) -> None:
    """CUTLASS's loading warps, by a macro before its headers; the warps that read the bias, or all at once."""
    for row in kernel.order:
        [config] = configs_of(op, kernel, row)
        source = render(op, kernel, row, op.dtype_choices(kernel)[0]["T"])
        before = source.partition("#include")[0]
        assert ("CUTLASS_ENABLE_GDC_FOR_SM90" in before) == config["EARLY"]
        assert ("ProgrammaticStreamSerialization" in source) == config["EARLY"]
        assert ("static_assert(cutlass::arch::IsGdcGloballyEnabled" in source) == config["EARLY"]
        assert "__ldg(" not in source  # which may go before a wait
        bias = source.partition("CUTLASS_DEVICE void begin()")[2].partition("load_bias(0);")[0]
        at_once = "char shared[];\n  wait_for_earlier_kernels();\n" in source
        assert at_once == ("HALVES" in config)
        reads = config["EARLY"] and config["EPILOGUE"] == "full" and not at_once
        assert ("wait_for_earlier_kernels();" in bias) == reads


def test_counters_are_cleared_right_before_a_launch_that_is_not_early() -> None:
    for op, kernel in KERNELS:
        assert not any(c["EARLY"] for c in space(op.name, kernel.name) if c["SPLITS"] != 1)


def test_a_build_compiles_at_most_60_of_them() -> None:
    """A default build, if all that follow another dtype were worth a try; each takes most of a minute."""
    count = 0
    for op, kernel in KERNELS:
        size, limit = len(space(op.name, kernel.name)), effort_limit("default", len(kernel.order))
        count += min(size, limit or size) * len(op.dtype_choices(kernel))
    assert 40 < count <= 60


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_guards_are_what_tma_asks_for(op: Operator, kernel: Kernel) -> None:
    dtypes = op.dtype_choices(kernel)[0]
    config = space(op.name, kernel.name)[0]
    guards = requirements(op, candidate_for(op, kernel, config, HOPPER, None, dtypes))
    batch = {"B": 3} if op.name == "batched_gemm" else {}
    lead = (0,) if batch else ()
    axis = len(lead)
    columns = {"b": (*lead, axis + 1, axis)}
    usual = columns if config["B"] == "nk" else {}
    math = {"math": "tf32"} if dtypes["T"] == "f32" else {}

    def allowed(**facts: Any) -> bool:
        given: dict[str, Any] = {"M": 128, "N": 64, "K": 32, "order": usual, "attributes": math, "dtypes": dtypes}
        return all_of(guards, op.facts(problem(**batch | given | facts)))

    def strides(tensor: str, **changed: int) -> dict[str, Any]:
        rows, row = {"a": (128, 32), "b": (64, 32) if usual else (32, 64), "out": (128, 64)}[tensor]
        row = changed.get("row", row)
        one = (1, row) if tensor == "b" and usual else (row, 1)
        step = (changed.get("step", rows * 1000),) if batch else ()
        order = {} if tensor == "b" else usual
        return {"strides": {tensor: (*step, *one)}, "order": order}

    assert allowed()
    assert allowed(M=77)
    assert not allowed(order={} if usual else columns)
    assert not allowed(order=usual | {"a": (*lead, axis + 1, axis)})
    assert not allowed(N=60)
    assert not allowed(K=36)
    for tensor in ("a", "b", "out"):
        assert not allowed(alignment={tensor: 8})
        assert allowed(**strides(tensor, row=72))
        assert not allowed(**strides(tensor, row=68))
        assert not allowed(**strides(tensor, row=0))
        if batch:
            assert allowed(**strides(tensor, row=3 * 72, step=72))  # the rows of one between those of others
            assert not allowed(**strides(tensor, step=128 * 1000 + 4))
            assert not allowed(**strides(tensor, step=0))
    if batch:
        assert not allowed(B=65536)


def test_products_by_halves_are_for_large_tf32_alone() -> None:
    """Of the workload those of 1024 rows and more: below, making halves costs more than f16 saves."""
    op = OPERATORS["gemm"]
    kernel = op.kernel("cutlass_tf32_halves")
    for math, taken in (("ieee", False), ("tf32", True)):
        call = problem(M=512, N=512, K=512, dtypes={"T": "f32"}, order={"b": (1, 0)}, attributes={"math": math})
        assert all_of(kernel.requires, op.facts(call)) == taken
    calls = [p for p in op.workload_for("cuda") if p.attributes.get("math") == "tf32"]
    worth = {p.dims["M"] for p in calls if all_of(kernel.worthwhile, op.facts(p))}
    assert worth == {1024, 4096}
    assert {p.dims["M"] for p in calls} == {1, 16, 64, 256} | worth
