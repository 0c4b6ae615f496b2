#!/usr/bin/env python3
"""Calls on shapes that no build drew, on a GPU: the installed library's dispatch, torch, and each kept variant.

    benchmarks/unseen.py [--operators gemm batched_gemm flash_attention softmax rms_norm layer_norm silu_mul]
                         [--forms plain tf32 gelu gelu_tanh silu residual prompt few one] [--dtypes bf16 f16 f32]
                         [--count 40] [--seconds 200] [--seed 1] [--rounds 5] [--in-l2] [--variants]
                         [--widths whole any] [--json FILE]

Two fifths of the products are layers of known models. The others have extents drawn evenly in the logarithm: most are
multiples of 64, some of 8, a few of neither. A third has one row. Batches have a and b by rows, by columns, or with
matrices beside each other. Attention is a `prompt`, `few` queries, or `one`. For operators on rows, widths are
multiples of 8 from 64 to 16384, and there are 1 to 16384 rows. With `--widths any`, widths are 1 to 160000, and half of
them are odd. Results are compared before they are timed: those of calls on rows with torch's in float64, element by
element; some heads of attention with float64. torch's time is the least of its own ways: for attention each backend
alone and its own choice, with each way to tell the mask. Calls on rows and on few queries of 8 MB or more are also
compared with the faster of two copies of as many bytes, by the driver and by a kernel. Weights of products are cold,
and so are all inputs of other calls. With `--in-l2`, those that fit into the L2 stay there, as when kernels are chosen.
Calls are in CUDA graphs, and rounds have changing order.

All operators, dtypes and forms take turns, so `--seconds` cuts them evenly. A process that dies or hangs is replaced,
and the next one begins with the next shape. With `--variants`, half of the time is for this: each variant is forced by
name on the same shapes, in another process. It shows how much faster the best kept variant would have been, on the
shapes that all variants came to.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_tasks import Task
from tasks import installed_operator
from unseen_shapes import COPIED, WIDTHS, Shape, attentions, batches, called, products, tell, turns, variants_of

from aot_tune.spec.regimes import regime_of

__all__ = ["FORMS"]

FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "gemm": {
        "plain": {},
        "tf32": {"attributes": {"math": "tf32"}},
        "gelu": {"present": ("bias",), "attributes": {"activation": "gelu"}},
        "gelu_tanh": {"present": ("bias",), "attributes": {"activation": "gelu_tanh"}},
        "silu": {"present": ("bias",), "attributes": {"activation": "silu"}},
        "residual": {"present": ("bias", "residual")},
    },
    "batched_gemm": {"plain": {}, "tf32": {"attributes": {"math": "tf32"}}},
    "flash_attention": {"prompt": {}, "few": {}, "one": {}},
    "softmax": {"plain": {}},
    "rms_norm": {"plain": {"present": ("weight",)}, "residual": {"present": ("weight", "residual", "residual_out")}},
    "layer_norm": {"plain": {"present": ("weight", "bias")}},
    "silu_mul": {"plain": {}},
}
"""Forms of calls by operator: what a problem has in addition to its shape and dtypes."""

_PRODUCTS = ("plain", "tf32")
"""Forms without an epilogue. torch computes them in one call, into the output."""
_OFF_PRODUCTS = 2e-2
"""How far products may differ: torch may add parts of long ones in f16."""
_KINDS = {"gemm": "product", "batched_gemm": "product", "flash_attention": "attention"}

Row = dict[str, Any]
Plan = Mapping[str, Any]


def _plans(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is measured: an operator in one dtype and one of its forms. Attention has 16 bits, and TF32 is of f32."""
    about = {"in_l2": given.in_l2, "rounds": given.rounds}
    for operator, dtype, form in itertools.product(given.operators, given.dtypes, given.forms):
        whole = dtype == "f32"
        if form in FORMS[operator] and not (whole and operator == "flash_attention") and (whole or form != "tf32"):
            shapes = _shapes(operator, form, given.count, given.seed, given.widths)
            yield {"operator": operator, "dtype": dtype, "form": form, "shapes": shapes, **about}


def _shapes(operator: str, form: str, count: int, seed: int, widths: str) -> list[Shape]:
    if operator == "gemm":
        return [(*shape, "b:10") for shape in products(count, seed)]
    if operator == "flash_attention":
        return attentions(count, seed, form, installed_operator(operator).values["D"])
    return batches(count, seed) if operator == "batched_gemm" else WIDTHS[widths](count, seed)


def _task_of(plan: Plan, shape: Shape) -> Task:
    operator, form = installed_operator(plan["operator"]), plan["form"]
    given = called(operator, shape, plan["dtype"], FORMS[operator.name][form])
    kind = _KINDS.get(operator.name, "rows")
    kind = "fused" if kind == "product" and form not in _PRODUCTS else kind
    regime = regime_of(operator, operator.facts(given))
    return Task(operator.name, given, kind, plan["dtype"], regime, operator.compulsory_bytes(given))


