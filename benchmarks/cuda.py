"""Measures the installed aot_tune on an NVIDIA GPU, side by side with torch (eager, max-autotune) and plain copies.

Usage: python benchmarks/cuda.py [--seconds S] [--rounds N] [--operators gemm,softmax] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpu_tables import VENDOR_WORKSPACE, Result, Verdict, render_results, render_verdicts, verdicts
from gpu_tasks import PRODUCTS, ROWS, Task, chosen_to_compile, mix, tasks

__all__ = ["main"]

_EAGER, _COMPILED = "eager", "max-autotune"
_SHARES = {_EAGER: 0.6, _COMPILED: 0.4}
"""Share of the seconds for each pass, in addition to what the first one leaves."""

_STUCK = 240.0
"""Seconds without a line after which a worker counts as stuck. max-autotune may compile for long."""


@dataclass
class Pass:
    """The work of one process, or of its successors if it died."""

    name: str
    tasks: list[Task]
    seconds: float = 0
    workspace: int | None = None
    results: list[Result] = field(default_factory=list)
    raw: list[dict[str, Any]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    copy_speeds: list[float] = field(default_factory=list)


def parse_arguments() -> argparse.Namespace:
    every = (*PRODUCTS, *ROWS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=480, help="for everything (default 480)")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each contender at each problem (default 11)")
    parser.add_argument("--operators", default=",".join(every), help=f"some of {', '.join(every)}; separated by commas")
    parser.add_argument("--compile-problems", type=int, default=4, metavar="N",
                        help="fused products, and as many row problems, for max-autotune (default 4)")  # fmt: skip
    parser.add_argument("--compile-after", type=int, default=0, metavar="N",
                        help="leave out the first N of each, which an earlier run had (default 0)")  # fmt: skip
    parser.add_argument(
        "--no-eager-pass", action="store_true", help="skip the pass of all problems, without max-autotune"
    )
    parser.add_argument("--workspace", type=int, metavar="MIB",
                        help="workspace of the libraries (default: their own; torch gives cuBLAS 32)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to a file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to a file")
    options = parser.parse_args()
    options.operators = options.operators.split(",")
    unknown = sorted(set(options.operators) - set(every))
    if unknown:
        parser.error(f"unknown operators: {', '.join(unknown)}; there are {', '.join(every)}")
    if options.workspace is not None and options.workspace <= 0:
        parser.error("--workspace is more than 0")
    if min(options.compile_problems, options.compile_after) < 0:
        parser.error("--compile-problems and --compile-after are at least 0")
    if options.rounds < 3 or options.seconds <= 0:
        parser.error("--rounds is at least 3, for an interval; --seconds is more than 0")
    return options


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def make_passes(options: argparse.Namespace) -> list[Pass]:
    found = tasks(options.operators)
    if not found:
        raise SystemExit("benchmarks: the installed package has no operator with a workload for CUDA")
    compiled = chosen_to_compile(found, options.compile_problems, options.compile_after)
    passes = [] if options.no_eager_pass else [Pass(_EAGER, mix(found))]
    passes += [Pass(_COMPILED, compiled)] if compiled else []
    if not passes:
        raise SystemExit(
            "benchmarks: nothing to measure: --no-eager-pass leaves only max-autotune's pass, which has no tasks"
        )
    total = sum(_SHARES[p.name] for p in passes)
    for one in passes:
        one.seconds = options.seconds * _SHARES[one.name] / total
        one.workspace = None if options.workspace is None else options.workspace << 20
    return passes


def run_pass(one: Pass, rounds: int) -> None:
    """Run the tasks in a process. If it dies at a task, another process continues with the next one."""
    end = time.monotonic() + one.seconds
    left = list(one.tasks)
    while left and time.monotonic() < end:
        began = run_worker(one, left, end - time.monotonic(), rounds)
        if began is None:
            return
        culprit = next((t for t in left if t.key == began), left[0])
        one.results.append(Result(culprit, error="the process died or got stuck here"))
        done = {r.task.key for r in one.results}
        left = [t for t in left if t.key not in done]


def run_worker(one: Pass, left: Sequence[Task], seconds: float, rounds: int) -> str | None:
    """Run one process. Returns the key of the task at which it died, or None if it finished."""
    plan: dict[str, Any] = {
        "seconds": seconds,
        "rounds": rounds,
        "compile": one.name == _COMPILED,
        "workspace": one.workspace,
    }
    plan |= {"tasks": [t.plain() for t in left]}
    argv = [sys.executable, str(Path(__file__).with_name("gpu_worker.py"))]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the process is gone
        process.stdin.write(json.dumps(plan))
        process.stdin.close()
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    by_key = {t.key: t for t in left}
    began, ended = "", False
    try:
        while line := lines.get(timeout=_STUCK):
            told = json.loads(line)
            match told.pop("event"):
                case "machine":
                    one.machine = one.machine or told
                    one.copy_speeds.append(told["copy_speed"])
                case "begin":
                    began = told["key"]
                case "result":
                    _keep(one, by_key[told["key"]], told)
                case "end":
                    one.copy_speeds.append(told["copy_speed"])
                    ended = True
    except queue.Empty:
        process.kill()
    process.wait()
    return None if ended else began


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _keep(one: Pass, task: Task, told: dict[str, Any]) -> None:
    result = Result(task, told.get("us", {}), told.get("facts", {}), told.get("error", ""))
    one.results.append(result)
    one.raw.append(told)
    if result.error:
        _say(f"{task.operator} {task.text} {task.mode}: {result.error}")
        return
    others = [n for n in result.us if n not in ("aot_tune", "empty")]
    ratios = ", ".join(f"{result.ratio(n):.3f} x {n}" for n in others)
    _say(f"{task.operator} {task.text} {task.mode}: {result.median('aot_tune'):.2f} us, {ratios}")


def _driver() -> dict[str, str]:
    names = ("driver_version", "clocks.max.sm", "power.limit", "mig.mode.current")
    argv = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"driver_version": f"not told: {error}"}
    return dict(zip(names, (w.strip() for w in done.stdout.splitlines()[0].split(",")), strict=False))


def _head(passes: Sequence[Pass], copy_speed: float, seconds: float, rounds: int) -> tuple[str, dict[str, Any]]:
    from aot_tune import ops

    machine = next((p.machine for p in passes if p.machine), {})
    manifest = ops.manifest()
    given = passes[0].workspace
    workspace = "their own" if given is None else f"{given >> 20} MiB"
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        **machine,
        **_driver(),
        "aot_tune": version("aot_tune"),
        "mode": manifest.get("mode"),
        "targets": sorted({v["target"] for o in manifest["operators"] for v in o["variants"]}),
        "copy_speed": copy_speed,
        "workspace": given,
        "rounds": rounds,
        "seconds": seconds,
    }
    counts = "; ".join(f"{p.name}: {len(p.results)} of {len(p.tasks)} problems" for p in passes)
    tuned = [r for r in passes[0].results if not r.error]
    text = f"""\
