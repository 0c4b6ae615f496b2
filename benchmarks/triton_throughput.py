"""How fast many configs of one kernel compile: through our pool of processes, and by plain triton.compile.

As a script, `triton_throughput.py FILE NUMBER OF`: one of the plain processes, which compiles every so many of the
recipes in FILE; it knows nothing of aot_tune.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["throughput"]

SPACE = {"ROWS": (1, 2, 4, 8, 16), "BLOCK": (256, 512, 1024, 2048, 4096), "num_warps": (1, 2, 4, 8)}
"""100 configs of the example's rms_norm."""


def throughput(target: str, count: int, workers: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Configs a second of each way, from nothing running to the last one done, in rounds of changing order."""
    sources = _sources(target, count)
    ways: dict[str, Callable[[], float]] = {
        "aot_tune": lambda: _ours(sources, target, workers),
        "triton.compile": lambda: _plain(sources, target, workers),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            taken[name].append(ways[name]())
            say(f"{name}: {count} configs in {taken[name][-1]:.1f} s")
    ratios = sorted(p / o for o, p in zip(taken["aot_tune"], taken["triton.compile"], strict=True))
    return {"count": len(sources), "workers": workers, "target": target, "seconds": taken, "ratio": ratios[rounds // 2]}


def _sources(target: str, count: int) -> list[str]:
    from dataclasses import replace

    from triton_build import EXAMPLE, read_operator, source_of

    from aot_tune.spec import Parameter, parameter, problem

    operator = read_operator(EXAMPLE, "rms_norm", target)
    kernel = operator.kernel("rows")
    assert kernel.triton is not None
    arguments = {**kernel.triton.arguments, "BLOCK": parameter("BLOCK")}
    free = replace(
        kernel,
        parameters=tuple(Parameter(n, v) for n, v in SPACE.items()),
        triton=replace(kernel.triton, arguments=arguments),
    )
    spread = list(itertools.product(*SPACE.values()))
    picked = [spread[i * len(spread) // count] for i in range(min(count, len(spread)))]
    changed = replace(operator, kernels=tuple(free if k.name == "rows" else k for k in operator.kernels))
    given = problem(R=64, D=4096)
    return [
        source_of(EXAMPLE, changed, "rows", dict(zip(SPACE, row, strict=True)), given, target)[0].source
        for row in picked
    ]


def _ours(sources: list[str], target: str, workers: int) -> float:
    """Objects, launchers included."""
    from aot_tune.compile import target_by_name
    from aot_tune.compile.triton import TOOLCHAIN
    from aot_tune.compile.triton_pool import pool

    pool().close()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as threads:

        def compile_one(number: int) -> str:
            folder = Path(scratch, str(number))
            folder.mkdir()
            return TOOLCHAIN.compile(sources[number], target_by_name(target), folder / "candidate.o", 300.0).status

        began = time.monotonic()
        statuses = list(threads.map(compile_one, range(len(sources))))
        spent = time.monotonic() - began
    pool().close()
    if set(statuses) != {"ok"}:
        raise SystemExit(f"benchmarks: candidates do not compile: {sorted(set(statuses))}")
    return spent


def _plain(sources: list[str], target: str, workers: int) -> float:
    """Images alone, each process with an empty cache."""
    import msgspec
    from triton_build import EXAMPLE

    from aot_tune.render.recipe import read_recipe
    from aot_tune.triton.devices import device_of

    device = device_of(target)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch, "recipes.json")
        recipes = [msgspec.to_builtins(read_recipe(s)) for s in sources]
        told = {"file": str(EXAMPLE / "kernels.py"), "recipes": recipes}
        work.write_text(json.dumps({**told, "target": [device.backend, device.arch, device.warp_size]}))
        began = time.monotonic()
        running = [
            subprocess.Popen(
                [sys.executable, __file__, str(work), str(number), str(workers)],
                env={**os.environ, "TRITON_CACHE_DIR": str(Path(scratch, f"cache{number}"))},
            )
            for number in range(workers)
        ]
        codes = [process.wait() for process in running]
        spent = time.monotonic() - began
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
