#!/usr/bin/env python3
"""Calls on shapes that no build drew, on a GPU: the installed library's dispatch, torch, and each kept variant.

    benchmarks/unseen.py [--operators gemm softmax rms_norm layer_norm silu_mul] [--dtypes bf16 f16]
                         [--forms plain tf32 gelu residual] [--count 300] [--seed 1] [--rounds 5] [--in-l2] [--variants]
                         [--widths whole any] [--json FILE]

Half of the products are layers of known models with any number of rows. The other half have extents drawn evenly in the
logarithm: most are multiples of 64, some of 8, a few of neither. For operators on rows, widths are multiples of 8 from
64 to 16384, and there are 1 to 16384 rows. With `--widths any`, widths are 1 to 160000, and half of them are odd.
Results of calls on rows are compared with torch's in float64, element by element. Calls on 8 MB or more are also
compared with the faster of two copies of as many bytes, by the driver and by a kernel. Weights of products are cold,
and so are all inputs of calls on rows. With `--in-l2`, those that fit into the L2 stay there, as when kernels are
chosen. Calls are in CUDA graphs, and rounds have changing order. With `--variants`, each variant of the dtype is
forced by name in its own process. This shows how much faster the best kept variant would have been. Calls on one row
are listed separately.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen_shapes import COPIED, WIDTHS, Shape, products, rows_of, tell, variants_of

__all__ = ["FORMS", "best_of", "plans", "task_of"]

FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "gemm": {
        "plain": {},
        "tf32": {"attributes": {"math": "tf32"}},
        "gelu": {"present": ("bias",), "attributes": {"activation": "gelu"}},
        "residual": {"present": ("bias", "residual")},
    },
    "softmax": {"plain": {}},
    "rms_norm": {"plain": {"present": ("weight",)}, "residual": {"present": ("weight", "residual", "residual_out")}},
    "layer_norm": {"plain": {"present": ("weight", "bias")}},
    "silu_mul": {"plain": {}},
}
"""Forms of calls by operator: what a problem has in addition to dims and dtypes."""

_PRODUCTS = ("plain", "tf32")
"""Forms without an epilogue. torch computes them in one call, into the output."""
_OFF_PRODUCTS = 2e-2
"""How far products may differ: torch may add parts of long ones in f16."""


def plans(
    operators: Sequence[str], dtypes: Sequence[str], forms: Sequence[str], count: int, seed: int, widths: str = "whole"
) -> Iterator[dict[str, Any]]:
    """What one process measures: an operator in one dtype and one of its forms."""
    for operator in operators:
        shapes = products(count, seed) if operator == "gemm" else WIDTHS[widths](count, seed)
        for dtype in dtypes:
            for form in (f for f in forms if f in FORMS[operator] and (f != "tf32" or dtype == "f32")):
                yield {"operator": operator, "dtype": dtype, "form": form, "shapes": shapes}


def task_of(plan: Mapping[str, Any], shape: Sequence[int]) -> Any:
    """A shape of a plan as a task."""
    from gpu_tasks import Task

    from aot_tune.spec import problem

    dims = dict(zip("MNK" if plan["operator"] == "gemm" else "RD", shape, strict=True))
    form = FORMS[plan["operator"]][plan["form"]]
    if plan["operator"] != "gemm":
        given = problem(dtypes={"T": plan["dtype"]}, **form, **dims)
        return Task(plan["operator"], given, "rows", plan["dtype"], "", 0, 0, known=False)
    given = problem(order={"b": (1, 0)}, dtypes={"T": plan["dtype"]}, **form, **dims)
    kind = "product" if plan["form"] in _PRODUCTS else "fused"
    return Task("gemm", given, kind, plan["dtype"], "", 0, 0, known=False)


def measure(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In its own process: the times of each shape, in us by round."""
    from gpu_calls import FURTHEST, difference, eager, facts, furthest, ours, product
    from gpu_race import Arena, Contender, copy_by_kernel, copy_of, race

    for shape in plan["shapes"]:
        task = task_of(plan, shape)
        try:
            arena = Arena(task, cold_inputs=task.kind == "rows" and not plan["in_l2"])
            run = ours(arena, None)
            other = product(arena) if task.kind == "product" else eager(arena)
            contenders = [Contender("ours", run, arena.sets)]
            if plan["forced"]:
                yield {"shape": shape, "us": race(contenders, plan["rounds"])}
                continue
            if task.kind == "rows":
                off, most, what = furthest(arena, run), FURTHEST[task.mode], "the size of an element and its row"
            else:
                off, most, what = difference(arena, run, eager(arena)), _OFF_PRODUCTS, "the norm"
            if not off <= most:
                yield {"shape": shape, "error": f"it differs from torch by {off:.2e} of {what}"}
                continue
            contenders.append(Contender("torch", other, arena.sets))
            moved = arena.operator.compulsory_bytes(task.problem) if task.kind == "rows" else 0
            if moved >= COPIED:
                contenders += [Contender("driver", *copy_of(moved)), Contender("kernel", *copy_by_kernel(moved))]
            us = race(contenders, plan["rounds"])
            copies = [us.pop(name) for name in ("driver", "kernel") if name in us]
            copied = {"bytes": moved, "copy": min(copies, key=statistics.median)} if copies else {}
            yield {"shape": shape, "us": us, **copied, **facts(arena, None)}
        except Exception as error:  # a forced variant refuses calls that it is not meant for
            yield {"shape": shape, "error": f"{type(error).__name__}: {str(error)[:120]}"}