* {about["date"]}, {about.get("gpu")}, driver {about["driver_version"]}, torch {about.get("torch")} (CUDA \
{about.get("cuda")}, cuBLAS {about.get("cublas")}), aot_tune {about["aot_tune"]} (mode {about["mode"]}; variants for \
{", ".join(about["targets"])}; {sum(bool(r.facts.get("tuned")) for r in tuned)} of {len(tuned)} problems tuned)
* the fastest copy runs at {copy_speed / 1e12:.2f} TB/s, read and written bytes together; "empty" is \
{about.get("empty_kernel")}
* workspace of the libraries: {workspace}; torch gives cuBLAS {VENDOR_WORKSPACE >> 20} MiB on Hopper
* {counts}; {rounds} rounds; the run took {seconds:.0f} s; clocks at the start {machine.get("clocks")}"""
    return text, about


_NOTES = """\
Times are µs per call: medians of the rounds ± half their interquartile range, in CUDA graphs of at least 20 calls,
with cold weights. `x`: our speed over that of the contender to its left: the geometric mean of the paired rounds with
its 95 % interval. `copy, bound`: for row operators a copy of as many bytes; for products of at most 16 rows, the time
of an empty kernel + 1.5 µs + the bytes at 0.88 of a copy's speed. `of it`: that time over ours. `*`: this exact
problem is not in the tuned workload."""


def make_report(passes: Sequence[Pass], copy_speed: float) -> tuple[str, list[Verdict]]:
    found = verdicts(_merged([r for p in passes for r in p.results]), copy_speed)
    parts = [f"### Requirements\n\n{render_verdicts(found)}"]
    parts += [f"### Pass: {p.name}\n\n{render_results(p.results, copy_speed)}" for p in passes if p.results]
    return "\n\n".join([*parts, _NOTES]), found


def _merged(results: Sequence[Result]) -> list[Result]:
    """One result for each task. If both passes have one, the max-autotune pass counts: its rounds are complete."""
    latest: dict[str, Result] = {}
    for result in results:
        if result.task.key not in latest or not result.error:
            latest[result.task.key] = result
    return list(latest.values())


def _write(passes: Sequence[Pass], options: argparse.Namespace, seconds: float) -> tuple[str, list[Verdict]]:
    """Tables and requirements of all measurements so far, which go to the requested files."""
    speeds = [s for p in passes for s in p.copy_speeds]
    speeds += [r.task.bytes / r.median("copy") * 1e6 for p in passes for r in p.results if "copy" in r.us]
    copy_speed = max(speeds, default=math.nan)
    head, about = _head(passes, copy_speed, seconds, options.rounds)
    tables, found = make_report(passes, copy_speed)
    text = f"{head}\n\n{tables}\n"
    if options.markdown is not None:
        options.markdown.write_text(text)
    if options.json is not None:
        everything = {
            "about": about,
            "passes": {p.name: p.raw for p in passes},
            "problems": {p.name: [t.plain() for t in p.tasks] for p in passes},
            "requirements": [vars(v) for v in found],
        }
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return text, found


def main() -> None:
    """Run, print the tables, and write the requested files after each pass."""
    options = parse_arguments()
    began = time.monotonic()
    passes = make_passes(options)
    spare, text, found = 0.0, "", list[Verdict]()
    for one in passes:
        one.seconds += spare
        _say(f"pass: {one.name}, {len(one.tasks)} problems, {one.seconds:.0f} s")
        start = time.monotonic()
        run_pass(one, options.rounds)
        spare = max(one.seconds - (time.monotonic() - start), 0.0)
        text, found = _write(passes, options, time.monotonic() - began)
    print(text)
    for verdict in found:
        print(verdict.line)


if __name__ == "__main__":
    main()
