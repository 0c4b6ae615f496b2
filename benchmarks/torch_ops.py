"""How much longer a call through torch.ops takes than the module's function: through Python, and through the shim.

`python benchmarks/torch_ops.py` measures `aot_tune.ops` on tensors so small that only the call matters. The calls of a
row take turns, in rounds of changing order. A time is the median of the rounds, and so is a difference.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aot_tune.torch import build_shim, register

Calls = dict[str, Callable[[], object]]
WAYS = ("raw", "python", "shim")


def rows_of(module: ModuleType, spaces: dict[str, Any], device: str) -> dict[str, Calls]:
    """For each kind of call, the ways to make it."""
    a, b, out = (torch.ones(8, 8, device=device) for _ in range(3))
    x, norm = torch.ones(4, 64, device=device), torch.ones(64, device=device)
    raw: Calls = {
        "rms_norm(x, w)": lambda: module.rms_norm(x, norm),
        "rms_norm(x, w, eps=)": lambda: module.rms_norm(x, norm, eps=0.1),
        "gemm(a, b)": lambda: module.gemm(a, b),
        "gemm(a, b, activation=)": lambda: module.gemm(a, b, activation="relu"),
        "gemm.out(a, b, out=)": lambda: module.gemm(a, b, out=out),
        "gemm(a, b, out=)": lambda: module.gemm(a, b, out=out),
    }
    found: dict[str, Calls] = {name: {"raw": call} for name, call in raw.items()}
    for way, space in spaces.items():
        for name, call in _through(space, a, b, out, x, norm).items():
            found[name][way] = call
    found["torch.mm(a, b)"] = {"raw": lambda: torch.mm(a, b), "aten": lambda: torch.ops.aten.mm(a, b)}
    return found


def _through(space: Any, *tensors: torch.Tensor) -> Calls:
    """The same calls through a namespace of torch.ops, whose operators are looked up once."""
    a, b, out, x, norm = tensors
    norms, products = space.rms_norm, space.gemm
    return {
        "rms_norm(x, w)": lambda: norms(x, norm),
        "rms_norm(x, w, eps=)": lambda: norms(x, norm, eps=0.1),
        "gemm(a, b)": lambda: products(a, b),
        "gemm(a, b, activation=)": lambda: products(a, b, activation="relu"),
        "gemm.out(a, b, out=)": lambda: products.out(a, b, out=out),
        "gemm(a, b, out=)": lambda: products(a, b, out=out),
    }


def measure(calls: Calls, rounds: int, count: int) -> dict[str, list[float]]:
    """Microseconds per call in each round."""
    found: dict[str, list[float]] = {way: [] for way in calls}
    order = list(calls)
    for call in calls.values():
        for _ in range(200):
            call()
    for number in range(rounds):
        random.Random(number).shuffle(order)
        for way in order:
            call, turns = calls[way], itertools.repeat(None, count)
            start = time.perf_counter_ns()
            for _ in turns:
                call()
            found[way].append((time.perf_counter_ns() - start) / count / 1000)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return found


def load(path: str) -> ModuleType:
    """A module, by its name or by the path of its file."""
    if not path.endswith(".so"):
        return importlib.import_module(path)
    name = Path(path).name.partition(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise SystemExit(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """The rows in Markdown."""
    lines = ["| call | raw, us | by Python, more | by the shim, more |", "|---|--:|--:|--:|"]
    for name, times in found.items():
        cells = [f"{statistics.median(times['raw']):.2f}"]
        for way in ("python", "shim") if "shim" in times else ("", "aten"):
            more = [one - raw for one, raw in zip(times.get(way, []), times["raw"], strict=False)]
            cells.append(f"+{statistics.median(more):.2f}" if more else "")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--module", default="aot_tune.ops", help="a library's module with gemm and rms_norm, or its file"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--count", type=int, default=3000, help="calls in a turn")
    parser.add_argument("--json", type=Path, help="every round, and the machine")
    options = parser.parse_args(arguments)
    module = load(options.module)
    build_shim()
    for way in ("python", "shim"):
        register(module, f"measured_{way}", shim=way == "shim")
    spaces = {way: getattr(torch.ops, f"measured_{way}") for way in ("python", "shim")}
    torch.set_num_threads(1)
    gc.disable()
    with torch.no_grad():
        found = {
            name: measure(calls, options.rounds, options.count)
            for name, calls in rows_of(module, spaces, options.device).items()
        }
    about = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.processor()}
    print(f"torch {about['torch']}, Python {about['python']}, {options.rounds} rounds of {options.count} calls\n")
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps({**about, "us": found}, indent=1))


if __name__ == "__main__":
    main()
