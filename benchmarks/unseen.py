#!/usr/bin/env python3
"""Products on shapes that no build drew, on a GPU: the installed library's dispatch, torch, and each kept variant.

    benchmarks/unseen.py [--dtypes bf16 f16] [--forms plain gelu residual] [--count 300] [--seed 1] [--rounds 5]
                         [--variants] [--json FILE]

Half of the shapes are layers of known models with any number of rows, half are drawn evenly in the logarithm; most
extents are multiples of 64, some of 8, a few of nothing. Weights are cold, calls are in CUDA graphs, rounds are in
changing order. With `--variants` each variant of the dtype is forced by name in a process of its own, which tells how
much faster the best of those that are kept would have been. M = 1 is shown apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stats import geometric_mean

__all__: list[str] = []

_LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336), (6144, 4096), (1024, 1024), (8192, 8192), (28672, 8192))
_LAYERS += ((3584, 3584), (18944, 3584), (3584, 18944), (5120, 5120), (13824, 5120), (2048, 2048), (5632, 2048))
_FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gelu": {"present": ("bias",), "attributes": {"activation": "gelu"}},
    "residual": {"present": ("bias", "residual")},
}
_CERTAIN = 2.0
"""Standard errors of the mean log ratio over rounds by which a shape is certainly slower."""


def shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """M, N and K of so many products."""
    draw = random.Random(f"unseen {seed}")

    def log(least: int, most: int) -> int:
        return round(float(least * (most / least) ** draw.random()))

    def extent(least: int, most: int) -> int:
        step = draw.choices((64, 8, 1), (0.7, 0.2, 0.1))[0]
        return max(round(log(least, most) / step), 1) * step

    found: dict[tuple[int, int, int], None] = {}
    while len(found) < count:
        rows = draw.choice((1, log(2, 64), log(2, 64), log(65, 8192), 64 * draw.randint(1, 64)))
        n, k = draw.choice(_LAYERS) if draw.random() < 0.5 else (extent(256, 32768), extent(256, 20000))
        if rows * n * k <= 2**40:
            found[rows, n, k] = None
    return list(found)


def measure(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In a process of its own: the times of each shape, in us by round."""
    import torch
    from gpu_calls import difference, eager, facts, ours, product
    from gpu_race import Arena, Contender, race
    from gpu_tasks import Task

    from aot_tune.spec import problem

    torch.set_grad_enabled(False)
    for m, n, k in plan["shapes"]:
        given = problem(M=m, N=n, K=k, order={"b": (1, 0)}, dtypes={"T": plan["dtype"]}, **_FORMS[plan["form"]])
        kind = "product" if plan["form"] == "plain" else "fused"
        task = Task("gemm", given, kind, plan["dtype"], "", 0, 0, known=False)
        try:
            arena = Arena(task)
            run = ours(arena, None)
            other = product(arena) if kind == "product" else eager(arena)
            contenders = [Contender("ours", run, arena.sets)]
            if plan["forced"]:
                yield {"shape": [m, n, k], "us": race(contenders, plan["rounds"])}
                continue
            off = difference(arena, run, eager(arena))
            if not off < 2e-2:
                yield {"shape": [m, n, k], "error": f"it differs from torch by {off:.2e} of the norm"}
                continue
            contenders.append(Contender("torch", other, arena.sets))
            yield {"shape": [m, n, k], "us": race(contenders, plan["rounds"]), **facts(arena, None)}
        except Exception as error:  # a forced variant refuses what it is not for
            yield {"shape": [m, n, k], "error": f"{type(error).__name__}: {str(error)[:120]}"}


def run(plan: dict[str, Any], forced: str = "") -> list[dict[str, Any]]:
    """Measure in a process of its own."""
    env = {**os.environ, **({"AOT_TUNE_FORCE": f"gemm:{forced}"} if forced else {})}
    argv = [sys.executable, __file__, "--worker"]
    text = json.dumps({**plan, "forced": forced})
    done = subprocess.run(argv, input=text, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{forced or 'dispatch'}: ended with {done.returncode}: {done.stderr[-500:]}", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def variants_of(dtype: str) -> list[str]:
    """Names of the kept variants of a dtype for GPUs, without a vendor's algorithms for single problems."""
    from aot_tune import ops

    (gemm,) = (o for o in ops.manifest()["operators"] if o["name"] == "gemm")
    found = [v for v in gemm["variants"] if v["target"].startswith("cuda") and v["dtypes"].get("T", "f32") == dtype]
    return [v["name"] for v in found if v["kernel"] != "cublaslt" or v["config"].get("ALGO") == -1]


def ratio(row: dict[str, Any]) -> tuple[float, float]:
    """How many times as fast as torch, and the standard error of its logarithm."""
    import math

    logs = [math.log(t / o) for o, t in zip(row["us"]["ours"], row["us"]["torch"], strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return math.exp(statistics.fmean(logs)), error


def tell(name: str, rows: Sequence[dict[str, Any]], best: dict[tuple[int, ...], float]) -> dict[str, Any]:
    """One line, and what it says."""
    import math

    timed = [r for r in rows if "us" in r]
    found = [ratio(r) for r in timed]
    below = [sum(x < limit for x, _ in found) / len(found) for limit in (0.95, 0.8)] if found else [0.0, 0.0]
    certain = [r["shape"] for r, (x, e) in zip(timed, found, strict=True) if math.log(x) + _CERTAIN * e < math.log(0.8)]
    regret = sorted(
        statistics.median(r["us"]["ours"]) / min(best[tuple(r["shape"])], statistics.median(r["us"]["ours"])) - 1
        for r in timed
        if tuple(r["shape"]) in best
    )
    told = {
        "name": name,
        "shapes": len(timed),
        "failed": len(rows) - len(timed),
        "geometric_mean": geometric_mean(x for x, _ in found),
        "below_0.95": below[0],
        "below_0.80": below[1],
        "certainly_below_0.80": certain,
        "worst": min(((x, r["shape"]) for r, (x, _) in zip(timed, found, strict=True)), default=None),
        "regret_mean": statistics.fmean(regret) if regret else None,
        "regret_p95": regret[int(0.95 * len(regret))] if regret else None,
        "tuned": sum(bool(r.get("tuned")) for r in timed),
    }
    print(json.dumps(told), flush=True)
    return told


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "f16"])
    parser.add_argument("--forms", nargs="+", default=["plain"], choices=sorted(_FORMS))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        for row in measure(json.load(sys.stdin)):
            print(json.dumps(row), flush=True)
        return 0
    told, kept = [], []
    for dtype in given.dtypes:
        for form in given.forms:
            plan = {
                "dtype": dtype,
                "form": form,
                "rounds": given.rounds,
                "shapes": shapes(given.count, given.seed),
            }
            rows = run(plan)
            best: dict[tuple[int, ...], float] = {}
            for name in variants_of(dtype) if given.variants else ():
                for row in run({**plan, "rounds": 3}, name):
                    if "us" in row:
                        place = tuple(row["shape"])
                        best[place] = min(best.get(place, float("inf")), statistics.median(row["us"]["ours"]))
            several = [r for r in rows if r["shape"][0] > 1]
            told.append(tell(f"{dtype} {form}", several, best))
            told.append(tell(f"{dtype} {form}, M = 1", [r for r in rows if r["shape"][0] == 1], best))
            kept.append({"dtype": dtype, "form": form, "rows": rows, "best": [[*k, v] for k, v in best.items()]})
            if given.json:
                given.json.write_text(json.dumps({"told": told, "rows": kept}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
