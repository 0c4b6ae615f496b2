"""The report as text: words and numbers, the same in all of its forms, and the tables of a terminal."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from aot_tune.bench.devices.nvml import REASONS
from aot_tune.bench.protocol.measurement_records import GpuTiming, Policy
from aot_tune.report.report_records import NOT_TRIED, OperatorReport, ProblemRow, RegimeRow, Report, VariantRow
from aot_tune.support.limits import size_text

_WRAPPED = textwrap.TextWrapper(118, initial_indent=" " * 10, subsequent_indent=" " * 12)

_SLOWER = 0.95
"""A winner below this share of the baseline's speed is called slower."""
DECIDES = {"nearest": "nearest problem", "expected": "expected time", "vendor": "vendor's choice"}
"""What decides calls that nobody measured, in words."""
_ENOUGH = 5
"""A mean over fewer problems says nothing of others. With two, leaving out one only shows how unlike they are."""


def format_time(ns: float) -> str:
    """A time in the unit that leaves one to four digits before the point."""
    for unit, size in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if ns < 1000 * size:
            return f"{ns / size:.{0 if unit == 'ns' else 2}f} {unit}"
    return f"{ns / 1e9:.2f} s"


def counted(count: float, what: str = "call") -> str:
    """A number of things, such as `3 calls`. Weights of calls may be fractions."""
    return f"{count:.10g} {what}{'s' * (count != 1)}"


def tried_text(part: OperatorReport) -> str:
    """How many candidates were tried, with their statuses, and how many were not tried."""
    left = part.statuses.get(NOT_TRIED, 0)
    if left and left == part.tried:
        return f"tried none of {left}"
    counts = ", ".join(f"{n} {status}" for status, n in sorted(part.statuses.items()) if n and status != NOT_TRIED)
    return f"tried {part.tried - left} ({counts or 'nothing'})" + (f", {left} more not tried" if left else "")


def regime_table(part: OperatorReport) -> list[tuple[str, ...]]:
    """A table, with its head, of how calls of each kind and regime are decided and what that loses."""
    rows = part.survey.regimes if part.survey is not None else ()
    head = ("calls", "regime", "decided by", "shapes", "held out", "mean", "95 % within", "worst", "on")
    return [head, *(_regime_row(row) for row in rows)] if rows else []


def _regime_row(row: RegimeRow) -> tuple[str, ...]:
    lost = ("-" if share is None else percent_text(share) for share in (row.mean, row.p95, row.worst))
    decides = DECIDES.get(row.decides, row.decides)
    return row.kind or "-", row.regime, decides, str(row.shapes), str(row.held_out), *lost, row.where or "-"


def curve_lines(part: OperatorReport) -> list[str]:
    """What each kept variant is good for: the regret with the first one, the first two, and so on."""
    lines = []
    for curve in part.curves if part.survey is not None else ():
        percents = ", ".join(f"{100 * regret:.1f}" for regret in curve.regret)
        of = f" of {curve.kind}" if curve.kind else ""
        lines.append(f"  mean regret with 1, 2, ... variants{of}: {percents} %")
    return lines


def remark_lines(rows: Sequence[ProblemRow]) -> list[str]:
    """Remarks on times. A remark on several problems is given once."""
    problems: dict[str, list[str]] = {}
    for row in rows:
        if row.remark:
            problems.setdefault(row.remark, []).append(row.problem)
    return [
        f"  NOTE {first}{f' and {len(more)} more' if more else ''}: {remark}"
        for remark, (first, *more) in problems.items()
    ]


def held_out_of(part: OperatorReport) -> float | None:
    """The mean regret on shapes that dispatch did not learn from; None if there are too few of them."""
    if part.survey is not None:
        return part.survey.mean
    judged = len(part.problems) - part.not_held_out
    return part.held_out_regret if judged >= _ENOUGH else None


def use_text(part: OperatorReport, row: VariantRow) -> str:
    """What a variant is kept for."""
    if row.wins or part.survey is None:
        return counted(row.wins, "problem")
    return "other shapes"


def in_reading_order(report: Report) -> Report:
    """The report with the newest target of each operator first: on a CPU that built it, this is its own."""
    names = list(dict.fromkeys(part.operator for part in report.operators))
    places = {target: number for number, target in enumerate(report.targets)}
    order = sorted(report.operators, key=lambda part: (names.index(part.operator), -places.get(part.target, 0)))
    return msgspec.structs.replace(report, operators=tuple(order))


