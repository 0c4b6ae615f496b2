"""The races of each operator, from problems to rows of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from race import Entry, Fleet
from stats import Timing, best, paired_ratio
from tasks import Task

__all__ = ["COPIES", "Limits", "Row", "run_gemm", "run_rows"]

COPIES = ("memcpy", "streaming stores", "numpy.copyto", "torch copy_")
"""Ways to copy memory on all threads. The fastest one counts."""


@dataclass(frozen=True)
class Limits:
    """The limits of the machine, as measured in this run."""

    gflops: float
    read: float  # bytes per ns
    copy: float  # bytes per ns, read and written bytes together


@dataclass
class Row:
    """All measurements of one problem. Ratios are our speed over the other's."""

    task: Task
    ours: Timing
    others: list[Timing]
    facts: dict[str, Any] = field(default_factory=dict)
    copies: list[Timing] = field(default_factory=list)
    cold: Timing | None = None
    cold_others: list[Timing] = field(default_factory=list)
    fused: Timing | None = None
    fused_facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Against the fastest other library."""
        return paired_ratio(best(self.others), self.ours)

    @property
    def cold_ratio(self) -> float:
        """The same with b in no cache."""
        return paired_ratio(best(self.cold_others), self.cold) if self.cold else math.nan

    @property
    def fused_ratio(self) -> float:
        """Our product with its epilogue against the fastest other without one; without an epilogue, the plain ratio."""
        return paired_ratio(best(self.others), self.fused or self.ours) if self.task.operator == "gemm" else math.nan

    @property
    def copy_ratio(self) -> float:
        """Our bandwidth as a share of the fastest copy's."""
        return paired_ratio(best(self.copies), self.ours) if self.copies else math.nan

    def share(self, limits: Limits) -> tuple[float, str]:
        """The share of its limit that a product reaches: peak FLOP/s, or beyond the caches the bandwidth of reads."""
        flops = self.task.flops / limits.gflops
        moved = self.task.bytes / limits.read if self.task.beyond else 0.0
        return max(flops, moved) / self.ours.median, "FLOP/s" if flops >= moved else "reads"


def run_gemm(fleet: Fleet, tasks: Sequence[Task], say: Callable[[str], None]) -> list[Row]:
    """Plain products against numpy and torch, with b as caches leave it and with cold b; and ours with its epilogue."""
    names = ("aot_tune", "numpy", "torch")
    rows = []
    for task in tasks:
        say(f"gemm {task.text}")
        request = {"kind": "operator", "operator": "gemm", "problem": task.plain(), "copies": 1, "key": "same"}
        facts = fleet.prepare(dict.fromkeys(names, request))["aot_tune"]["facts"]
        entries: list[Entry] = [(n, "same", n) for n in names]
        fused_facts: dict[str, Any] = {}
        if task.fused is not None:
            fused = Task("gemm", task.fused, True, 0, 0, False).plain()
            made = fleet.prepare({"aot_tune": {**request, "problem": fused, "key": "fused"}})
            fused_facts = made["aot_tune"]["facts"]
            entries.append(("aot_tune", "fused", "aot_tune"))
        ours, *others = fleet.race(entries)
        row = Row(task, ours, others[:2], facts, fused=others[2] if others[2:] else None, fused_facts=fused_facts)
        row.cold, row.cold_others = row.ours, row.others
        if task.cold_copies > 1:
            cold = {**request, "copies": task.cold_copies, "key": "cold"}
            fleet.prepare(dict.fromkeys(names, cold))
            row.cold, *row.cold_others = fleet.race([(n, "cold", n) for n in names])
        fleet.drop(names)
        rows.append(row)
    return rows


def run_rows(fleet: Fleet, tasks: Sequence[Task], machine: str, say: Callable[[str], None]) -> list[Row]:
    """A row operator against torch. If the problem is beyond the caches, also against copies of as many bytes."""
    rows = []
    for task in tasks:
        say(f"{task.operator} {task.text}")
        request = {"kind": "operator", "operator": task.operator, "problem": task.plain(), "copies": 1, "key": "same"}
        replies = fleet.prepare(dict.fromkeys(("aot_tune", "torch"), request))
        entries: list[Entry] = [("aot_tune", "same", "aot_tune")]
        entries += [("torch", "same", way) for way in replies["torch"]["ways"]]
        count = len(entries)
        if task.beyond:
            copy = {"kind": "copy", "bytes": task.bytes, "machine": machine, "key": "copy"}
            made = fleet.prepare(dict.fromkeys(("copy", "torch"), copy))
            entries += [(name, "copy", way) for name, reply in made.items() for way in reply["ways"]]
        ours, *others = fleet.race(entries)
        rows.append(Row(task, ours, others[: count - 1], replies["aot_tune"]["facts"], copies=others[count - 1 :]))
        fleet.drop(("aot_tune", "torch", "copy"))
    return rows
