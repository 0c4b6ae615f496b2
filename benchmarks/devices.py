"""How many more candidates per minute several GPUs measure than one, if everything is compiled already.

    python benchmarks/devices.py --json devices.json     # on a machine with several GPUs, in less than ten minutes
    python benchmarks/devices.py --stub                  # SIMULATED, anywhere

The same library of the bundled operators is tuned without earlier measurements: on the first GPU, on the first two,
four and so on, up to all, in rounds of changing order. What counts is the time in which the devices were at work, as
the build prints it. All objects are in the cache, so nothing waits for compilers. The script also shows the whole time
of the tune, with the start of workers and their probe, and what each device did. The last jobs leave some devices idle.
With more problems, that matters less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from projects import forget_measurements, plan, tune, write_templates

from aot_tune.bench.devices.cpu import usable_cores
from aot_tune.bench.devices.family import devices as devices_of

__all__ = ["main", "rate", "told"]

_MADE = re.compile(r"^aot_tune: cuda-\S+: (\d+) measurements made", re.MULTILINE)
_WHERE = re.compile(r"^aot_tune: cuda-\S+: (where the measuring went: .*)", re.MULTILINE)
_DEVICE = re.compile(r"^aot_tune: cuda-\S+: (\S+ was at work for .*)", re.MULTILINE)
_WHOLE = re.compile(r"^aot_tune: cuda-\S+: all of it took (\S+) s", re.MULTILINE)
_TOOK = re.compile(r"^aot_tune: cuda-\S+: compiling took \S+ s, measuring (\S+) s", re.MULTILINE)


def rate(log: str) -> float:
    """Measurements per minute of the devices' work, from the output of a build.

    Raises:
        SystemExit: when the build measured nothing on a GPU.
    """
    made, took = _MADE.findall(log), _TOOK.findall(log)
    seconds = sum(map(float, took))
    if not made or not seconds:
        raise SystemExit(f"benchmarks: the build measured nothing on a GPU:\n{log[-2000:]}")
    return 60 * sum(map(int, made)) / seconds


def told(count: int, log: str, seconds: float) -> str:
    """The result of a tune on so many GPUs: its rate, its whole time, and what each device did."""
    head = (
        f"{count} GPUs: {rate(log):.0f} measurements a minute, {seconds:.0f} s in all; {', '.join(_WHERE.findall(log))}"
    )
    return "\n".join((head, *(f"    {line}" for line in _DEVICE.findall(log))))


def _counts(most: int) -> list[int]:
    """1, 2, 4 and so on, and the number of all GPUs."""
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})


def compare(options: argparse.Namespace, folder: Path, say: TextIO) -> dict[int, list[float]]:
    """Measurements per minute by the number of GPUs, round by round."""
    units = [d.unit for d in devices_of("cuda", usable_cores())]
    if not units:
        raise SystemExit("benchmarks: there is no GPU here; --stub simulates some")
    write_templates(folder / "templates", "cuda", options.problems, options.operators)
    cache = options.cache or folder / "cache"

    def once(count: int) -> tuple[str, float]:
        forget_measurements(cache)
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(units[:count])}
        tuned = tune(folder / "plan", folder / "templates", "cuda", cache, env=shown)
        return tuned.log, tuned.seconds

    begun = time.monotonic()
    once(len(units))  # the first tune compiles
    counts = sorted({min(c, len(units)) for c in options.counts} | {1}) if options.counts else _counts(len(units))
    return _in_rounds(counts, options.rounds, begun + options.seconds, once, say)


def simulate(options: argparse.Namespace, folder: Path, say: TextIO) -> dict[int, list[float]]:
    """The same for devices that only take time."""
    from stub_devices import Costs, tune_on_stubs

    write_templates(folder / "templates", "cuda", options.problems, options.operators)
    plan(
        folder / "plan", folder / "templates", "cuda-sm_90a", folder / "cache", MODE="auto", EXCLUDE_BACKENDS="cublaslt"
    )

    def once(count: int) -> tuple[str, float]:
        log = tune_on_stubs(folder / "plan", count, Costs())
        return log, float(_WHOLE.findall(log)[0])

    counts = sorted({*options.counts, 1}) if options.counts else _counts(4)
    return _in_rounds(counts, options.rounds, time.monotonic() + options.seconds, once, say)


def _in_rounds(
    counts: Sequence[int], rounds: int, end: float, once: Callable[[int], tuple[str, float]], say: TextIO
) -> dict[int, list[float]]:
    order, found, longest = random.Random(0), {count: list[float]() for count in counts}, 0.0
    for number in range(rounds):
        begun = time.monotonic()
        if begun + longest > end:
            print(f"{rounds - number} rounds are left out: there is no time for them", file=say)
            break
        for count in order.sample(counts, len(counts)):
            log, seconds = once(count)
            found[count].append(rate(log))
            print(told(count, log, seconds), file=say)
        longest = max(longest, time.monotonic() - begun)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=72, help="problems in all; default 72")
    parser.add_argument("--counts", type=int, nargs="*", help="numbers of GPUs beside one; default 2, 4, 8 ... and all")
    parser.add_argument("--rounds", type=int, default=1, help="rounds; default 1")
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="rounds that would end later are left out, except for the first"
    )
    parser.add_argument(
        "--stub", action="store_true", help="SIMULATE devices, with the times that an H100 took for requests"
    )
    parser.add_argument("--operators", type=lambda text: text.split(","), default=[], help="names; default all")
    parser.add_argument("--cache", type=Path, help="a cache folder with compiled objects; ITS MEASUREMENTS ARE DELETED")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = (simulate if options.stub else compare)(options, Path(folder), sys.stderr)
    print(f"{'SIMULATED: ' * options.stub}{max(found)} GPUs, {os.cpu_count()} cores")
    one = statistics.median(found[1])
    for count, rates in found.items():
        middle = statistics.median(rates)
        spread = f"from {min(rates):.0f} to {max(rates):.0f}"
        print(f"{count} GPUs: {middle:.0f} measurements a minute ({spread}), {middle / one:.2f} x one")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