def on_others_text(part: OperatorReport) -> str:
    """The regret of dispatch on shapes that it does not know, if there are enough of them."""
    if part.survey is not None:
        return (
            f", {percent_text(part.survey.mean)} on {part.survey.shapes} surveyed shapes left out of learning "
            f"(95 % of them within {percent_text(part.survey.p95)}; worst {percent_text(part.survey.worst)} on "
            f"'{part.survey.where}')"
        )
    if part.held_out_regret is None:
        return ""
    judged = len(part.problems) - part.not_held_out
    if judged < _ENOUGH:
        return f", unknown on other shapes (only {judged} could be decided by others, {_ENOUGH} are needed)"
    without = f" (without {part.not_held_out} of {len(part.problems)}: the choice was never timed there)"
    return f", {percent_text(part.held_out_regret)} if others decide each problem" + without * bool(part.not_held_out)


def slower_rows(part: OperatorReport) -> list[ProblemRow]:
    """Problems whose winners are slower than the fastest baseline beyond doubt."""
    return [row for row in part.problems if row.speedup is not None and row.speedup * (1 + 2 * _error(row)) < _SLOWER]


def slower_line(part: OperatorReport) -> list[str]:
    """A note if winners are slower than the fastest baseline beyond doubt."""
    slower = slower_rows(part)
    if not slower:
        return []
    worst = min(slower, key=lambda row: row.speedup or 0.0)
    name = worst.baseline[0] if worst.baseline is not None else "the baseline"
    many = f"{len(slower)} of {counted(len(part.problems), 'problem')}"
    most = f"on {worst.problem} {name} takes {worst.speedup:.2f} of the winner's time"
    return [f"  NOTE slower than the fastest baseline on {many}; {most}"]


def _error(row: ProblemRow) -> float:
    """The standard error of the ratio to the baseline, as a share of the ratio."""
    return row.paired[1] / row.paired[0] if row.paired is not None and row.paired[0] > 0 else 0.0


def speedup_text(row: ProblemRow) -> str:
    """How many times faster a winner is than the fastest baseline, with a standard error that is not negligible."""
    if row.speedup is None:
        return "-"
    error = row.paired[1] if row.paired is not None else 0.0
    return f"{row.speedup:.2f}" + (f" ± {error:.2f}" if error >= 0.005 else "")


def percent_text(fraction: float) -> str:
    """A share in percent."""
    return f"{100 * fraction:.1f} %"


def format_resources(resources: Mapping[str, int]) -> str:
    """Resources in words. Zeros are left out, except for spills if registers are known."""
    parts = [f"{resources['registers']} registers"] if resources.get("registers") else []
    if resources.get("spill_bytes"):
        parts.append(f"{resources['spill_bytes']} bytes spilled")
    elif parts:
        parts.append("no spills")
    dynamic = resources.get("dynamic_shared")
    static = resources.get("shared", 0) - (dynamic or 0)
    if static or dynamic:
        shared = [f"{static} static"] if static else []
        shared += [f"{dynamic} dynamic"] if dynamic else []
        parts.append(f"{' + '.join(shared)} bytes of shared memory")
    if resources.get("stack"):
        parts.append(f"{resources['stack']} bytes of stack")
    return ", ".join(parts)


def policy_lines(family: str, policy: Policy) -> tuple[str, ...]:
    """How devices of a family are measured, in a few lines. The first line names the policy."""
    return (
        f"{family} version {policy.version}, digest {policy.digest[:12]}",
        *(_on_gpu(policy, policy.gpu) if policy.gpu else _on_host(policy)),
    )


def _on_host(policy: Policy) -> Iterator[str]:
    yield (
        f"cold inputs rotate through copies of {policy.cold_factor:g} x the last cache (at most {policy.copies}), the "
        "rest is warm"
    )
    yield f"samples of {_time(policy.sample_ns)}, less an empty call, taken again when another process took the core"
    yield from _rounds(policy, "median")


