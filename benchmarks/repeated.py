"""Whether repeated tunes choose the same kernels, or equally fast ones. One long measurement compares their choices.

    python benchmarks/repeated.py --tunes 5 --problems 12 --budget 60 --json repeated.json

A library of the bundled operators with a few problems is tuned several times, each time without earlier measurements.
Compiled objects are kept between the tunes, because only measuring and choosing are repeated. Then, for each problem,
the variants that the tunes' dispatch would call race each other in many rounds, like those of a build. There are
several races, because buffers have other places in another process, and this can change which is faster. A choice is as
good as the best if its median is within 1 % of it, or within twice the standard error of the differences, by rounds or
by races.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec
from projects import Tuned, forget_measurements, tune, write_templates
from stats import Timing

from aot_tune.bench.host.bench import Bench
from aot_tune.bench.times import without_drift
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.naming import variant_name
from aot_tune.pipeline.scheduling.vendor_candidates import vendor_entries
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.plan.library_plan import read_plan
from aot_tune.spec import Problem, Target
from aot_tune.support.errors import AotTuneError
from aot_tune.support.progress import Progress

__all__ = ["NotRacedError", "Row", "judge", "main"]

LONG = {"race_ns": 3_000_000_000, "race_rounds": 75, "race_least": 21}
"""The policy of the long measurement, where it differs from a build's."""

_TIE = 0.01


class NotRacedError(Exception):
    """The long measurement has no times of a choice."""


@dataclass(frozen=True)
class Row:
    """One problem: what each tune chose; and for each choice, its time over the best choice's, and if that is noise."""

    operator: str
    problem: str
    choices: tuple[str, ...]
    ns: Mapping[str, float]
    over_best: Mapping[str, float]
    ties: Mapping[str, bool]

    @property
    def steady(self) -> bool:
        """Whether all tunes chose the same variant, or an equally good one."""
        return all(self.ties[c] for c in self.choices)


def judge(operator: str, problem: str, choices: Sequence[str], races: Sequence[Mapping[str, Timing]]) -> Row:
    """Compare the choices on one problem by the paired times of races, each in its own process."""
    races = [_without_drift(race) for race in races]
    ns = {name: statistics.geometric_mean([race[name].median for race in races]) for name in races[0]}
    best = min(ns, key=lambda name: ns[name])
    over = {name: ns[name] / ns[best] - 1 for name in ns}
    ties = {name: over[name] <= max(_TIE, 2 * _error(name, best, races)) for name in ns}
    return Row(operator, problem, tuple(choices), ns, over, ties)


def _without_drift(race: Mapping[str, Timing]) -> dict[str, Timing]:
    rounds = without_drift([timing.rounds for timing in race.values()])
    return {name: Timing(name, r) for name, r in zip(race, rounds, strict=True)}


def _error(one: str, other: str, races: Sequence[Mapping[str, Timing]]) -> float:
    """Standard error of the mean of the relative differences: by rounds, or by races if these differ more."""
    within = [_of_mean([a / b - 1 for a, b in zip(r[one].rounds, r[other].rounds, strict=True)]) for r in races]
    between = _of_mean([r[one].median / r[other].median - 1 for r in races]) if len(races) > 1 else 0.0
    return max(math.hypot(*within) / len(races), between)


