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

All operators, dtypes and forms take turns, so `--seconds` cuts them evenly. With `--variants`, half of the time is for
this: each variant is forced by name on the same shapes, in another process. It shows how much faster the best kept
variant would have been, on the shapes that all variants came to.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unseen_shapes import COPIED, WIDTHS, Shape, attentions, batches, called, products, tell, variants_of

__all__ = ["FORMS", "best_of", "plans", "task_of"]

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
_PATIENCE = 60.0
"""Seconds after which a process that tells nothing is ended."""
_LONG_US = 10000.0
"""Calls that take longer have three rounds: their times differ little."""
_MOST_CACHED = 2**36
"""torch keeps at most so many bytes for the next shape."""
_FORK = multiprocessing.get_context("fork")

Row = dict[str, Any]


def plans(
    operators: Sequence[str], dtypes: Sequence[str], forms: Sequence[str], count: int, seed: int, widths: str = "whole"
) -> Iterator[dict[str, Any]]:
    """What is measured: an operator in one dtype and one of its forms. Attention has 16 bits, and TF32 is of f32."""
    for operator, dtype, form in itertools.product(operators, dtypes, forms):
        whole = dtype == "f32"
        if form in FORMS[operator] and not (whole and operator == "flash_attention") and (whole or form != "tf32"):
            shapes = _shapes(operator, form, count, seed, widths)
            yield {"operator": operator, "dtype": dtype, "form": form, "shapes": shapes}


def _shapes(operator: str, form: str, count: int, seed: int, widths: str) -> list[Shape]:
    if operator == "gemm":
        return [(*shape, "b:10") for shape in products(count, seed)]
    if operator == "flash_attention":
        from gpu_tasks import installed_operator

        return attentions(count, seed, form, installed_operator(operator).values["D"])
    return batches(count, seed) if operator == "batched_gemm" else WIDTHS[widths](count, seed)


def task_of(plan: Mapping[str, Any], shape: Shape) -> Any:
    """A shape of a plan as a task."""
    from gpu_tasks import Task, installed_operator

    from aot_tune.spec.regimes import regime_of

    operator, form = installed_operator(plan["operator"]), FORMS[plan["operator"]][plan["form"]]
    given = called(operator, shape, plan["dtype"], form)
    kind = _KINDS.get(operator.name, "rows")
    return Task(
        operator=operator.name,
        problem=given,
        kind="fused" if kind == "product" and plan["form"] not in _PRODUCTS else kind,
        mode=plan["dtype"],
        group=regime_of(operator, operator.facts(given)),
        bytes=operator.compulsory_bytes(given),
        flops=0,
        known=False,
    )


def measure(plan: Mapping[str, Any], shape: Shape, forced: bool) -> Row:
    """The times of a shape, in us by round, or what went wrong."""
    import torch
    from gpu_calls import facts, ours, ways
    from gpu_race import Arena, Contender, copy_by_kernel, copy_of, fastest, race

    torch.backends.cuda.matmul.allow_tf32 = plan["form"] == "tf32"
    task = task_of(plan, shape)
    row: Row = {"shape": shape, "regime": task.group}
    try:
        arena = Arena(task, cold_inputs=task.operator != "gemm" and not plan["in_l2"])
        run = ours(arena, None)
        if forced:
            return {**row, "us": race([Contender("ours", run, arena.sets)], plan["rounds"])}
        if wrong := _wrong(arena, run):
            return {**row, "error": wrong}
        contenders = [Contender("ours", run, arena.sets), *fastest(ways(arena), arena.sets)]
        copied: dict[str, Any] = {}
        if task.bytes >= COPIED and (task.kind == "rows" or plan["form"] in ("few", "one")):
            contenders += [Contender("driver", *copy_of(task.bytes)), Contender("kernel", *copy_by_kernel(task.bytes))]
        us = race(contenders, plan["rounds"] if contenders[0].expected < _LONG_US else min(plan["rounds"], 3))
        copies = [us.pop(name) for name in ("driver", "kernel") if name in us]
        copied = {"bytes": task.bytes, "copy": min(copies, key=statistics.median)} if copies else {}
        return {**row, "us": us, **copied, **facts(arena, None)}
    except Exception as error:  # a forced variant refuses calls that it is not meant for
        torch.cuda.synchronize()  # after an error that stays this ends the process
        return {**row, "error": f"{type(error).__name__}: {str(error)[:120]}"}


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


