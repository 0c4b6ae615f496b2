#!/usr/bin/env python3
"""What a call of the installed operators adds to the C function, what torch.ops adds to that, and the import's time.

    benchmarks/calls.py [--rounds 25] [--count 3000] [--imports 15] [--device cpu] [--json FILE]

Calls pass three tensors of three columns (a product's second factor is a square), or of one element, from numpy and
from torch, with outputs. They are made through the module's function, and through the C function in a C loop in the
same process. Validation and dispatch are a call from C, less its kernel called directly. Calls through torch.ops are
made by Python and by the shim, which is built if it is not there. All take turns, in rounds of changing order. A figure
is the median over the rounds of differences within one round, with quartiles. The import is timed in new processes,
from the first statement until the module is there. On other devices than the CPU, there are no C calls. Nothing else
should run.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from native import build_calls, build_variant, installed

__all__: list[str] = []

_IMPORT = """
import sys, time
start = time.perf_counter_ns()
import aot_tune.ops
spent = time.perf_counter_ns() - start
print(spent / 1e6, [name for name in ("torch", "numpy", "msgspec") if name in sys.modules])
"""
OPERATORS = {"silu_mul": {"R": 1, "D": 1}, "gemm": {"M": 1, "N": 1, "K": 1}}
"""Operators that take two inputs and one output, so a call passes three tensors; and their dims with one element."""
SIZES = {3: "3 columns", 1: "one element"}
LIMITS = {"numpy": 350.0, "torch": 450.0, "shim": 1500.0, "import": 5.0, "dispatch": 100.0}
"""The wanted limits: ns beyond C's call, ns beyond the module's function, ms, and ns."""
_WARMUP = 200

Calls = dict[str, Callable[[], object]]


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
        spread = f"{low:.{digits}f} to {high:.{digits}f}"
        return f"| {self.what} | {median:.{digits}f} {self.unit} | {spread} | {wanted} | {verdict} |"


def differences(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    """How much more one takes than the other, round by round."""
    return tuple(a - b for a, b in zip(one, other, strict=True))


class Tensors:
    """Three tensors in a framework's form: rows of at most four columns. A second factor is a square."""

    def __init__(self, framework: str, columns: int, probe: Any) -> None:
        ones: Callable[[int, int], Any]
        if framework == "torch":
            import torch

            ones = torch.ones
        else:
            import numpy as np

            ones = lambda rows, columns: np.ones((rows, columns), dtype=np.float32)  # noqa: E731
        self.first, self.out = ones(1, columns), ones(1, columns)
        self.second = {"silu_mul": ones(1, columns), "gemm": ones(columns, columns)}
        self.columns, self.probe = columns, probe

    def measure(self, count: int, kernels: Mapping[str, ctypes.c_void_p]) -> dict[str, float]:
        """Mean ns per call of each kind, from one loop each, shortly after each other."""
        from aot_tune import ops

        found: dict[str, float] = {}
        self.probe.calls_columns(ctypes.c_int64(self.columns))
        for name in OPERATORS:
            found[f"{name} python"] = self._python(getattr(ops, name), self.second[name], count)
            found[f"{name} c"] = self._c(f"calls_{name}", ctypes.c_int64(4 * count))
            if name in kernels:
                found[f"{name} kernel"] = self._c(f"calls_{name}_kernel", kernels[name], ctypes.c_int64(4 * count))
        return found

    def _python(self, function: Callable[..., Any], second: Any, count: int) -> float:
        first, out = self.first, self.out
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, count):
            function(first, second, out=out)
        return (time.perf_counter_ns() - start) / count

    def _c(self, name: str, *arguments: Any) -> float:
        function = getattr(self.probe, name)
        function.restype = ctypes.c_double
        spent = float(function(*arguments))
        if spent < 0:
            raise RuntimeError(f"{name}: a call fails")
        return spent