def _of_mean(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def _choices(tunes: Sequence[Tuned], target: str) -> dict[tuple[str, str], list[str]]:
    """What each tune's dispatch picks, by operator and problem."""
    found: dict[tuple[str, str], list[str]] = {}
    for tuned in tunes:
        for one in tuned.report.operators:
            for row in one.problems if one.target == target else ():
                found.setdefault((one.operator, row.problem), []).append(row.picked)
    return found


class LongRace:
    """Races chosen variants for longer than a build does. A context manager."""

    def __init__(self, folder: Path, family: str, say: TextIO) -> None:
        plan, paths = read_plan(folder)
        self._session = Session(plan, paths, Progress(say))
        self.target = next(t for t in self._session.targets if t.family == family)
        device = self._session.device_for(self.target)
        assert device is not None
        self._device, self._lazy = device, LazyBench(self._session, device)
        self._entries: dict[str, dict[str, Entry]] = {}

    def __enter__(self) -> LongRace:
        self._lazy.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._lazy.__exit__(*failure)
        self._session.close()

    def _found(self, loaded: LoadedOperator, target: Target) -> dict[str, Entry]:
        name = loaded.operator.name
        if name not in self._entries:
            entries = self._session.ask(loaded.operator, target)
            entries += vendor_entries(self._session, loaded.operator, target, self._device)
            entries += self._session.generic_entries(loaded.operator, target)
            self._entries[name] = {variant_name(e): e for e in entries}
        return self._entries[name]

    def race(self, operator: str, problem: str, names: Sequence[str]) -> dict[str, Timing]:
        """Times of variants on a problem, round by round. A single variant needs only as many rounds as in a build.

        Raises:
            NotRacedError: when one of them has no times.
        """
        loaded = self._session.operators[operator]
        known = self._found(loaded, self.target)
        if unknown := [n for n in names if n not in known]:  # a vendor's library may list other algorithms each time
            raise NotRacedError(f"{', '.join(unknown)} on {problem}: no candidate of that name now")
        wanted = {n: known[n] for n in names}
        self._session.compile(wanted.values(), operator)
        entrants = [self._lazy.entrant(e) for e in wanted.values()]
        bench = self._bench(LONG if len(names) > 1 else {})
        prepared = bench.prepare(loaded.folder, loaded.operator, self._problem(loaded, problem))
        by_id = {m.candidate: m for m in bench.race(prepared, entrants)}
        found = {n: Timing(n, by_id[e.candidate.id].final or ()) for n, e in wanted.items()}
        for name, timing in found.items():
            if not timing.rounds:
                raise NotRacedError(f"{name} on {problem}: {by_id[wanted[name].candidate.id].reason}")
        return found

    def _bench(self, rules: Mapping[str, int]) -> Bench:
        bench = self._lazy.get()
        bench.context.policy = msgspec.structs.replace(self._session.policy_of(self.target.family), **rules)
        return bench

    def _problem(self, loaded: LoadedOperator, name: str) -> Problem:
        return next(p for p in loaded.operator.workload_for(self.target.family) if p.id == name)


def repeat(folder: Path, options: argparse.Namespace, say: TextIO) -> tuple[list[Tuned], list[Row], list[str]]:
    """Tune, then measure the choices. Returns the tunes, a row for each problem, and why some problems have none."""
    kept = write_templates(folder / "templates", options.family, options.problems, options.operators)
    print(f"{sum(map(len, kept.values()))} problems of {len(kept)} operators", file=say)
    cache = options.cache or folder / "cache"
    tunes: list[Tuned] = []
    for number in range(options.tunes + options.warm):
        forget_measurements(cache)
        extra = {} if number < options.warm else {"BUDGET": str(options.budget)}
        tuned = tune(folder / f"tune-{number}", folder / "templates", options.family, cache, **extra)
        print(f"tune {number}: {tuned.seconds:.1f} s", file=say)
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            (options.logs / f"tune-{number}.txt").write_text(tuned.log)
        if number >= options.warm:
            tunes.append(tuned)
    return tunes, *race_chosen(tunes, options.family, options.races, say)


def race_chosen(tunes: Sequence[Tuned], family: str, count: int, say: TextIO) -> tuple[list[Row], list[str]]:
    """Race the choices this many times; once if all tunes chose the same."""
    races: dict[tuple[str, str], list[dict[str, Timing]]] = {}
    left_out: dict[tuple[str, str], str] = {}
    chosen: dict[tuple[str, str], list[str]] = {}
    for number in range(count):
        with LongRace(tunes[-1].folder, family, say) as long:
            chosen = _choices(tunes, long.target.name)
            for place, choices in chosen.items():
                distinct = list(dict.fromkeys(choices))
                if place in left_out or (number > 0 and len(distinct) == 1):
                    continue
                print(f"race {number}, {' '.join(place)}: {', '.join(distinct)}", file=say)
                try:
                    races.setdefault(place, []).append(long.race(*place, distinct))
                except (NotRacedError, AotTuneError) as error:  # the tunes took long, so the others are raced anyway
                    left_out[place] = f"{place[0]}: {error}"
    rows = [judge(*place, choices, races[place]) for place, choices in chosen.items() if place not in left_out]
    return rows, list(left_out.values())


def table(rows: Sequence[Row], tunes: Sequence[Tuned], budget: float, left_out: Sequence[str] = ()) -> list[str]:
    """Markdown: a line for each problem, and a summary."""
    lines = [
        "| problem | choices of the tunes | best µs | worst choice | same or tie |",
        "| :-- | :-- | --: | --: | :-- |",
    ]
    for row in rows:
        names = ", ".join(f"{row.choices.count(n)} x {n}" for n in dict.fromkeys(row.choices))
        worst = max(row.over_best[c] for c in row.choices)
        verdict = "yes" if row.steady else "**no**"
        best = min(row.ns.values()) / 1e3
        lines.append(f"| {row.operator} {row.problem} | {names} | {best:.2f} | +{100 * worst:.2f} % | {verdict} |")
    regrets = [row.over_best[c] for row in rows for c in row.choices]
    took = ", ".join(f"{t.seconds:.1f}" for t in tunes)
    missing = [f"{len(row.choices)} of {len(tunes)} at {row.problem}" for row in rows if len(row.choices) < len(tunes)]
    mean, most = 100 * statistics.fmean(regrets), 100 * max(regrets)
    lines += [
        "",
        f"* {sum(r.steady for r in rows)} of {len(rows)} problems: the same choice in all {len(tunes)} tunes, or ties",
        f"* choices are {mean:.2f} % slower than the best one of their problem in the mean, {most:.2f} % at most",
        f"* tunes took {took} s of a budget of {budget:g} s each",
        *([f"* not chosen by every tune: {'; '.join(missing)}"] if missing else []),
        *(f"* not raced, and not counted: {why}" for why in left_out),
    ]
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunes", type=int, default=5, help="how often to tune; default 5")
    parser.add_argument("--problems", type=int, default=12, help="problems in all; default 12")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each tune; default 60")
    parser.add_argument("--races", type=int, default=3, help="long races where choices differ; default 3")
    parser.add_argument("--family", default="cuda", help="of the device to tune for: cuda (default) or cpu")
    parser.add_argument("--operators", type=lambda text: text.split(","), default=[], help="names; default all")
    parser.add_argument("--warm", action="store_true", help="tune once without a budget before, to compile everything")
    parser.add_argument("--cache", type=Path, help="a cache folder with compiled objects; ITS MEASUREMENTS ARE DELETED")
    parser.add_argument("--logs", type=Path, help="a folder for what each build printed")
    parser.add_argument("--json", type=Path, help="write rows and times there")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        tunes, rows, left_out = repeat(Path(folder), options, sys.stderr)
    if not rows:
        raise SystemExit(f"benchmarks: no choice was raced: {'; '.join(left_out) or 'the tunes chose nothing'}")
    lines = table(rows, tunes, options.budget, left_out)
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")
    if options.json:
        told = {"seconds": [t.seconds for t in tunes], "rows": [asdict(r) for r in rows], "left out": left_out}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