def run(plan: dict[str, Any], forced: str = "") -> list[dict[str, Any]]:
    """Measure in a separate process."""
    env = {**os.environ, **({"AOT_TUNE_FORCE": f"{plan['operator']}:{forced}"} if forced else {})}
    argv = [sys.executable, __file__, "--worker"]
    text = json.dumps({**plan, "forced": forced})
    done = subprocess.run(argv, input=text, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{forced or 'dispatch'}: ended with {done.returncode}: {done.stderr[-500:]}", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def best_of(several: Sequence[Sequence[Mapping[str, Any]]]) -> dict[Shape, float]:
    """The shortest time of each shape, in us, from the rows of several variants. A variant that failed has none."""
    best: dict[Shape, float] = {}
    for row in (row for rows in several for row in rows if "us" in row):
        shape, us = tuple(row["shape"]), statistics.median(row["us"]["ours"])
        best[shape] = min(best.get(shape, us), us)
    return best


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--operators", nargs="+", default=["gemm"], choices=sorted(FORMS))
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "f16"])
    parser.add_argument("--forms", nargs="+", default=["plain"], choices=sorted({f for o in FORMS.values() for f in o}))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--widths", default="whole", choices=sorted(WIDTHS), help="of calls on rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--in-l2", action="store_true", help="for calls on rows, tensors that fit into the L2 stay there"
    )
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        import torch

        plan = json.load(sys.stdin)
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = plan["form"] == "tf32"
        for row in measure(plan):
            print(json.dumps(row), flush=True)
        return 0
    told, kept = [], []
    for plan in plans(given.operators, given.dtypes, given.forms, given.count, given.seed, given.widths):
        plan |= {"rounds": given.rounds, "in_l2": given.in_l2}
        rows = run(plan)
        best: dict[Shape, float] = {}
        if given.variants:
            from aot_tune import ops

            names = variants_of(ops.manifest(), plan["operator"], plan["dtype"], "cuda")
            best = best_of([run({**plan, "rounds": 3}, name) for name in names])
        name = f"{plan['operator']} {plan['dtype']} {plan['form']}"
        told += [tell(name + ", one row" * single, some, best) for single, some in rows_of(rows)]
        about = {key: plan[key] for key in ("operator", "dtype", "form", "in_l2")}
        kept.append({**about, "rows": rows, "best": [[*k, v] for k, v in best.items()]})
        if given.json:
            given.json.write_text(json.dumps({"told": told, "rows": kept}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
