"""What is measured on a GPU: the CUDA workload of the installed operators, and its products without epilogues."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import msgspec
from tasks import installed_operator

from aot_tune.spec import Operator, Problem, problem
from aot_tune.spec.load_operators import bundled_templates

__all__ = ["KINDS", "PRODUCTS", "ROWS", "Task", "chosen_to_compile", "mix", "tasks"]

PRODUCTS = ("gemm", "batched_gemm")
ROWS = ("softmax", "rms_norm", "layer_norm", "silu_mul")
KINDS = ("product", "fused", "rows")
LARGE, LARGER = 128 * 10**6, 512 * 10**6
"""A row problem of at least this many bytes is compared with a copy."""


@dataclass(frozen=True)
class Task:
    """A problem of an operator, and what is known of it before it runs.

    `kind` is `product` (no epilogue, against the vendor's product), `fused` (the workload's epilogue, against a
    framework's composition) or `rows`. `mode` is the dtype, for f32 products with the math mode. `bytes` are the
    compulsory bytes, each tensor once. `known` says whether this exact problem is in the tuned workload.
    """

    operator: str
    problem: Problem
    kind: str
    mode: str = ""
    group: str = ""
    bytes: int = 0
    flops: int = 0
    known: bool = False

    @property
    def text(self) -> str:
        """The problem for a table."""
        parts = [f"{k}={v}" for k, v in self.problem.dims.items()]
        parts += [f"+{t}" for t in self.problem.present]
        parts += [c for a, c in self.problem.attributes.items() if a != "math" and c != "none"]
        parts += ["strided"] if self.problem.strides else []
        return " ".join(parts)

    @property
    def key(self) -> str:
        """A text that is unique in a run."""
        return f"{self.operator} {self.kind} {self.problem.id}"

    def plain(self) -> dict[str, Any]:
        """The task in the form of JSON."""
        fields = {k: v for k, v in vars(self).items() if k != "problem"}
        return {**fields, "problem": msgspec.to_builtins(self.problem), "text": self.text, "key": self.key}

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Task:
        """The task that `plain` was made from."""
        fields = {k: v for k, v in plain.items() if k not in ("problem", "text", "key")}
        return Task(problem=msgspec.convert(plain["problem"], Problem), **fields)


def tasks(names: Sequence[str]) -> list[Task]:
    """All tasks of the named operators that the installed package has."""
    found: dict[str, Task] = {}
    for name in names:
        if not (bundled_templates() / name).is_dir():
            continue
        operator = installed_operator(name)
        workload = operator.workload_for("cuda")
        known = {p.id for p in workload}
        for entry in workload:
            for one in _variations(operator, entry, known) if name in PRODUCTS else [_rows(operator, entry)]:
                found.setdefault(one.key, one)
    return list(found.values())


def _variations(operator: Operator, entry: Problem, known: Set[str]) -> Iterable[Task]:
    """The product by itself, in each math mode of its dtype; and with the workload's epilogue, if it has one."""
    bare = {a: c for a, c in entry.attributes.items() if a == "math"}
    dtype = _dtype(operator, entry)
    modes: list[dict[str, str]] = [bare]
    if dtype == "f32" and any(a.name == "math" for a in operator.attributes):
        modes = [{}, {"math": "tf32"}]
    for mode in modes:
        chosen = problem(
            order=entry.order,
            strides={t: s for t, s in entry.strides.items() if t not in entry.present},
            attributes=mode,
            dtypes=entry.dtypes,
            **entry.dims,
        )
        yield _task(operator, chosen, "product", chosen.id in known)
    activation = entry.attributes.get("activation", "none")
    if entry.present or activation != "none":
        yield _task(operator, entry, "fused", known=True)


def _rows(operator: Operator, entry: Problem) -> Task:
    moved = operator.compulsory_bytes(entry)
    group = "512 MB on" if moved >= LARGER else "128 MB on" if moved >= LARGE else "smaller"
    flops = operator.flops.evaluate(operator.facts(entry))
    return Task(operator.name, entry, "rows", _dtype(operator, entry), group, moved, flops, known=True)


def _task(operator: Operator, entry: Problem, kind: str, known: bool) -> Task:
    dtype, m = _dtype(operator, entry), entry.dims["M"]
    mode = f"{dtype} {entry.attributes.get('math', 'ieee')}" if dtype == "f32" else dtype
    group = "M <= 16" if m <= 16 else "64 to 256" if m <= 256 else "above"
    moved, flops = operator.compulsory_bytes(entry), operator.flops.evaluate(operator.facts(entry))
    return Task(operator.name, entry, kind, mode, group, moved, flops, known=known)


def _dtype(operator: Operator, entry: Problem) -> str:
    variable, choices = next(iter(operator.dtypes.items()), ("T", ("f32",)))
    return entry.dtypes.get(variable, choices[0])


def _group(task: Task) -> tuple[str, ...]:
    return task.operator, task.kind, task.mode, task.group


def mix(found: Sequence[Task]) -> list[Task]:
    """The tasks in an order in which every group comes early, so that a time limit cuts all groups evenly."""
    groups: dict[tuple[str, ...], list[Task]] = {}
    for task in found:
        groups.setdefault(_group(task), []).append(task)
    generator = random.Random(0)
    placed = []
    for members in groups.values():
        generator.shuffle(members)
        placed += [((i + 0.5) / len(members), task) for i, task in enumerate(members)]
    return [task for _, task in sorted(placed, key=lambda pair: pair[0])]


def chosen_to_compile(found: Sequence[Task], count: int, after: int = 0) -> list[Task]:
    """Up to `count` fused products and as many row problems, taken from each operator, mode and size in turn.

    The first `after` of either kind are left out, because an earlier run had them.
    """
    of_kinds = ([t for t in _in_turn(found) if t.kind == kind] for kind in ("fused", "rows"))
    products, rows = (several[after : after + count] for several in of_kinds)
    # A time limit cuts both kinds evenly. max-autotune takes 20 s for a product, and a few seconds for rows.
    turns = range(max(len(products), -(-len(rows) // 2)))
    return [task for i in turns for task in (*rows[2 * i : 2 * i + 2], *products[i : i + 1])]


def _in_turn(found: Sequence[Task]) -> list[Task]:
    """The first of every group, then the second of those that have two, and so on. Small groups are complete early."""
    places: dict[tuple[str, ...], int] = {}
    placed = []
    for task in mix(found):
        place = places.setdefault(_group(task), 0)
        places[_group(task)] += 1
        placed.append((place, task))
    return [task for _, task in sorted(placed, key=lambda pair: pair[0])]
