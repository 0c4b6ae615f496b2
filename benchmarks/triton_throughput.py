"""How fast many configs of a kernel compile: with our pool of processes, and with plain triton.compile.

As a script, `triton_throughput.py FILE NUMBER OF` is one of the plain processes. It compiles its share of the recipes
in FILE, without aot_tune.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["throughput"]

BUNDLED = Path(__file__).resolve().parents[1] / "templates"


class Spread(NamedTuple):
    """A kernel, its configs to compile, and the problem that they are specialised on."""

    root: Path
    operator: str
    kernel: str
    functions: str
    space: Mapping[str, tuple[int, ...]]
    arguments: tuple[str, ...]  # parameters of the space that the kernel does not pass itself
    problem: Mapping[str, Any]


class Spent(NamedTuple):
    """Seconds of one way: wall time, and processor time of this process and its children."""

    wall: float
    cpu: float


SPREADS = (
    Spread(
        Path(__file__).resolve().parents[1] / "examples" / "triton_package" / "templates",
        "rms_norm",
        "rows",
        "kernels.py",
        {"ROWS": (1, 2, 4, 8, 16), "BLOCK": (256, 512, 1024, 2048, 4096), "num_warps": (1, 2, 4, 8)},
        ("BLOCK",),
        {"R": 64, "D": 4096},
    ),
    Spread(
        BUNDLED,
        "softmax",
        "triton_tiles",
        "softmax/triton.py",
        {"ELEMENTS": (512, 1024, 2048, 4096, 8192), "num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3, 4, 5)},
        (),
        {"R": 4096, "D": 512},
    ),
    Spread(
        BUNDLED,
        "gemm",
        "triton_split",
        "gemm/triton/functions.py",
        {
            "BLOCK_M": (16, 32, 64, 128),
            "BLOCK_N": (32, 64, 128),
            "BLOCK_K": (32, 64),
            "SPLIT": (2, 4, 8),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
        },
        (),
        {"M": 16, "N": 4096, "K": 4096, "order": {"b": (1, 0)}, "dtypes": {"T": "bf16"}},
    ),
)
"""A kernel of many rows, a small one and a matrix product, with at least 100 configs each."""


def throughput(target: str, count: int, workers: int, rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Configs per second of each kernel and way, from the first start to the last result, in rounds of changing order.

    `ratio` and `cpu_ratio` are our speed over that of plain processes, by wall time and by processor time. Each is the
    median of the rounds.
    """
    return [_one_kernel(spread, target, count, workers, rounds, say) for spread in SPREADS]


