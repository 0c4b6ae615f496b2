#!/usr/bin/env python3
"""What older CPUs get of a library that was tuned for a newer one, compared with a library tuned only for them.

    benchmarks/older_cpus.py BESIDE ALONE [--operators gemm,softmax,rms_norm] [--level 3] [--rounds 7] [--json FILE]

BESIDE and ALONE are Python modules of the same bundled operators, files such as ops.abi3.so. BESIDE is from a build
that also tunes for older CPUs, last and briefly. ALONE is from a build with AOT_TUNE_TARGETS=cpu-x86-64-v3. Each runs
in its own process, which acts as if the CPU had only the given level. Only one computes at a time, in rounds of
changing order, on all problems of the operators' workloads for CPUs. The output is how many times as fast BESIDE is, as
a median of rounds.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from stats import Timing, geometric_mean, paired_ratio

from aot_tune.spec import Operator, Problem
from aot_tune.spec.load_operators import bundled_templates, load_operators

__all__ = ["main"]

_TURN = 0.02
"""Seconds of a turn, which has at least one call."""


def _operators(names: list[str]) -> dict[str, Operator]:
    return {name: operator for name, (_, operator) in load_operators([bundled_templates()], names).items()}


def _module(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("ops", path)
    spec = importlib.util.spec_from_file_location("ops", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _call(module: ModuleType, operator: Operator, problem: Problem) -> Callable[[], object]:
    """A call of a problem, always on the same tensors."""
    import torch

    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    concrete = operator.concrete(problem.dtypes)
    tensors: dict[str, Any] = {}
    for tensor in concrete.tensors:
        if not concrete.is_present(problem, tensor):
            continue
        shape = concrete.shape(problem, tensor)
        order = problem.order.get(tensor.name, tuple(range(len(shape))))
        memory = torch.rand([shape[axis] for axis in order], dtype=torch.float32).to(dtypes[tensor.dtype.name])
        tensors[tensor.name] = memory.permute([order.index(axis) for axis in range(len(shape))])
    function = getattr(module, operator.name)
    given = {**tensors, **problem.attributes}
    return lambda: function(**given)


def _serve(path: str, names: list[str]) -> None:
    """Answer each line, an operator and the number of a problem, with ns per call and the variant that served it."""
    module, operators = _module(path), _operators(names)
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for line in sys.stdin:
        name, number = line.split()
        problem = operators[name].workload_for("cpu")[int(number)]
        key = name, int(number)
        if key not in calls:
            calls = {key: _call(module, operators[name], problem)}
            calls[key]()
        call, times = calls[key], list[int]()
        begun = time.perf_counter_ns()
        while not times or time.perf_counter_ns() - begun < _TURN * 1e9:
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        times.sort()
        print(times[len(times) // 10], flush=True)  # other processes may have one of two cores for most of a turn


class _Side:
    """A library in its process."""

    def __init__(self, path: Path, names: list[str], level: str) -> None:
        argv = [sys.executable, __file__, "--serve", str(path.resolve()), "--operators", ",".join(names)]
        env = {**os.environ, "AOT_TUNE_CPU_LEVEL": level}
        self._process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self, operator: str, number: int) -> float:
        """ns per call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{operator} {number}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _race(sides: list[_Side], operator: str, number: int, rounds: int) -> float:
    """How many times as fast the first side is on a problem."""
    draw, times = random.Random(number), [list[float](), list[float]()]
    for side in sides:
        side.turn(operator, number)
    for _ in range(rounds):
        for which in draw.sample((0, 1), 2):
            times[which].append(sides[which].turn(operator, number))
    beside, alone = (Timing(name, tuple(t)) for name, t in zip(("beside", "alone"), times, strict=True))
    return paired_ratio(alone, beside)


def main() -> None:
    """Race both on all problems, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("modules", nargs="*", type=Path)
    parser.add_argument("--operators", default="gemm,softmax,rms_norm")
    parser.add_argument("--level", default="3")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.operators.split(",")
    if options.serve:
        _serve(options.serve, names)
        return
    if len(options.modules) != 2:
        parser.error("name two modules: BESIDE and ALONE")
    sides = [_Side(path, names, options.level) for path in options.modules]
    found: dict[str, dict[str, float]] = {}
    for name, operator in _operators(names).items():
        workload = operator.workload_for("cpu")
        found[name] = {p.id: _race(sides, name, i, options.rounds) for i, p in enumerate(workload)}
        worst = min(found[name], key=found[name].__getitem__)
        mean = geometric_mean(found[name].values())
        print(
            f"{name}: {mean:.3f} x in the mean of {len(workload)} problems; least {found[name][worst]:.2f} x, {worst}"
        )
    for side in sides:
        side.close()
    print(f"all: {geometric_mean(r for rows in found.values() for r in rows.values()):.3f} x")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
