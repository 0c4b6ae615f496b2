#!/usr/bin/env python3
"""What a call of the installed operators adds to the C function, what torch.ops adds to that, and the import's time.

    benchmarks/calls.py [--rounds 25] [--count 3000] [--imports 15] [--device cpu] [--json FILE]

Calls pass three tensors of three columns (a product's second factor is a square), or of one element, from numpy and
from torch, with outputs. They are made through the module's function, and through the C function in a C loop in the
same process. Calls through torch.ops, by Python and by the shim, are those of torch_ops.py. All take turns, in rounds
of changing order. A figure is the median over the rounds of differences within one round, with quartiles. The import is
timed in new processes, from the first statement until the module is there. On other devices than the CPU, there are no
C calls. Nothing else should run.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from native import build_calls, installed
from overhead import OPERATORS, Overhead
from torch_ops import measure, rows_of

__all__: list[str] = []

_IMPORT = """
import sys, time
start = time.perf_counter_ns()
import aot_tune.ops
spent = time.perf_counter_ns() - start
print(spent / 1e6, [name for name in ("torch", "numpy", "msgspec") if name in sys.modules])
"""
SIZES = {3: "3 columns", 1: "one element"}
LIMITS = {"numpy": 350.0, "torch": 450.0, "shim": 1500.0, "import": 5.0}
"""The wanted limits: ns beyond C's call, ns beyond the module's function, and ms."""


@dataclass(frozen=True)
class Figure:
    """A median of rounds, its quartiles, and its wanted limit."""

    what: str
    unit: str
    rounds: tuple[float, ...]
    limit: float | None = None

    def row(self) -> str:
        """A line of a Markdown table."""
        low, median, high = statistics.quantiles(self.rounds, n=4)
        wanted = "" if self.limit is None else f"at most {self.limit:g} {self.unit}"
        verdict = "" if self.limit is None else "met" if median <= self.limit else "**missed**"
        digits = 0 if self.unit == "ns" else 2
        cells = (
            self.what,
            f"{median:.{digits}f} {self.unit}",
            f"{low:.{digits}f} to {high:.{digits}f}",
            wanted,
            verdict,
        )
        return f"| {' | '.join(cells)} |"


def differences(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    """How much more one takes than the other, round by round."""
    return tuple(a - b for a, b in zip(one, other, strict=True))


def beyond_c(rounds: int, count: int) -> list[Figure]:
    """Python's calls compared with C's, for arrays of numpy and tensors of torch."""
    with tempfile.TemporaryDirectory() as folder:
        library = str(build_calls(Path(folder), installed()))
        ways = {(f, n): Overhead(f, library, {}, n) for n in SIZES for f in ("numpy", "torch")}
        found: dict[tuple[str, int, str], list[float]] = {}
        for number in range(rounds + 1):
            order = list(ways)
            random.Random(number).shuffle(order)
            for way in order:
                for kind, spent in ways[way].measure(count).items():
                    if number > 0:  # the first warms up
                        found.setdefault((*way, kind), []).append(spent)
    figures = []
    for name, columns in itertools.product(OPERATORS, SIZES):
        what = f"`{name}`, {SIZES[columns]}"
        figures.append(Figure(f"{what}, from C", "ns", tuple(found["numpy", columns, f"{name} c"])))
        for framework in ("numpy", "torch"):
            one, other = (found[framework, columns, f"{name} {kind}"] for kind in ("python", "c"))
            figures.append(Figure(f"{what}, {framework}: more", "ns", differences(one, other), LIMITS[framework]))
    return figures


def through_torch(rounds: int, count: int, device: str) -> list[Figure]:
    """Calls through torch.ops compared with the module's functions, on the same tensors."""
    import torch

    from aot_tune import ops
    from aot_tune.torch import build_shim, register

    build_shim()
    spaces = {}
    for way in ("python", "shim"):
        register(ops, f"measured_{way}", shim=way == "shim")
        spaces[way] = getattr(torch.ops, f"measured_{way}")
    torch.set_num_threads(1)
    figures = []
    with torch.no_grad():
        for name, calls in rows_of(ops, spaces, device).items():
            if "shim" not in calls:
                continue
            times: Mapping[str, list[float]] = measure(calls, rounds, count)
            for way in spaces:
                more = tuple(1000 * d for d in differences(times[way], times["raw"]))
                limit = LIMITS["shim"] if way == "shim" and "gemm(a, b, out=)" not in name else None
                figures.append(Figure(f"`{name}` through {way}, more than the function", "ns", more, limit))
    return figures


def imports(count: int) -> Figure:
    """The import of the module in new processes.

    Raises:
        SystemExit: when it imports torch or numpy.
    """
    spent = []
    for _ in range(count):
        argv, elsewhere = [sys.executable, "-c", _IMPORT], tempfile.gettempdir()  # there is no source tree
        done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=elsewhere)
        text, _, also = done.stdout.strip().partition(" ")
        if also != "[]":
            raise SystemExit(f"importing aot_tune.ops imports {also}")
        spent.append(float(text))
    return Figure("`import aot_tune.ops`, without torch", "ms", tuple(spent), LIMITS["import"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--count", type=int, default=3000, help="calls in a turn")
    parser.add_argument("--imports", type=int, default=15, help="processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="every round")
    options = parser.parse_args(arguments)
    installed()
    steps: list[Callable[[], list[Figure]]] = [lambda: [imports(options.imports)]]
    if options.device == "cpu":
        steps.append(lambda: beyond_c(options.rounds, options.count))
    steps.append(lambda: through_torch(options.rounds, options.count, options.device))
    gc.disable()
    found = [figure for step in steps for figure in step()]
    print(f"Python {platform.python_version()}, {options.rounds} rounds of {options.count} calls\n")
    print("| what | median | quartiles | wanted | |\n|:--|--:|--:|--:|:--|")
    print("\n".join(figure.row() for figure in found))
    if options.json:
        options.json.write_text(json.dumps({f.what: {"unit": f.unit, "rounds": f.rounds} for f in found}, indent=1))


if __name__ == "__main__":
    main()