def _measure(plan: Plan, shape: Shape, forced: str) -> Row:
    """The times of a shape, in us by round, or what is wrong."""
    import torch
    from gpu_calls import facts, ours, ways
    from gpu_race import Arena, Contender, race, raced

    torch.backends.cuda.matmul.allow_tf32 = plan["form"] == "tf32"
    task = _task_of(plan, shape)
    arena = Arena(task, cold_inputs=task.operator != "gemm" and not plan["in_l2"])
    run = ours(arena, None)
    if forced:
        os.environ["AOT_TUNE_FORCE"] = forced  # the library reads it at the first call
        try:
            return {"us": race([Contender("ours", run, arena.sets)], plan["rounds"])}
        except Exception as error:  # a variant refuses calls that it is not meant for
            torch.cuda.synchronize()  # after an error that stays this raises
            return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    if wrong := _wrong(arena, run):
        return {"error": wrong}
    of_memory = task.bytes >= COPIED and (task.kind == "rows" or plan["form"] in ("few", "one"))
    row = raced(run, arena.sets, ways(arena), plan["rounds"], copied=task.bytes if of_memory else 0)
    notes = row.pop("notes")
    if len(row["us"]) == 1:
        return {"error": "; ".join(notes)}
    return {**row, **facts(arena, None)}


def _wrong(arena: Any, run: Any) -> str:
    """What is wrong with the result of a call, if anything is."""
    from gpu_calls import FURTHEST, OFF, difference, eager, furthest, off_attention

    task = arena.task
    if task.kind == "rows":
        off, most, what = furthest(arena, run), FURTHEST[task.mode], "the size of an element and its row"
    elif task.kind == "attention":
        off, most, what = off_attention(arena, run), OFF[task.mode], "the norm"
    else:
        off, most, what = difference(arena, run, eager(arena)), _OFF_PRODUCTS, "the norm"
    return "" if off <= most else f"it is off by {off:.2e} of {what}"


def _run(several: Sequence[Plan], end: float, forced: str = "") -> list[list[Row]]:
    """The rows of each plan. Plans take turns, and after `end` no shape is begun."""
    from gpu_race import measured

    rows: list[list[Row]] = [[] for _ in several]
    shapes = turns([(number, shape) for shape in plan["shapes"]] for number, plan in enumerate(several))

    def about(item: tuple[int, Shape]) -> Row:
        return {"shape": item[1], "regime": _task_of(several[item[0]], item[1]).group}

    for (number, _), row in measured(shapes, about, lambda item: _measure(several[item[0]], item[1], forced), end):
        rows[number].append(row)
    return rows


def _forced_times(several: Sequence[Plan], end: float) -> list[dict[Shape, float]]:
    """For each plan, by shape, the time of the best variant: of shapes that all variants came to.

    A process forces one variant of each operator and dtype. A variant that fails has no time.
    """
    from aot_tune import ops

    names = [variants_of(ops.manifest(), plan["operator"], plan["dtype"], "cuda") for plan in several]
    left = [{**plan, "rounds": 3} for plan in several]
    best: list[dict[Shape, float]] = [{} for _ in several]
    most = max(map(len, names), default=0)
    for i in range(most):
        chosen = [number for number, some in enumerate(names) if i < len(some)]
        forced = ",".join(dict.fromkeys(f"{several[n]['operator']}:{names[n][i]}" for n in chosen))
        now = time.monotonic()
        rows = _run([left[n] for n in chosen], now + (end - now) / (most - i), forced)
        for n, some in zip(chosen, rows, strict=True):
            left[n]["shapes"] = left[n]["shapes"][: len(some)]
            for shape, us in ((row["shape"], statistics.median(row["us"]["ours"])) for row in some if "us" in row):
                best[n][shape] = min(best[n].get(shape, us), us)
    return [{s: us for s, us in some.items() if s in p["shapes"]} for some, p in zip(best, left, strict=True)]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    forms = list(dict.fromkeys(form for of_one in FORMS.values() for form in of_one))
    parser.add_argument("--operators", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "f16"])
    parser.add_argument("--forms", nargs="+", default=forms, choices=forms)
    parser.add_argument("--count", type=int, default=40, help="of shapes in each dtype and form")
    parser.add_argument("--seconds", type=float, default=200.0, help="after which no more shapes are begun")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--widths", default="whole", choices=sorted(WIDTHS), help="of calls on rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-l2", action="store_true", help="what fits into the L2 stays there")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import gpu_calls  # noqa: F401  with torch, once for all processes; nothing here may use the GPU

    start = time.monotonic()
    end = start + given.seconds
    several = list(_plans(given))
    rows = _run(several, start + given.seconds / 2 if given.variants else end)
    best: list[dict[Shape, float]] = [{} for _ in several]
    if given.variants:
        best = _forced_times([{**p, "shapes": p["shapes"][: len(r)]} for p, r in zip(several, rows, strict=True)], end)
    told, kept = [], []
    for plan, some, least in zip(several, rows, best, strict=True):
        about = {key: plan[key] for key in ("operator", "dtype", "form", "in_l2")}
        told += (lines := tell(f"{plan['operator']} {plan['dtype']} {plan['form']}", some, least))
        print(*map(json.dumps, lines), sep="\n", flush=True)
        kept.append({**about, "rows": some, "best": [[*k, v] for k, v in least.items()]})
    if given.json:
        given.json.write_text(json.dumps({"told": told, "rows": kept}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
