#!/usr/bin/env python3
"""Calls on shapes that no build drew, on a CPU: the installed library's dispatch, numpy, torch, each kept variant.

    benchmarks/unseen_cpu.py [--operators gemm batched_gemm flash_attention softmax rms_norm layer_norm silu_mul]
                             [--count 60] [--seconds 170] [--seed 1] [--rounds 5] [--threads 2] [--variants]
                             [--json FILE]

Shapes are drawn as for GPUs (`unseen.py`), but smaller. They are in f32. In two of three products, b is by columns, as
weights are. Of attention there are prompts, few queries and one, and of rows every other width may be odd. numpy and
torch compute in each way that the operator declares as a baseline, else numpy computes its definition; the fastest
counts. Every library has a process with as many threads. Only one computes at a time, on the same buffers at each call.
Turns change their order, and are long beside the time for which threads of the turn before still spin. Operators take
turns, so `--seconds` cuts them evenly. With `--variants`, each kept variant takes part in the rounds, forced by name in
its own process. This shows how much faster the best of them would have been. Each regime of calls is also listed by
itself.

On a busy machine, `chrt -f 10` before the command gives it the cores first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from machine import NOISE, Usage, describe
from native import installed
from race import Entry, Fleet, WrongResultError
from stats import Timing, best, markdown
from tasks import installed_operator
from unseen import FORMS
from unseen_shapes import (
    ON_CPU,
    Shape,
    any_row_shapes,
    attentions,
    batches,
    called,
    products,
    ratio,
    row_shapes,
    tell,
    timings,
    turns,
    variants_of,
)

from aot_tune.spec.regimes import regime_of

_OURS = "aot_tune"
_BY_COLUMNS = 2 / 3
_MOST_ELEMENTS, _MOST_WORK, _MOST_PAIRS, _MOST_BYTES = 2**22, 2**30, 2**29, 2**25
"""Limits of R * D of rows, of B * M * N * K of batches, of B * H * M * N * D of attention, and of its keys' bytes."""
_FAR = 5.0
"""numpy and torch race no further if they take so many times the least time in the first round."""


