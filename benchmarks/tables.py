"""Markdown: the machine, the targets, and one table of all measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from measure import Limits, Row
from stats import Timing, best, geometric_mean, markdown

__all__ = ["Target", "render_rows", "render_targets", "targets"]

_SMALL = 16
"""The most rows of a small product."""


@dataclass(frozen=True)
class Target:
    """A promise and its outcome."""

    what: str
    wanted: str
    measured: str
    met: bool


def targets(gemm: Sequence[Row], operators: dict[str, list[Row]]) -> list[Target]:
    """All promises about what was run."""
    found = _gemm_targets(gemm) if gemm else []
    for name, rows in operators.items():
        workload = [r for r in rows if r.task.workload]
        beyond = [r.copy_ratio for r in rows if r.copies]
        found.append(_share(f"{name}: bandwidth beyond the caches ({_problems(beyond)})", 0.8, beyond))
        found.append(_ratio(f"{name}: against torch ({_problems(workload)})", 1.5, [r.ratio for r in workload]))
    return found


def _problems(items: Sequence[object]) -> str:
    return f"{len(items)} problem{'s' if len(items) != 1 else ''}"


def _gemm_targets(rows: Sequence[Row]) -> list[Target]:
    small = [r for r in rows if r.task.problem.dims["M"] <= _SMALL]
    every, few = f"gemm ({_problems(rows)})", f"gemm, M <= {_SMALL} ({_problems(small)})"
    found = []
    for title, wanted, chosen in ((every, 0.9, rows), (few, 1.2, small)):
        found.append(_ratio(title, wanted, [r.ratio for r in chosen]))
        found.append(_ratio(f"{title}, b in no cache", wanted, [r.cold_ratio for r in chosen]))
        epilogue = f"{title}, ours with its epilogue, theirs without"
        found.append(_ratio(epilogue, wanted, [r.fused_ratio for r in chosen]))
    return found


def _ratio(what: str, wanted: float, ratios: Iterable[float]) -> Target:
    mean = geometric_mean(ratios)
    return Target(what, f">= {wanted:g} x", f"{mean:.2f} x", mean >= wanted)


def _share(what: str, wanted: float, ratios: Iterable[float]) -> Target:
    mean = geometric_mean(ratios)
    return Target(what, f">= {wanted:g} of a copy", f"{mean:.2f}", mean >= wanted)


def render_targets(found: Sequence[Target]) -> str:
    """The summary: promises and measurements."""
    rows = [(t.what, t.wanted, t.measured, "met" if t.met else "**not met**") for t in found]
    return markdown(("geometric means and medians", "target", "measured", "verdict"), 1, rows)


def render_rows(rows: Sequence[Row], limits: Limits) -> str:
    """One line for each problem. Times are medians in microseconds with half their interquartile range."""
    head = ("operator", "problem", "aot_tune", "numpy", "torch", "ratio", "cold b", "+ epilogue", "of limit",
            "copy", "of copy", "rate")  # fmt: skip
    return markdown(head, 2, [_line(row, limits) for row in rows])


def _line(row: Row, limits: Limits) -> tuple[str, ...]:
    task = row.task
    numpy = next((t for t in row.others if t.name == "numpy"), None)
    torch = best([t for t in row.others if t is not numpy])
    if task.operator == "gemm":
        rate = f"{task.flops / row.ours.median:.0f} GFLOP/s"
    else:
        rate = f"{task.bytes / row.ours.median:.1f} GB/s"
    share, limit = row.share(limits)
    return (
        task.operator,
        task.text + ("" if task.workload else " *"),
        _time(row.ours),
        _time(numpy),
        _time(torch),
        _number(row.ratio),
        _number(row.cold_ratio) if task.operator == "gemm" else "",
        _number(row.fused_ratio) if row.fused else "",
        f"{100 * share:.0f} % {limit}" if task.operator == "gemm" else "",
        _time(best(row.copies)) if row.copies else "",
        _number(row.copy_ratio),
        rate,
    )


def _time(timing: Timing | None) -> str:
    if timing is None:
        return ""
    micros = timing.median / 1000
    digits = 3 if micros < 10 else 1 if micros < 1000 else 0
    spread = "" if math.isnan(timing.spread) else f" ± {100 * timing.spread:.0f} %"
    return f"{micros:.{digits}f}{spread}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"