def beyond_c(rounds: int, count: int) -> list[Figure]:
    """Python's calls compared with C's, for arrays of numpy and tensors of torch; and validation and dispatch alone."""
    with tempfile.TemporaryDirectory() as folder:
        probe = ctypes.CDLL(str(build_calls(Path(folder), installed())))
        built = {name: build_variant(Path(folder), name, dims) for name, dims in OPERATORS.items()}
        kernels = {
            name: ctypes.cast(getattr(ctypes.CDLL(k["path"]), k["symbol"]), ctypes.c_void_p)
            for name, k in built.items()
            if k is not None
        }
        ways = {(f, n): Tensors(f, n, probe) for n in SIZES for f in ("numpy", "torch")}
        found: dict[tuple[str, int, str], list[float]] = {}
        for number in range(rounds + 1):
            order = list(ways)
            random.Random(number).shuffle(order)
            for way in order:
                for kind, spent in ways[way].measure(count, kernels if way[1] == 1 else {}).items():
                    if number > 0:  # the first warms up
                        found.setdefault((*way, kind), []).append(spent)
    figures = []
    for name, columns in itertools.product(OPERATORS, SIZES):
        what = f"`{name}`, {SIZES[columns]}"
        figures.append(Figure(f"{what}, from C", "ns", tuple(found["numpy", columns, f"{name} c"])))
        for framework in ("numpy", "torch"):
            one, other = (found[framework, columns, f"{name} {kind}"] for kind in ("python", "c"))
            figures.append(Figure(f"{what}, {framework}: more", "ns", differences(one, other), LIMITS[framework]))
    for name in kernels:
        whole, kernel = (found["numpy", 1, f"{name} {kind}"] for kind in ("c", "kernel"))
        what = f"`{name}`, validation and dispatch"
        figures.append(Figure(what, "ns", differences(whole, kernel), LIMITS["dispatch"]))
    return figures


def rows_of(module: ModuleType, spaces: Mapping[str, Any], device: str) -> dict[str, Calls]:
    """For each kind of call, the ways to make it: the module's function, and by the namespaces of torch.ops."""
    import torch

    a, b, out = (torch.ones(8, 8, device=device) for _ in range(3))
    x, norm = torch.ones(4, 64, device=device), torch.ones(64, device=device)

    def calls_of(norms: Any, products: Any, into: Any) -> Calls:
        return {
            "rms_norm(x, w)": lambda: norms(x, norm),
            "rms_norm(x, w, eps=)": lambda: norms(x, norm, eps=0.1),
            "gemm(a, b)": lambda: products(a, b),
            "gemm(a, b, activation=)": lambda: products(a, b, activation="relu"),
            "gemm.out(a, b, out=)": lambda: into(a, b, out=out),
            "gemm(a, b, out=)": lambda: products(a, b, out=out),
        }

    ways = {"raw": calls_of(module.rms_norm, module.gemm, module.gemm)}
    ways |= {way: calls_of(space.rms_norm, space.gemm, space.gemm.out) for way, space in spaces.items()}
    return {call: {way: found[call] for way, found in ways.items()} for call in ways["raw"]}


def turns(calls: Calls, rounds: int, count: int) -> dict[str, list[float]]:
    """ns per call in each round."""
    found: dict[str, list[float]] = {way: [] for way in calls}
    order = list(calls)
    for call in calls.values():
        for _ in range(_WARMUP):
            call()
    for number in range(rounds):
        random.Random(number).shuffle(order)
        for way in order:
            call, turn = calls[way], itertools.repeat(None, count)
            start = time.perf_counter_ns()
            for _ in turn:
                call()
            found[way].append((time.perf_counter_ns() - start) / count)
    return found


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
            times = turns(calls, rounds, count)
            if device != "cpu":
                torch.cuda.synchronize()
            figures.append(Figure(f"`{name}`, the function", "ns", tuple(times["raw"])))
            for way in spaces:
                limit = LIMITS["shim"] if way == "shim" and name != "gemm(a, b, out=)" else None
                more = differences(times[way], times["raw"])
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
    gc.disable()
    found = [imports(options.imports)]
    found += beyond_c(options.rounds, options.count) if options.device == "cpu" else []
    found += through_torch(options.rounds, options.count, options.device)
    print(f"Python {platform.python_version()}, {options.rounds} rounds of {options.count} calls\n")
    print("| what | median | quartiles | wanted | |\n|:--|--:|--:|--:|:--|")
    print("\n".join(figure.row() for figure in found))
    if options.json:
        options.json.write_text(json.dumps({f.what: {"unit": f.unit, "rounds": f.rounds} for f in found}, indent=1))


if __name__ == "__main__":
    main()