def _on_gpu(policy: Policy, gpu: GpuTiming) -> Iterator[str]:
    yield (
        f"cold inputs rotate through copies of {policy.cold_factor:g} x the L2 (at most {policy.copies}), the rest is "
        "warm; all rotate where a call's tensors exceed the L2; noted where a probe reads the copies "
        f"{gpu.read_limit:g} x as fast as memory"
    )
    how = "calls on a stream"
    if gpu.launch == "graph":
        how = f"graphs of at least {gpu.short_calls} calls below {_time(gpu.short_ns)}, a stream for what has no graph"
    yield (
        f"{how}; samples of {_time(policy.sample_ns)} by the device's events, after launches on {gpu.streams} other "
        "streams; an empty kernel's time is recorded, not taken off"
    )
    yield from _rounds(policy, gpu.statistic)
    heat = f"{_time(1e9 * gpu.heat_seconds)} to {_time(1e9 * gpu.heat_most)}"
    clock = f"clock: {heat} of heating after {_time(1e9 * gpu.idle_seconds)} idle"
    if gpu.loaded_ns:
        clock += f", {_time(gpu.loaded_ns)} of load before each sample of a race of calls that are not short"
    if gpu.probe_cycles:
        changed = f"{_percent(gpu.clock_change)} off their median are taken again (at most {_percent(gpu.repeats)})"
        clock += (
            f", until it is steady; a spin of {gpu.probe_cycles} cycles probes it in each round, and rounds {changed} "
            "unless power-capped"
        )
    yield clock
    low = f"below {_percent(gpu.least_clock)} of the highest clock without {_reasons(gpu.kept)}"
    yield (
        f"NVML, from another process: samples under {_reasons(gpu.dropped)}, or {low}, are taken again after "
        f"{_time(1e9 * gpu.recovery_seconds)} (at most {gpu.recoveries} times); other processes are noted"
    )


def _rounds(policy: Policy, statistic: str) -> Iterator[str]:
    yield (
        f"screen: 2 samples, unless both are over {policy.screen_stop:g} x the best up to {policy.screen_samples} in "
        f"{_time(policy.screen_ns)}; race: {policy.race_least} to {policy.race_rounds} interleaved rounds in "
        f"{_time(policy.race_ns)}, their {statistic}"
    )


def _reasons(bits: int) -> str:
    return " or ".join(name for bit, name in REASONS.items() if bits & bit) or "no reason"


def _time(ns: float) -> str:
    unit, size = next(((u, s) for u, s in (("s", 1e9), ("ms", 1e6), ("us", 1e3)) if ns >= s), ("ns", 1.0))
    return f"{ns / size:g} {unit}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def format_report(report: Report, *, failures: int = 5, candidates: bool = False) -> str:
    """The whole report as text.

    Args:
        report: what to show.
        failures: how many dropped candidates of an operator are listed at most.
        candidates: also list those that were timed.
    """
    lines = [
        f"library   {report.library}",
        f"mode      {report.mode}",
        f"targets   {', '.join(report.targets) or 'none: generic variants only'}",
    ]
    lines += [f"device    {d}" for d in (*report.devices, *report.units)]
    lines += [f"workload  {line}" for line in report.workload]
    lines += [f"compiler  {name}: {version}" for name, version in sorted(report.toolchains.items())]
    tuned = any(part.tried for part in report.operators)  # else nothing was timed
    for name, *words in (report.measuring or ((report.policy,),)) if tuned else ():
        lines += [f"policy    {name}", *(line for text in words for line in _WRAPPED.wrap(text))]
    held = ", ".join(f"{size_text(peak.bytes)} in {peak.what}" for peak in report.memory)
    lines += [f"memory    at most {held}"] if held else []
    lines += [f"kept      {len(report.kept)} files (AOT_TUNE_KEEP), such as {report.kept[0]}"] if report.kept else []
    spent = [line for text in _spent(report) for line in _WRAPPED.wrap(text)]
    lines += [f"time{line[4:]}" for line in spent[:1]] + spent[1:]
    lines += [f"NOTE      {note}" for note in report.general_notes]
    for part in report.operators:
        lines += ["", *_operator(part, failures)]
        lines += ["  " + line for line in _candidates(part)] if candidates and part.candidates else []
    return "\n".join(lines) + "\n"


def _spent(report: Report) -> Iterator[str]:
    """Where the time of a build went."""
    for of, whose in (("clock", "the build"), ("compilers", "compilers together"), ("device", "devices together")):
        parts = [s for s in report.spent if s.of == of and s.seconds >= 0.05]
        parts.sort(key=lambda s: -s.seconds)
        spent = ", ".join(f"{s.what}{f' for {s.target}' * bool(s.target)} {s.seconds:.1f} s" for s in parts)
        if spent:
            yield f"{whose}: {spent}"


