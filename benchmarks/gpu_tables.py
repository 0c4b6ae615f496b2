"""Checks the GPU's requirements, and makes one table of all measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_tasks import LARGE, LARGER, Task
from stats import Timing, geometric_mean, markdown

__all__ = ["VENDOR_WORKSPACE", "Result", "Verdict", "interval", "render_results", "render_verdicts", "verdicts"]

# Two-sided 95 % points of Student's distribution by degrees of freedom. Beyond them, the normal distribution's.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)

_COMPILED = "max-autotune"

VENDOR_WORKSPACE = 32 << 20
"""Bytes of workspace that torch gives cuBLAS on Hopper. A variant that takes more is marked."""

_SLOW_COPY = 0.9
"""Share of the fastest copy's speed. Copies of large sizes reach either at least 0.94 of it, or at most 0.64."""


@dataclass(frozen=True)
class Result:
    """The measurements of one task: for each contender, the µs per call of each round.

    `facts` are what the installed library says of the call.
    """

    task: Task
    us: Mapping[str, Sequence[float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    def median(self, name: str) -> float:
        """µs per call; NaN if it took no part."""
        return statistics.median(self.us[name]) if name in self.us else math.nan

    def ratio(self, other: str) -> float:
        """Our speed over the other's: the mean of the paired logarithms, as a ratio; NaN if it took no part."""
        return math.exp(statistics.fmean(self._logs(other))) if other in self.us else math.nan

    def interval(self, other: str) -> tuple[float, float]:
        """The paired 95 % interval of the ratio."""
        return interval(self._logs(other)) if other in self.us else (math.nan, math.nan)

    def _logs(self, other: str) -> list[float]:
        return [math.log(t / o) for t, o in zip(self.us[other], self.us["aot_tune"], strict=True)]

    def bound(self, copy_speed: float) -> float:
        """The wanted time of a product of few rows: an empty kernel's, 1.5 µs, and its bytes at 0.88 of copy speed."""
        return self.median("empty") + 1.5 + self.task.bytes / (0.88 * copy_speed) * 1e6

    def of_copy(self, copy_speed: float) -> float:
        """Our speed over that of a copy of as many bytes; NaN if there was no copy.

        torch copies some sizes at two thirds of memory's speed. For these, the fastest copy's speed is used.
        """
        fastest = self.task.bytes / copy_speed * 1e6
        if self.median("copy") > fastest / _SLOW_COPY:
            return fastest / self.median("aot_tune")
        return self.ratio("copy")


def interval(logs: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of logarithms, as ratios. With fewer than two values, it has no bounds."""
    if len(logs) < 2:
        return 0.0, math.inf
    free = len(logs) - 1
    point = _STUDENT[free - 1] if free <= len(_STUDENT) else 2.0
    mean, half = statistics.fmean(logs), point * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean - half), math.exp(mean + half)


@dataclass(frozen=True)
class Verdict:
    """A requirement and its outcome."""

    what: str
    wanted: str
    measured: str
    met: bool

    @property
    def line(self) -> str:
        """A line for people."""
        return f"{'met   ' if self.met else 'MISSED'} {self.what}: {self.measured} (wanted {self.wanted})"


def verdicts(results: Sequence[Result], copy_speed: float) -> list[Verdict]:
    """The requirements for which something was measured, by dtype and math mode."""
    good = [r for r in results if not r.error]
    found: list[Verdict] = []
    broken = [r for r in results if r.error]
    if broken:
        found.append(
            Verdict("problems that run and are right", "all", f"{len(broken)} of {len(results)} do not", False)
        )
    products = [r for r in good if r.task.kind == "product"]
    for (operator, mode), chosen in _by(products, lambda t: (t.operator, t.mode)).items():
        found += _product(f"{operator} {mode}", mode, chosen, copy_speed)
    fused = [r for r in good if r.task.kind == "fused"]
    for (operator, mode), chosen in _by(fused, lambda t: (t.operator, t.mode)).items():
        name = f"{operator} {mode} with epilogue"
        found += _mean(f"{name} against eager", 1.25, chosen, "eager")
        found += _mean(f"{name} against {_COMPILED}", 1.10, chosen, _COMPILED)
        found += _bound(name, mode, chosen, copy_speed)
    rows = [r for r in good if r.task.kind == "rows"]
    for (operator, mode), chosen in _by(rows, lambda t: (t.operator, t.mode)).items():
        found += _rows(f"{operator} {mode}", chosen, copy_speed)
    return found


def _by(results: Iterable[Result], key: Callable[[Task], tuple[str, ...]]) -> dict[tuple[str, ...], list[Result]]:
    found: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        found.setdefault(key(result.task), []).append(result)
    return dict(sorted(found.items()))


def _count(chosen: Sequence[Result]) -> str:
    return f"{len(chosen)} problem{'s' if len(chosen) != 1 else ''}"


def _least(name: str, wanted: float, chosen: Sequence[Result], other: str) -> list[Verdict]:
    """Require that no problem's interval is completely below a ratio."""
    with_it = [r for r in chosen if other in r.us]
    if not with_it:
        return []
    below = [r for r in with_it if r.interval(other)[1] < wanted]
    worst = min(with_it, key=lambda r: r.ratio(other))
    low, high = worst.interval(other)
    told = f"{len(below)} below; least {worst.ratio(other):.3f} x [{low:.3f}, {high:.3f}] at {worst.task.text}"
    what = f"{name} against {other}, every one of {_count(with_it)}"
    return [Verdict(what, f"no interval wholly below {wanted:g} x", told, not below)]


def _mean(name: str, wanted: float, chosen: Sequence[Result], other: str) -> list[Verdict]:
    with_it = [r for r in chosen if other in r.us]
    if not with_it:
        return []
    ratios = [r.ratio(other) for r in with_it]
    mean = geometric_mean(ratios)
    told = f"{mean:.3f} x, from {min(ratios):.3f} to {max(ratios):.3f}"
    return [Verdict(f"{name}, geometric mean of {_count(with_it)}", f">= {wanted:g} x", told, mean >= wanted)]


def _product(name: str, mode: str, chosen: Sequence[Result], copy_speed: float) -> list[Verdict]:
    found = _least(name, 0.98, chosen, "torch.matmul")
    wanted = {"M <= 16": 1.20, "64 to 256": 1.05, "above": 1.00}
    for group, least in wanted.items():
        members = [r for r in chosen if r.task.group == group]
        found += _mean(f"{name}, M {group.removeprefix('M ')}", least if mode in ("bf16", "f16") else 0.98,
                       members, "torch.matmul")  # fmt: skip
    return found + _bound(name, mode, chosen, copy_speed)


def _bound(name: str, mode: str, chosen: Sequence[Result], copy_speed: float) -> list[Verdict]:
    few = [r for r in chosen if "empty" in r.us]
    if not few or mode not in ("bf16", "f16"):
        return []
    over = [r for r in few if r.median("aot_tune") > r.bound(copy_speed)]
    worst = max(few, key=lambda r: r.median("aot_tune") / r.bound(copy_speed))
    took, limit = worst.median("aot_tune"), worst.bound(copy_speed)
    told = f"{len(over)} of {len(few)} take longer; most {took:.2f} µs of {limit:.2f} at {worst.task.text}"
    return [Verdict(f"{name}, M <= 16, memory speed", "empty + 1.5 µs + bytes at 0.88 of a copy", told, not over)]


def _rows(name: str, chosen: Sequence[Result], copy_speed: float) -> list[Verdict]:
    found = []
    for least, wanted, until in ((LARGE, 0.90, LARGER), (LARGER, 0.95, math.inf)):
        members = [r for r in chosen if "copy" in r.us and least <= r.task.bytes < until]
        if not members:
            continue
        worst = min(members, key=lambda r: r.of_copy(copy_speed))
        below = sum(r.of_copy(copy_speed) < wanted for r in members)
        where = f"{least // 10**6} MB on" if until == math.inf else f"{least // 10**6} to {LARGER // 10**6} MB"
        told = f"least {worst.of_copy(copy_speed):.3f} at {worst.task.text}; {below} below"
        found.append(Verdict(f"{name}, {where}, {_count(members)}", f">= {wanted:g} of a copy", told, below == 0))
    found += _least(name, 0.98, chosen, _COMPILED)
    return found + _mean(f"{name} against {_COMPILED}", 1.10, chosen, _COMPILED)


# -- Markdown ------------------------------------------------------------------------------------------------------


def render_verdicts(found: Sequence[Verdict]) -> str:
    """The summary."""
    rows = [(v.what, v.wanted, v.measured, "met" if v.met else "**missed**") for v in found]
    return markdown(("requirement", "wanted", "measured", "verdict"), 4, rows)


def render_results(results: Sequence[Result], copy_speed: float) -> str:
    """One line for each problem. µs are medians of the rounds ± half their interquartile range."""
    head = ("operator", "problem", "dtype", "aot_tune", "torch.matmul", "x", "eager", "x", _COMPILED, "x",
            "copy, bound", "of it", "rate", "variant")  # fmt: skip
    placed = sorted(results, key=lambda r: (r.task.operator, r.task.kind, r.task.mode, r.task.bytes, r.task.text))
    return markdown(head, 3, [_line(r, copy_speed) for r in placed])


def _line(result: Result, copy_speed: float) -> tuple[str, ...]:
    task = result.task
    name = task.text + ("" if task.known else " *")
    if result.error:
        return (task.operator, name, task.mode, f"**{result.error[:90]}**", *[""] * 10)
    mine = result.median("aot_tune")
    limit = mine * result.of_copy(copy_speed) if task.kind == "rows" else result.bound(copy_speed)
    rate = f"{task.flops / mine / 1e6:.0f} TFLOP/s" if task.group == "above" else f"{task.bytes / mine / 1e3:.0f} GB/s"
    cells = [task.operator, name, task.mode, _time(result, "aot_tune")]
    for other in ("torch.matmul", "eager", _COMPILED):
        cells += [_time(result, other), _ratio(result, other)]
    cells += ["", ""] if math.isnan(limit) else [f"{limit:.2f}", f"{limit / mine:.3f}"]
    return (*cells, rate, _variant(result.facts))


def _variant(facts: Mapping[str, Any]) -> str:
    name, taken = f"{facts.get('kernel') or facts.get('variant') or ''}", facts.get("workspace") or 0
    return f"{name}, workspace {taken / 2**20:.1f} MiB" if taken > VENDOR_WORKSPACE else name


def _ratio(result: Result, other: str) -> str:
    if other not in result.us:
        return ""
    low, high = result.interval(other)
    return f"{result.ratio(other):.3f} [{low:.3f}, {high:.3f}]"


def _time(result: Result, name: str) -> str:
    if name not in result.us:
        return ""
    timing = Timing(name, tuple(result.us[name]))
    spread = "" if math.isnan(timing.spread) else f" ± {100 * timing.spread:.1f} %"
    return f"{timing.median:.2f}{spread}"