def _one_kernel(
    spread: Spread, target: str, count: int, workers: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    sources = _sources(spread, target, count)
    ways: dict[str, Callable[[], Spent]] = {
        "aot_tune": lambda: _ours(sources, target, workers),
        "triton.compile": lambda: _plain(spread, sources, target, workers),
    }
    taken: dict[str, list[Spent]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            taken[name].append(ways[name]())
            wall, cpu = taken[name][-1]
            say(f"{spread.operator}, {name}: {len(sources)} configs in {wall:.1f} s, {cpu:.1f} s of processors")
    pairs = list(zip(taken["triton.compile"], taken["aot_tune"], strict=True))
    return {
        "operator": spread.operator,
        "count": len(sources),
        "workers": workers,
        "target": target,
        "seconds": {name: [s.wall for s in spent] for name, spent in taken.items()},
        "cpu_seconds": {name: [s.cpu for s in spent] for name, spent in taken.items()},
        "ratio": statistics.median(plain.wall / ours.wall for plain, ours in pairs),
        "cpu_ratio": statistics.median(plain.cpu / ours.cpu for plain, ours in pairs),
    }


def _sources(spread: Spread, target: str, count: int) -> list[str]:
    from dataclasses import replace

    from triton_build import read_operator, source_of

    from aot_tune.spec import Parameter, parameter, problem

    operator = read_operator(spread.root, spread.operator, target)
    kernel = operator.kernel(spread.kernel)
    assert kernel.triton is not None
    arguments = {**kernel.triton.arguments, **{name: parameter(name) for name in spread.arguments}}
    free = replace(
        kernel,
        parameters=tuple(Parameter(n, v) for n, v in spread.space.items()),
        listed=(),
        triton=replace(kernel.triton, arguments=arguments),
    )
    rows = list(itertools.product(*spread.space.values()))
    picked = [rows[i * len(rows) // count] for i in range(min(count, len(rows)))]
    kernels = tuple(free if k.name == kernel.name else k for k in operator.kernels)
    changed, given = replace(operator, kernels=kernels), problem(**spread.problem)
    return [
        source_of(spread.root, changed, kernel.name, dict(zip(spread.space, row, strict=True)), given, target)[0].source
        for row in picked
    ]


def _processors() -> float:
    """Processor seconds so far, of this process and of children that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def _ours(sources: list[str], target: str, workers: int) -> Spent:
    """Our way: objects, launchers included."""
    from aot_tune.compile import target_by_name
    from aot_tune.compile.triton.compile_pool import pool
    from aot_tune.compile.triton.triton_toolchain import TOOLCHAIN

    pool().close()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as threads:

        def compile_one(number: int) -> str:
            folder = Path(scratch, str(number))
            folder.mkdir()
            return TOOLCHAIN.compile(sources[number], target_by_name(target), folder / "candidate.o", 300.0).status

        used, began = _processors(), time.monotonic()
        statuses = list(threads.map(compile_one, range(len(sources))))
        wall = time.monotonic() - began
    pool().close()  # the time of its processes counts only when they have ended
    if set(statuses) != {"ok"}:
        raise SystemExit(f"benchmarks: candidates do not compile: {sorted(set(statuses))}")
    return Spent(wall, _processors() - used)


def _plain(spread: Spread, sources: list[str], target: str, workers: int) -> Spent:
    """The plain way: only images, each process with an empty cache."""
    import msgspec

    from aot_tune.render.triton.recipe import read_recipe
    from aot_tune.triton.absent_devices import device_of

    device = device_of(target)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch, "recipes.json")
        recipes = [msgspec.to_builtins(read_recipe(s)) for s in sources]
        told = {"file": str(spread.root / spread.functions), "recipes": recipes}
        work.write_text(json.dumps({**told, "target": [device.backend, device.arch, device.warp_size]}))
        used, began = _processors(), time.monotonic()
        running = [
            subprocess.Popen(
                [sys.executable, __file__, str(work), str(number), str(workers)],
                env={**os.environ, "TRITON_CACHE_DIR": str(Path(scratch, f"cache{number}"))},
            )
            for number in range(workers)
        ]
        codes = [process.wait() for process in running]
        spent = Spent(time.monotonic() - began, _processors() - used)
    if any(codes):
        raise SystemExit(f"benchmarks: a process of plain triton.compile ended with {codes}")
    return spent


def _compile_plainly(file: str, number: int, of: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    given = json.loads(Path(file).read_text())
    spec = importlib.util.spec_from_file_location("kernels", given["file"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    spec.loader.exec_module(module)
    for recipe in given["recipes"][number::of]:
        function: Any = getattr(module, recipe["function"].partition(":")[2])
        while hasattr(function, "fn") and not hasattr(function, "params"):
            function = function.fn
        places = {p.name: i for i, p in enumerate(function.params)}
        constants = {(places[n],): v for n, v in recipe["constexprs"].items()}
        marks = {(places[n],): [["tt.divisibility", 16]] for n in recipe["divisible"]}
        source = ASTSource(function, recipe["signature"], constants, marks)
        options = {"enable_fp_fusion": True, **recipe["options"]}
        triton.compile(source, target=GPUTarget(*given["target"]), options=options)


if __name__ == "__main__":
    _compile_plainly(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