def _operator(part: OperatorReport, failures: int) -> list[str]:
    lines = [f"{part.operator} on {part.target}: {tried_text(part)}, kept {len(part.variants)}"]
    if part.note:
        lines.append(f"  NOTE {part.note}")
    if part.problems:
        lines += ["  " + line for line in _problems(part)]
        began = Counter(p.began for p in part.problems if p.began)
        lines += [f"  began with {what}: {count} problems" for what, count in began.most_common()]
        regret = percent_text(part.mean_regret)
        mean = f"{regret} in the mean"
        if part.weighted_regret is not None:
            mean = f"{percent_text(part.weighted_regret)} in the mean by weight, {regret} without weights"
        text = f"  regret of dispatch: {mean}" + on_others_text(part)
        curves = curve_lines(part)
        speedup = part.speedup
        lines.append(text + (f"; {speedup:.2f} x the baseline in the geometric mean" if speedup else ""))
        lines += ["  " + line for line in columns(regime_table(part))]
        lines += [*curves, *slower_line(part), *remark_lines(part.problems)]
    if part.roofline_of:
        lines.append(f"  roofline: shares are of {part.roofline_of}")
    for variant in part.variants:
        rebuilt = ", rebuilt by another compiler than the record's" if variant.rebuilt else ""
        rebuilt += ", results vary between runs" if variant.varies else ""
        lines.append(
            f"  kept {variant.name}: {variant.label} ({variant.bytes} bytes, "
            f"{use_text(part, variant)}{rebuilt}{_code(variant)})"
        )
    for failure in part.failures[:failures]:
        times = f" on {failure.count} problems" if failure.count > 1 else ""
        lines.append(f"  dropped {failure.candidate}: {failure.status}{times}: {failure.reason}")
        if failure.again:
            lines.append(f"    again: {failure.again}")
    if (left := len(part.failures) - failures) > 0:
        lines.append(f"  and {left} more dropped; `--failures` of `aot-tune report` lists them")
    return lines


def _code(row: VariantRow) -> str:
    """The resources of a variant's code, how near it is to the roofline, and what sanitizers said."""
    parts = [format_resources(row.resources)]
    parts += [f"{100 * row.roofline:.0f} % of the roofline at best"] if row.roofline is not None else []
    parts += [f"{verdict} under {', '.join(tools)}" for verdict, tools in _verdicts(row).items()]
    return "".join(f"; {part}" for part in parts if part)


def _verdicts(row: VariantRow) -> dict[str, list[str]]:
    """Verdicts of sanitizers, each with those that gave it."""
    by_verdict: dict[str, list[str]] = {}
    for tool, verdict in row.sanitized.items():
        by_verdict.setdefault(verdict, []).append(tool)
    return by_verdict


def _candidates(part: OperatorReport) -> list[str]:
    """The table of timed candidates."""
    head = ("candidate", "config", "problems", "roofline", "on", "code")
    rows = [
        (
            row.name,
            row.label,
            str(row.problems),
            "-" if row.roofline is None else f"{100 * row.roofline:.0f} %",
            row.where or "-",
            format_resources(row.resources) or "not compiled here",
        )
        for row in part.candidates
    ]
    return columns([head, *rows])


def _problems(part: OperatorReport) -> list[str]:
    """The table of problems, with their weights if these differ."""
    head = ("problem", "winner", "time", "spread", "noise", "rate", "roofline", "baseline", "its time", "x", "dispatch")
    rows = [head, *(_problem(row) for row in part.problems)]
    if part.weighted_regret is not None:
        weights = ["weight", *(f"{row.weight:g}" for row in part.problems)]
        rows = [(row[0], weight, *row[1:]) for row, weight in zip(rows, weights, strict=True)]
    return columns(rows)


def _problem(row: ProblemRow) -> tuple[str, ...]:
    name, theirs = row.baseline or ("-", math.nan)
    return (
        row.problem,
        row.winner + (" (tie)" if row.tie else ""),
        format_time(row.ns),
        percent_text(row.spread),
        percent_text(row.noise),
        f"{row.flops / row.ns:.1f} GFLOP/s {row.bytes / row.ns:.1f} GB/s",
        "-" if row.roofline is None else f"{percent_text(row.roofline)} {row.bound}".rstrip(),
        name,
        "-" if math.isnan(theirs) else format_time(theirs),
        speedup_text(row),
        "=" if row.picked == row.winner else f"{row.picked} (+{percent_text(row.regret)})",
    )


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of a table."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