def run(several: Sequence[Mapping[str, Any]], seconds: float, forced: str = "") -> list[list[Row]]:
    """Measure in a process of its own, as a library reads once what is forced. The rows of each plan.

    Plans take turns. After so many seconds no shape is begun.
    """
    reader, writer = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(writer, several, time.monotonic() + seconds, forced))
    process.start()
    writer.close()
    rows: list[list[Row]] = [[] for _ in several]
    with suppress(EOFError):
        while reader.poll(_PATIENCE):
            number, row = reader.recv()
            rows[number].append(row)
    process.join(_PATIENCE)
    if process.exitcode is None:
        process.kill()
        process.join()
    if process.exitcode:
        print(f"{forced or 'dispatch'}: ended with {process.exitcode}", file=sys.stderr, flush=True)
    return rows


def _work(writer: Any, several: Sequence[Mapping[str, Any]], end: float, forced: str) -> None:
    if forced:
        os.environ["AOT_TUNE_FORCE"] = forced
    import torch

    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")  # torch's backends tell why they do not take a call
    for turn in itertools.zip_longest(*(plan["shapes"] for plan in several)):
        for number, shape in enumerate(turn):
            if shape is not None and time.monotonic() < end:
                writer.send((number, measure(several[number], shape, bool(forced))))
                if torch.cuda.memory_reserved() > _MOST_CACHED:
                    torch.cuda.empty_cache()


def best_of(several: Sequence[Sequence[Mapping[str, Any]]]) -> dict[Shape, float]:
    """The shortest time of each shape, in us, from the rows of several variants. A variant that failed has none."""
    best: dict[Shape, float] = {}
    for row in (row for rows in several for row in rows if "us" in row):
        shape, us = tuple(row["shape"]), statistics.median(row["us"]["ours"])
        best[shape] = min(best.get(shape, us), us)
    return best


def forced_times(several: Sequence[Mapping[str, Any]], end: float) -> list[dict[Shape, float]]:
    """For each plan, by shape, the time of the best variant: of shapes that all variants came to.

    A process forces one variant of each operator and dtype.
    """
    from aot_tune import ops

    names = [variants_of(ops.manifest(), plan["operator"], plan["dtype"], "cuda") for plan in several]
    left = [{**plan, "rounds": 3} for plan in several]
    rows: list[list[list[Row]]] = [[] for _ in several]
    most = max(map(len, names), default=0)
    for i in range(most):
        chosen = [number for number, some in enumerate(names) if i < len(some)]
        forced = ",".join(dict.fromkeys(f"{several[n]['operator']}:{names[n][i]}" for n in chosen))
        seconds = (end - time.monotonic()) / (most - i)
        for number, found in zip(chosen, run([left[n] for n in chosen], seconds, forced), strict=True):
            rows[number].append(found)
            left[number]["shapes"] = left[number]["shapes"][: len(found)]
    return [
        {shape: us for shape, us in best_of(some).items() if shape in map(tuple, plan["shapes"])}
        for some, plan in zip(rows, left, strict=True)
    ]


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
    end = time.monotonic() + given.seconds
    import gpu_calls  # noqa: F401  with torch, once for all processes; nothing here may use the GPU

    asked = plans(given.operators, given.dtypes, given.forms, given.count, given.seed, given.widths)
    several = [{**plan, "rounds": given.rounds, "in_l2": given.in_l2} for plan in asked]
    rows = run(several, given.seconds / 2 if given.variants else given.seconds)
    best: list[dict[Shape, float]] = [{} for _ in several]
    if given.variants:
        best = forced_times([{**p, "shapes": p["shapes"][: len(r)]} for p, r in zip(several, rows, strict=True)], end)
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
