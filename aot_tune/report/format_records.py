"""Records in the form that people read in a terminal of 80 columns: one, a folder of them, or changes of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from aot_tune.bench.devices.nvml import REASONS
from aot_tune.database import OperatorDatabase
from aot_tune.database.compare import Fastest, RecordChange, fastest
from aot_tune.report.report_text import format_time

_WIDTH = 80
_SHOWN = 5
_NOISE = 0.01
"""A time counts as changed from this relative difference on."""


def format_tree(databases: Sequence[OperatorDatabase]) -> str:
    """A line for each record, by device."""
    lines = []
    for slug in sorted({d.device.slug for d in databases}):
        of_device = [d for d in databases if d.device.slug == slug]
        lines += ["", of_device[0].device.name, f"  {slug}"]
        lines.append(f"  {'operator':<22}{'problems':>9}{'candidates':>12}{'measured':>10}{'surveyed':>10}  policy")
        for d in sorted(of_device, key=lambda d: d.operator):
            counts = f"{len(d.problems):>9}{len(d.candidates):>12}{len(d.measurements):>10}{len(d.survey):>10}"
            lines.append(_cut(f"  {d.operator:<22}{counts}  {d.policy_digest[:8]}"))
    return "\n".join(lines[1:]) + "\n"


def format_record(database: OperatorDatabase, *, problems: bool = False) -> str:
    """One record: its origin, and how its kernels did. With `problems`, also the fastest candidate on each problem."""
    versions = {name: identity.get("version", "unknown") for name, identity in database.toolchains.items()}
    survey = f"{len(database.survey)} shapes" if database.survey else "none"
    lines = [
        _cut(f"{database.operator} on {database.device.name}"),
        _cut(f"  folder      {database.device.slug}"),
        f"  operator    of digest {database.contract[:12]}",
        f"  policy      of digest {database.policy_digest[:12]}",
        *_listed("toolchains", versions),
        *_listed("baselines", database.baselines),
        f"  survey      {survey}",
        *_seen(database),
    ]
    best = fastest(database)
    for target in sorted({c.candidate.target for c in database.candidates}):
        lines += ["", *_of_target(database, target, best)]
    if problems:
        for target in sorted({target for target, _ in best}):
            lines += ["", f"  the fastest on {target}"]
            for (of, name), winner in best.items():
                if of == target:
                    lines += [_cut(f"    {name}"), _cut(f"      {format_time(winner.ns):>10}  {_shown(winner)}")]
    return "\n".join(lines) + "\n"


def _seen(database: OperatorDatabase) -> list[str]:
    """What the device was like in the record's races, if it tells."""
    races = {(m.race, m.problem.id): m.seen for m in database.measurements if m.seen is not None}.values()
    drivers = sorted({s.driver for s in races if s.driver})
    clocks = [mhz for s in races for mhz in s.clock_mhz or ()]
    slowed = [name for bit, name in REASONS.items() if any(s.reasons & bit for s in races)]
    beside = sum(s.disturbed for s in races)
    return [
        *([f"  driver      {' and '.join(drivers)}"] if drivers else []),
        *([f"  clock       {min(clocks)} to {max(clocks)} MHz in races"] if clocks else []),
        *([_cut(f"  clock set   by {', '.join(slowed)}")] if slowed else []),
        *([f"  beside      other processes in {beside} of {len(races)} races"] if beside else []),
    ]


