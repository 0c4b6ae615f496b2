"""Measures the installed aot_tune on the CPU, side by side with numpy, torch and plain copies.

Usage: python benchmarks/cpu.py [--quick] [--rounds N] [--operators gemm,softmax] [--threads N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import NOISE, Usage, describe
from measure import Limits, Row, run_gemm, run_rows
from native import build_machine, installed
from race import Fleet
from stats import Timing, geometric_mean
from tables import render_rows, render_targets, targets
from tasks import ROW_OPERATORS, Task, gemm_tasks, last_cache_bytes, row_tasks

__all__ = ["main"]

_ALL = ("gemm", *ROW_OPERATORS)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, help="turns of each library at each problem (default 9; 3 with --quick)")
    parser.add_argument("--operators", default=",".join(_ALL), help=f"some of {', '.join(_ALL)}; separated by commas")
    parser.add_argument("--threads", type=int, default=2, help="threads of each library (default 2)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns: a first look, not a result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to a file")
    options = parser.parse_args()
    options.operators = options.operators.split(",")
    unknown = sorted(set(options.operators) - set(_ALL))
    if unknown:
        parser.error(f"unknown operators: {', '.join(unknown)}; there are {', '.join(_ALL)}")
    options.rounds = options.rounds if options.rounds is not None else 3 if options.quick else 9
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    return options


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    cache = last_cache_bytes()
    machine = str(build_machine(folder))
    wanted = options.operators
    names = {"aot_tune": "aot_tune", "numpy": "numpy", "torch": "torch", "copy": "copy"}
    results: dict[str, Any] = {"gemm": [], "operators": {}}
    turns = {"budget_ms": 8.0, "limit_s": 0.8} if options.quick else {"budget_ms": 30.0, "limit_s": 4.0}
    with Fleet(names, threads=options.threads, rounds=options.rounds, **turns) as fleet:
        ask = {"do": "limits", "machine": machine, "bytes": 8 * cache}
        limits = [fleet.ask("copy", ask)]
        for name in (n for n in ROW_OPERATORS if n in wanted):
            results["operators"][name] = run_rows(fleet, row_tasks(name, cache), machine, _say)
            limits.append(fleet.ask("copy", ask))
        if "gemm" in wanted:
            results["gemm"] = run_gemm(fleet, gemm_tasks(cache), _say)
            limits.append(fleet.ask("copy", ask))
    results["limits"] = Limits(**{k: max(found[k] for found in limits) for k in limits[0]})
    return results


def _head(
    how: str, about: dict[str, Any], limits: Limits, rows: list[Row], shares: dict[str, float], seconds: float
) -> str:
    tuned = [r for r in rows if r.task.workload and (r.fused_facts or r.facts)["tuned"]]
    workload = [r for r in rows if r.task.workload]
    missing = "not reported by the system"
    noise = "" if shares["others"] + shares["stolen"] < NOISE else "\n* **the machine was not quiet: measure again**"
    return f"""\
* {about["date"]}, {about["cpu"]} (family, model, stepping: {about["family, model, stepping"]}; {about["caches"]}), \
{about["cores"]} cores, {about["threads"]} threads for each library
* governor: {about["governor"] or missing}; clock in MHz: {about["mhz"] or missing}; load before the run: \
{about["load"]:.2f}
* numpy {about["numpy"]}, torch {about["torch"]}, aot_tune {about["aot_tune"]} (mode {about["mode"]}; variants for \
{", ".join(about["targets"])}; {len(tuned)} of {len(workload)} problems of the workload tuned)
* limits measured in this run, beyond the caches: {limits.gflops:.0f} GFLOP/s of multiply-adds, {limits.read:.1f} GB/s \
of reads, {limits.copy:.1f} GB/s of copies (read and written bytes together)
* {how}; the run took {seconds:.0f} s; of the processor time, {100 * shares["others"]:.1f} % went to other processes \
and {100 * shares["stolen"]:.1f} % was stolen by the host{noise}"""


_NOTES = """\
Times are µs per call: the median of the rounds ± half their interquartile range (none for a single round of long
calls). `ratio`: our speed over that of the faster of numpy and torch. `cold b`: the same with b in no cache. `+
epilogue`: our product with its epilogue against their plain one. `of limit`: share of peak FLOP/s, or of the
bandwidth of reads if that is the limit. `copy`: the fastest copy of as many bytes as the problem must move. `of
copy`: our bandwidth over the copy's. `rate`: FLOPs, or compulsory bytes, over our time. `*`: not in the workload."""


def _plain(value: Any) -> Any:
    """Records in the form of JSON, with the figures of the tables."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    return _plain(_fields(value))


def _fields(value: Any) -> dict[str, Any] | str:
    match value:
        case Row():
            derived = {k: getattr(value, k) for k in ("ratio", "cold_ratio", "fused_ratio", "copy_ratio")}
            return {"problem": value.task.text, **derived, **vars(value)}
        case Timing():
            return {"name": value.name, "median_ns": value.median, "spread": value.spread, "rounds_ns": value.rounds}
        case Task() | Limits():
            return vars(value)
    return str(value.id)  # a problem


def main() -> None:
    """Run, print the tables, and write the file if one is requested."""
    options = _arguments()
    installed()
    about = describe(options.threads)
    usage, start = Usage(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aot_tune_benchmark_") as folder:
        results = _run(options, Path(folder))
    seconds = time.monotonic() - start
    shares = usage.shares()
    how = f"{options.rounds} rounds{', quick: a look, not a result' if options.quick else ''}"
    rows = [*results["gemm"], *(r for found in results["operators"].values() for r in found)]
    found = targets(results["gemm"], results["operators"])
    print(_head(how, about, results["limits"], rows, shares, seconds))
    print("\n" + render_targets(found))
    print("\n" + render_rows(rows, results["limits"]))
    print("\n" + _NOTES)
    if options.json is not None:
        everything = {"about": about, "seconds": seconds, "shares": shares, **results}
        everything["targets"] = [asdict(t) for t in found]
        everything["means"] = {
            name: geometric_mean(r.ratio for r in chosen)
            for name, chosen in (("gemm", results["gemm"]), *results["operators"].items()) if chosen
        }  # fmt: skip
        options.json.write_text(json.dumps(_plain(everything), indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