def shapes_of(name: str, count: int, seed: int) -> list[Shape]:
    """Shapes of an operator."""
    draw = random.Random(f"unseen layouts {seed}")
    if name == "gemm":
        orders = {True: ("b:10",), False: ()}
        return [(*shape, *orders[draw.random() < _BY_COLUMNS]) for shape in products(count, seed, ON_CPU)]
    if name == "batched_gemm":
        return batches(count, seed, _MOST_WORK)
    if name == "flash_attention":
        each, widths = -(-count // 3), installed_operator(name).values["D"]
        forms = (attentions(each, seed, f, widths, _MOST_PAIRS, _MOST_BYTES) for f in FORMS[name])
    else:
        forms = (rows(-(-count // 2), seed, _MOST_ELEMENTS) for rows in (row_shapes, any_row_shapes))
    return turns(forms)[:count]


class Race:
    """The workers of a run. `forced` are names of variants, by operator."""

    def __init__(self, fleet: Fleet, others: Sequence[str], forced: Mapping[str, Sequence[str]]) -> None:
        self._fleet, self._others, self._forced = fleet, tuple(others), forced

    def run(self, name: str, shape: Shape) -> dict[str, Any]:
        """One shape: times by round, or what went wrong with it."""
        operator, forced = installed_operator(name), self._forced.get(name, ())
        given = called(operator, shape, "f32", FORMS[name].get("plain", {}))
        about = {"shape": list(shape), "regime": regime_of(operator, operator.facts(given))}
        request = {"kind": "operator", "operator": name, "copies": 1, "key": "same"}
        request["problem"] = msgspec.to_builtins(given)
        names = (_OURS, *self._others, *forced)
        try:
            replies = self._fleet.prepare(dict.fromkeys(names, request), may_refuse=forced)
            entries: list[Entry] = [(n, "same", way) for n, reply in replies.items() for way in reply["ways"]]
            times = dict(zip(entries, self._fleet.race(entries, _FAR), strict=True))
        except WrongResultError as error:
            return {**about, "error": str(error)}
        finally:
            self._fleet.drop(names)
        us = {way: _us(t) for (n, _, way), t in times.items() if n in self._others}
        variants = {n: t.median / 1e3 for (n, _, _), t in times.items() if n in forced}
        ours = _us(times[_OURS, "same", _OURS])
        return {**about, "us": {"ours": ours, **us}, "variants": variants, **replies[_OURS]["facts"]}


def _us(timing: Timing) -> list[float]:
    return [ns / 1e3 for ns in timing.rounds]


def line_of(name: str, row: Mapping[str, Any]) -> str:
    """A line on a shape: medians and half their interquartile range, and what our call ran."""
    shape = f"{name} {' '.join(map(str, row['shape']))}"
    if "error" in row:
        return f"{shape}: {row['error']}"
    ours, others = timings(row)
    times = [f"{t.name} {t.median:.1f} us ± {100 * t.spread:.1f} %" for t in (ours, *others)]
    line = f"{shape}: {', '.join(times)}; {ratio(row)[0]:.2f} x {best(others).name}; {row['variant']}"
    if row["variants"]:
        least, us = min(row["variants"].items(), key=lambda item: item[1])
        line += f"; best of {len(row['variants'])} is {least}, {us:.1f} us"
    return line + (", tuned" if row["tuned"] else "")


def table_of(told: Sequence[Mapping[str, Any]]) -> str:
    """All lines as a table for people."""
    heads = ("calls", "shapes", "mean", "below 0.90", "worst", "regret", "p95")
    lines = []
    for line in told:
        if line["worst"] is not None:
            least, shape = line["worst"]
            means = f"{line['geometric_mean']:.2f}", str(round(line["below_0.90"] * line["shapes"]))
            regret = ["" if (r := line[f"regret_{of}"]) is None else f"{r:.1%}" for of in ("mean", "p95")]
            worst = f"{least:.2f}, {' '.join(map(str, shape))}"
            lines.append((line["name"], str(line["shapes"]), *means, worst, *regret))
    return markdown(heads, 1, lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--operators", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--count", type=int, default=60, help="of shapes of each operator")
    parser.add_argument("--seconds", type=float, default=170.0, help="after which no more shapes are begun")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if min(options.count, options.rounds, options.threads) < 1:
        parser.error("--count, --rounds and --threads are at least 1")
    return options


def main() -> int:
    """Run the command."""
    options = _arguments()
    installed(("numpy",))
    from aot_tune import ops

    others = [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is not None]
    if "torch" not in others:
        print("torch is not installed: only numpy counts", flush=True)
    kept = ops.manifest() if options.variants else None
    forced = {name: variants_of(kept, name, "f32", "cpu") for name in options.operators if kept}
    of_variants = {variant: f"{name}:{variant}" for name, variants in forced.items() for variant in variants}
    workers = {name: name for name in (_OURS, *others)} | dict.fromkeys(of_variants, _OURS)
    about, usage, start = describe(options.threads), Usage(), time.monotonic()
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in options.operators}
    shapes = turns([(name, s) for s in shapes_of(name, options.count, options.seed)] for name in options.operators)
    with Fleet(
        workers, threads=options.threads, rounds=options.rounds, budget_ms=20.0, limit_s=1.0, forced=of_variants
    ) as fleet:
        race = Race(fleet, others, forced)
        for name, shape in shapes:
            if time.monotonic() < start + options.seconds:
                rows[name].append(race.run(name, shape))
                print(line_of(name, rows[name][-1]), flush=True)
    shares = usage.shares()
    told = []
    for name, some in rows.items():
        least = {tuple(r["shape"]): min(r["variants"].values()) for r in some if r.get("variants")}
        told += tell(name, some, least)
    spreads = [timings(r)[0].spread for some in rows.values() for r in some if "us" in r] or [math.nan]
    seconds = time.monotonic() - start
    print(table_of(told))
    print(
        f"{about['cpu']}, {options.threads} threads, numpy {about['numpy']}, torch {about['torch'] or 'absent'}; "
        f"our spread {100 * statistics.median(spreads):.1f} % in the median; {seconds:.0f} s, of the processor time "
        f"{100 * shares['others']:.1f} % went to other processes and {100 * shares['stolen']:.1f} % was stolen"
        + ("" if shares["others"] + shares["stolen"] < NOISE else ": the machine was not quiet, measure again")
    )
    if options.json:
        kept_rows = {"about": about, "seconds": seconds, "shares": shares, "told": told, "rows": rows}
        options.json.write_text(json.dumps(kept_rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
