"""How many more candidates a minute several GPUs measure than one, with everything compiled before.

    python benchmarks/devices.py --rounds 3 --json devices.json

The same library of the bundled operators is tuned from no measurement on the first GPU alone, on the first two, four
and so on up to all, in rounds of changing order. What counts is the time in which the devices were at work, as the
build prints it: objects are in the cache, so that nothing waits for compilers. Each device has its workers start, and
the last jobs leave some idle: the more problems, the less that counts.
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
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from projects import forget_measurements, tune, write_templates

from aot_tune.bench.devices.cpu import usable_cores
from aot_tune.bench.devices.family import devices as devices_of

__all__ = ["main", "rate"]

_MADE = re.compile(r"^aot_tune: cuda-\S+: (\d+) measurements made", re.MULTILINE)
_WHERE = re.compile(r"^aot_tune: cuda-\S+: (where the measuring went: .*)", re.MULTILINE)
_TOOK = re.compile(r"^aot_tune: cuda-\S+: compiling took \S+ s, measuring (\S+) s", re.MULTILINE)


def rate(log: str) -> float:
    """Measurements per minute of the devices' work, from what a build printed.

    Raises:
        SystemExit: when the build measured nothing on a GPU.
    """
    made, took = _MADE.findall(log), _TOOK.findall(log)
    seconds = sum(map(float, took))
    if not made or not seconds:
        raise SystemExit(f"benchmarks: the build measured nothing on a GPU:\n{log[-2000:]}")
    return 60 * sum(map(int, made)) / seconds


def _counts(most: int) -> list[int]:
    """1, 2, 4 and so on, and all."""
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})


def compare(options: argparse.Namespace, folder: Path, say: TextIO) -> dict[int, list[float]]:
    """Measurements per minute by the number of GPUs, round by round."""
    units = [d.unit for d in devices_of("cuda", usable_cores())]
    if not units:
        raise SystemExit("benchmarks: there is no GPU here")
    write_templates(folder / "templates", "cuda", options.problems, options.operators)
    cache = options.cache or folder / "cache"

    def once(count: int) -> float:
        forget_measurements(cache)
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(units[:count])}
        log = tune(folder / "plan", folder / "templates", "cuda", cache, env=shown).log
        found = rate(log)
        print(f"{count} GPUs: {found:.0f} measurements a minute; {', '.join(_WHERE.findall(log))}", file=say)
        return found

    once(len(units))  # compiles
    counts = sorted({min(c, len(units)) for c in options.counts} | {1}) if options.counts else _counts(len(units))
    order, found = random.Random(0), {count: list[float]() for count in counts}
    for _ in range(options.rounds):
        for count in order.sample(list(found), len(found)):
            found[count].append(once(count))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=96, help="problems in all; default 96")
    parser.add_argument("--counts", type=int, nargs="*", help="numbers of GPUs beside one; default 2, 4, 8 ... and all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; default 3")
    parser.add_argument("--operators", type=lambda text: text.split(","), default=[], help="names; default all")
    parser.add_argument("--cache", type=Path, help="a cache folder with compiled objects; ITS MEASUREMENTS ARE DELETED")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = compare(options, Path(folder), sys.stderr)
    print(f"{max(found)} GPUs, {os.cpu_count()} cores")
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
