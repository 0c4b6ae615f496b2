#!/usr/bin/env python3
"""Products on shapes that no build drew, on a CPU: the installed library's dispatch, numpy, torch, each kept variant.

    benchmarks/unseen_cpu.py [--count 60] [--seed 1] [--rounds 5] [--threads 2] [--variants] [--json FILE]

Shapes are drawn as for GPUs (`unseen_shapes.py`), but for smaller layers and 1 to 2048 rows. They are in f32. In two of
three, b is by columns, as weights are. Every library has a process with as many threads. Only one computes at a time,
in rounds of changing order, on the same buffers at each call. The faster of numpy and torch counts; without torch it is
numpy. With `--variants`, each kept variant takes part in the rounds, forced by name in its own process. This shows how
much faster the best of them would have been. Each regime of calls is also listed by itself.
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

from machine import NOISE, Usage, describe
from native import installed
from race import Entry, Fleet, WrongResultError
from stats import Timing, best
from unseen_shapes import ON_CPU, Shape, products, ratio, tell, timings, variants_of

__all__ = ["Race", "fastest_of", "given_shapes", "line_of", "row_of"]

_OURS = "aot_tune"
_BY_COLUMNS = 2 / 3


def given_shapes(count: int, seed: int) -> list[tuple[Shape, bool]]:
    """M, N and K of `count` products, and whether b is by columns."""
    draw = random.Random(f"unseen layouts {seed}")
    return [(shape, draw.random() < _BY_COLUMNS) for shape in products(count, seed, ON_CPU)]


class Race:
    """The workers of a run. `forced` are names of variants."""

    def __init__(self, fleet: Fleet, others: Sequence[str], forced: Sequence[str] = ()) -> None:
        self._fleet, self._others, self._forced = fleet, tuple(others), tuple(forced)

    def run(self, shape: Shape, by_columns: bool) -> dict[str, Any]:
        """One shape: times by round, or what went wrong with it."""
        plain: dict[str, Any] = {"dims": dict(zip("MNK", shape, strict=True))}
        plain |= {"order": {"b": [1, 0]}} if by_columns else {}
        request = {"kind": "operator", "operator": "gemm", "problem": plain, "copies": 1, "key": "same"}
        names = (_OURS, *self._others, *self._forced)
        about = {"shape": list(shape), "by_columns": by_columns}
        try:
            replies = self._fleet.prepare(dict.fromkeys(names, request), may_refuse=self._forced)
            taking_part = [n for n in names if n in replies]
            entries: list[Entry] = [(n, "same", _OURS if n in self._forced else n) for n in taking_part]
            found = dict(zip(taking_part, self._fleet.race(entries), strict=True))
        except WrongResultError as error:
            return {**about, "error": str(error)}
        finally:
            self._fleet.drop(names)
        return row_of(about, found, self._others, replies[_OURS]["facts"])


def row_of(
    about: Mapping[str, Any], found: Mapping[str, Timing], others: Sequence[str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The measurements of a shape, in us: by round for us and the other libraries, and medians of forced variants."""
    us = {"ours" if name == _OURS else name: [ns / 1e3 for ns in found[name].rounds] for name in (_OURS, *others)}
    forced = {name: timing.median / 1e3 for name, timing in found.items() if name not in (_OURS, *others)}
    return {**about, "us": us, "variants": forced, **facts}


def fastest_of(rows: Sequence[Mapping[str, Any]]) -> dict[Shape, float]:
    """The time of the fastest forced variant by shape, in us, if there was one."""
    return {tuple(r["shape"]): min(r["variants"].values()) for r in rows if r.get("variants")}


def line_of(row: Mapping[str, Any]) -> str:
    """A line on a shape: medians and half their interquartile range, and what our call ran."""
    shape = " x ".join(map(str, row["shape"])) + (", b by columns" if row["by_columns"] else "")
    if "error" in row:
        return f"{shape}: {row['error']}"
    ours, others = timings(row)
    times = [f"{t.name} {t.median:.1f} us ± {100 * t.spread:.1f} %" for t in (ours, *others)]
    line = f"{shape}: {', '.join(times)}; {ratio(row)[0]:.2f} x {best(others).name}; {row['variant']}"
    if row["variants"]:
        name, us = min(row["variants"].items(), key=lambda item: item[1])
        line += f"; best of {len(row['variants'])} is {name}, {us:.1f} us"
    return line + (", tuned" if row["tuned"] else "")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=60)
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
    from aot_tune.spec import problem
    from aot_tune.spec.load_operators import bundled_templates, load_operator
    from aot_tune.spec.regimes import regime_of

    gemm = load_operator(bundled_templates() / "gemm")
    others = [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is not None]
    if "torch" not in others:
        print("torch is not installed: only numpy counts", flush=True)
    forced = variants_of(ops.manifest(), "gemm", "f32", "cpu") if options.variants else []
    workers = {name: name for name in (_OURS, *others)} | dict.fromkeys(forced, _OURS)
    about, usage, start = describe(options.threads), Usage(), time.monotonic()
    rows = []
    with Fleet(
        workers,
        threads=options.threads,
        rounds=options.rounds,
        budget_ms=20.0,
        limit_s=2.5 if not forced else 10.0,
        forced={name: f"gemm:{name}" for name in forced},
    ) as fleet:
        race = Race(fleet, others, forced)
        for shape, by_columns in given_shapes(options.count, options.seed):
            regime = regime_of(gemm, gemm.facts(problem(**dict(zip("MNK", shape, strict=True)))))
            rows.append({**race.run(shape, by_columns), "regime": regime})
            print(line_of(rows[-1]), flush=True)
    shares = usage.shares()
    best_us = fastest_of(rows)
    told = tell("gemm f32 on a CPU", rows, best_us)
    spreads = [timings(r)[0].spread for r in rows if "us" in r] or [math.nan]
    seconds = time.monotonic() - start
    print(
        f"{about['cpu']}, {options.threads} threads, numpy {about['numpy']}, torch {about['torch'] or 'absent'}; "
        f"our spread {100 * statistics.median(spreads):.1f} % in the median; {seconds:.0f} s, of the processor time "
        f"{100 * shares['others']:.1f} % went to other processes and {100 * shares['stolen']:.1f} % was stolen"
        + ("" if shares["others"] + shares["stolen"] < NOISE else ": the machine was not quiet, measure again")
    )
    if options.json:
        kept = {"about": about, "seconds": seconds, "shares": shares, "told": told, "rows": rows}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