def format_change(name: str, change: RecordChange, *, whole: bool = False) -> str:
    """What changed in the record of that name; empty if nothing did. `whole` lists everything, not the first few."""
    most = 1_000_000 if whole else _SHOWN
    lines = [f"  {text}" for text in change.head]
    largest = sorted((p for p in change.problems if p.other), key=lambda p: (p.ratio, p.target, p.problem))
    if largest:
        lines.append(f"  the fastest changes on {len(largest)} of {len(change.problems)} problems")
        for p in largest[:most]:
            lines.append(_cut(f"    {p.target} {p.problem}"))
            both = f"      {_shown(p.before)} -> {_shown(p.after)}"
            apart = [f"      {_shown(p.before)}", f"      -> {_shown(p.after)}"]
            lines += [both] if len(both) <= _WIDTH else map(_cut, apart)
            lines.append(f"      {format_time(p.before.ns)} -> {format_time(p.after.ns)} ({_percent(p.ratio)})")
        lines += _more(len(largest), most)
    lines += _times(change, most)
    for word, problems in (("were added", change.came), ("were removed", change.went)):
        if problems:
            lines += [f"  problems that {word}: {len(problems)}", *(_cut(f"    {p}") for p in problems[:most])]
            lines += _more(len(problems), most)
    for what, kernels in (
        ("candidates that were added", change.candidates_came),
        ("candidates that were removed", change.candidates_went),
        ("candidates of other code", change.code),
    ):
        if kernels:
            lines += _listed(what, {k: str(n) for k, n in kernels.items()}, ": ")
    if change.surveyed[0] != change.surveyed[1]:
        lines.append(f"  surveyed shapes: {change.surveyed[0]}, then {change.surveyed[1]}")
    return "\n".join([name, *lines]) + "\n" if lines else ""


def _of_target(database: OperatorDatabase, target: str, best: Mapping[tuple[str, str], Fastest]) -> Iterator[str]:
    tried = {c.id: c for c in database.candidates if c.candidate.target == target}
    wins = Counter(winner.candidate for winner in best.values())
    measured = {m.candidate for m in database.measurements if m.status == "ok"}
    failed = {c.id for c in tried.values() if c.status != "ok"}
    failed |= {m.candidate for m in database.measurements if m.candidate in tried and m.status not in ("ok", "skipped")}
    yield f"  {target:<30}{'candidates':>12}{'timed':>8}{'failed':>8}{'fastest on':>12}"
    for kernel in sorted({c.candidate.kernel for c in tried.values()}):
        ids = {i for i, c in tried.items() if c.candidate.kernel == kernel}
        counts = f"{len(ids):>12}{len(ids & measured):>8}{len(ids & failed):>8}{sum(wins[i] for i in ids):>12}"
        yield f"    {kernel[:28]:<28}{counts}"


def _times(change: RecordChange, most: int) -> Iterator[str]:
    """Lines on problems whose winner stayed the same but was timed anew."""
    again = [p for p in change.problems if not p.other and p.ratio != 1]
    notable = [p for p in again if abs(p.ratio - 1) > _NOISE]
    if again:
        mean = f"all times together {_percent(change.mean)}"
        yield f"  the fastest is the same, timed anew, on {len(again)}; {len(notable)} by more than 1 %; {mean}"
    for p in sorted(notable, key=lambda p: (-abs(p.ratio - 1), p.target, p.problem))[:most]:
        yield _cut(f"    {_percent(p.ratio):>8}  {p.target} {p.problem}")
    yield from _more(len(notable), most)


def _more(count: int, most: int) -> list[str]:
    return [f"    and {count - most} more"] if count > most else []


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _shown(winner: Fastest) -> str:
    return winner.label if winner.raced else f"{winner.label}, not raced"


def _listed(what: str, named: Mapping[str, str], joint: str = " ") -> Iterator[str]:
    """Names and values as a wrapped list."""
    indent = f"  {what:<12}" if len(what) < 12 else f"  {what}: "
    line = indent
    for number, (name, value) in enumerate(named.items()):
        word = f"{name}{joint}{value}" + ("," if number < len(named) - 1 else "")
        if len(line) + len(word) + 1 > _WIDTH and line.strip() != what:
            yield line.rstrip()
            line = " " * 6 if len(what) >= 12 else " " * len(indent)
        line += word + " "
    yield _cut(line.rstrip() if named else f"{indent}none")


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."
