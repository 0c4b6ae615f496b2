"""What is measured: the workload of the installed operators, and larger problems that fit no cache."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import msgspec

try:
    from aot_tune.spec import Operator, Problem, problem
    from aot_tune.spec.load_operators import bundled_templates, load_operator
except ImportError as error:
    raise SystemExit(f"benchmarks: aot_tune is not installed: {error}; run `pip install .` first") from None

__all__ = ["ROW_OPERATORS", "Task", "gemm_tasks", "installed_operator", "last_cache_bytes", "row_tasks"]

BEYOND = 2
"""A problem is beyond the caches if its compulsory bytes are more than this multiple of the last cache."""

ROW_OPERATORS: dict[str, tuple[tuple[int, tuple[str, ...]], ...]] = {
    "softmax": ((512, ()), (4096, ()), (32000, ())),
    "rms_norm": ((4096, ("weight",)), (4096, ("weight", "residual", "residual_out"))),
    "layer_norm": ((768, ("weight", "bias")), (4096, ("weight", "bias"))),
    "silu_mul": ((14336, ()),),
}
"""Widths and optional tensors of the problems that are added to the workload, with as many rows as needed."""


@dataclass(frozen=True)
class Task:
    """A problem of an operator, and what is known of it before it runs."""

    operator: str
    problem: Problem
    workload: bool
    flops: int
    bytes: int
    beyond: bool
    fused: Problem | None = None  # gemm: the problem of the workload, with its epilogue
    cold_copies: int = 1  # gemm: copies of b that are used in turn, so that none is still in a cache

    @property
    def text(self) -> str:
        """The problem for a table."""
        dims = " ".join(f"{k}={v}" for k, v in self.problem.dims.items())
        order = " b by columns" if self.problem.order.get("b") == (1, 0) else ""
        present = "".join(f" +{t}" for t in self.problem.present)
        return f"{dims}{order}{present}"

    def plain(self) -> dict[str, Any]:
        """The problem in the form of JSON."""
        return dict(msgspec.to_builtins(self.problem))


@functools.cache
def installed_operator(name: str) -> Operator:
    """The operator, as the installed package declares it."""
    return load_operator(bundled_templates() / name)


def last_cache_bytes() -> int:
    """Bytes of the last cache level."""
    from aot_tune.bench.devices.cpu import last_cache_bytes as known

    return int(known())


def gemm_tasks(cache: int) -> list[Task]:
    """The workload's products without their epilogues, each once."""
    operator = installed_operator("gemm")
    found: dict[str, Task] = {}
    for fused in operator.workload_for("cpu"):
        bare = problem(order=fused.order, strides=fused.strides, alignment=fused.alignment, **fused.dims)
        weights = 4 * bare.dims["K"] * bare.dims["N"]
        moved = operator.compulsory_bytes(bare)
        found.setdefault(
            bare.id,
            Task(
                operator="gemm",
                problem=bare,
                workload=True,
                flops=operator.flops.evaluate(operator.facts(bare)),
                bytes=moved,
                beyond=moved > BEYOND * cache,
                fused=fused if fused.id != bare.id else None,
                cold_copies=1 if weights > BEYOND * cache else math.ceil(BEYOND * cache / weights) + 1,
            ),
        )
    return list(found.values())


def row_tasks(name: str, cache: int) -> list[Task]:
    """The workload of a row operator, then the problems beyond the caches."""
    operator = installed_operator(name)
    tasks = [_row_task(operator, p, cache, True) for p in operator.workload_for("cpu")]
    for width, present in ROW_OPERATORS[name]:
        pair = [operator.compulsory_bytes(problem(R=r, D=width, present=present)) for r in (1, 2)]
        rows = math.ceil(2 * BEYOND * cache / (pair[1] - pair[0]) / 64) * 64
        tasks.append(_row_task(operator, problem(R=rows, D=width, present=present), cache, False))
    return tasks


def _row_task(operator: Operator, chosen: Problem, cache: int, workload: bool) -> Task:
    moved = operator.compulsory_bytes(chosen)
    return Task(
        operator=operator.name,
        problem=chosen,
        workload=workload,
        flops=operator.flops.evaluate(operator.facts(chosen)),
        bytes=moved,
        beyond=moved > BEYOND * cache,
    )
