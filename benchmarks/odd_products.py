#!/usr/bin/env python3
"""Products of odd sizes, and of matrices with any strides, on a GPU: the installed library against eager torch.

    benchmarks/odd_products.py [--groups odd epilogue unaligned strided batches] [--dtypes bf16 f16 f32 tf32]
                               [--rounds 5] [--json FILE]

`odd`: N, K or both are multiples of 2, or odd. `epilogue`: such products with bias, activation, residual. `unaligned`:
slices that leave out the first column. `strided`: every second column, one row for all, outputs by columns. `batches`:
both of the latter for batched products. Calls are in CUDA graphs, weights are cold, and rounds have changing order.
torch gets the output for plain products, and makes its own otherwise. A wrong result counts as an error, whatever its
time. A ratio is torch's time over ours, by paired rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stats import Timing, geometric_mean, paired_ratio

from aot_tune.spec import Problem, problem

__all__ = ["GROUPS", "cases"]

GROUPS = ("odd", "epilogue", "unaligned", "strided", "batches")
DTYPES = ("bf16", "f16", "f32", "tf32")
_ODD = (
    *((4096, 4096, 4095), (4096, 4095, 4096), (4095, 4095, 4095), (4096, 4100, 4096), (4096, 4098, 4098)),
    *((1024, 4097, 4096), (2048, 5003, 3001), (256, 4099, 4096), (64, 1001, 2047), (16, 4097, 4097)),
)
_SIZES = ((4096, 4096, 4096), (1000, 3000, 2000), (64, 4096, 4096))
_WRONG = 2e-2
"""How far norms may differ between 16-bit results that are rounded in different places. TF32 is nearer."""


def cases(group: str, dtype: str) -> Iterator[tuple[str, Problem]]:
    """Operators and problems of a group."""
    kind = "f32" if dtype == "tf32" else dtype
    given: dict[str, Any] = {"dtypes": {"T": kind}, "attributes": {"math": "tf32"} if dtype == "tf32" else {}}
    if group == "batches":
        yield from (("batched_gemm", one) for one in _batches(given))
    elif group == "epilogue":
        yield from (("gemm", one) for one in _epilogues(given))
    elif group == "odd":
        for order in ({"b": (1, 0)}, {}):
            yield from (("gemm", problem(M=m, N=n, K=k, order=order, **given)) for m, n, k in _ODD)
    else:
        layouts = _unaligned if group == "unaligned" else _strided
        for m, n, k in _SIZES:
            yield from (("gemm", problem(M=m, N=n, K=k, **given, **one)) for one in layouts(m, n, k, kind))


def _epilogues(given: dict[str, Any]) -> Iterator[Problem]:
    for m, n, k in ((4096, 4100, 4096), (4096, 4095, 4095), (512, 3001, 1000)):
        for activation, present in (("gelu", ("bias",)), ("none", ("bias", "residual"))):
            chosen = {**given, "attributes": {**given["attributes"], "activation": activation}}
            yield problem(M=m, N=n, K=k, order={"b": (1, 0)}, present=present, **chosen)
            yield problem(M=m, N=n, K=k, present=present, alignment={"a": _least(given)}, **chosen)


def _least(given: dict[str, Any]) -> int:
    return 4 if given["dtypes"]["T"] == "f32" else 2


def _unaligned(_m: int, n: int, k: int, dtype: str) -> Iterator[dict[str, Any]]:
    least = 4 if dtype == "f32" else 2
    yield {"alignment": {"a": least}, "strides": {"a": (k + 1, 1)}}
    yield {"alignment": {"b": least}, "strides": {"b": (n + 1, 1)}}
    yield {"alignment": {"b": least}, "strides": {"b": (1, k + 1)}}
    yield {"alignment": {"a": least, "b": least}}
    yield {"alignment": {"out": least}, "strides": {"out": (n + 1, 1)}}


def _strided(m: int, n: int, k: int, _dtype: str) -> Iterator[dict[str, Any]]:
    yield {"strides": {"a": (2 * k, 2)}}
    yield {"strides": {"b": (2 * n, 2)}}
    yield {"strides": {"a": (0, 1)}}
    yield {"strides": {"b": (0, 1)}}
    yield {"strides": {"out": (1, m)}}
    yield {"strides": {"out": (2 * n, 2)}}


def _batches(given: dict[str, Any]) -> Iterator[Problem]:
    least = _least(given)
    for b, m, n, k in ((32, 1024, 1023, 127), (64, 512, 512, 64), (8, 1000, 1001, 1003)):
        yield problem(B=b, M=m, N=n, K=k, order={"b": (0, 2, 1)}, **given)
        yield problem(B=b, M=m, N=n, K=k, alignment={"a": least, "b": least}, **given)
        yield problem(B=b, M=m, N=n, K=k, strides={"a": (2 * m * k, 2 * k, 2)}, **given)
        yield problem(B=b, M=m, N=n, K=k, strides={"out": (m * n, 1, m)}, **given)


def measure(operator: str, one: Problem, rounds: int) -> dict[str, Any]:
    """Microseconds of both by round, how far they differ, and which variant served."""
    from gpu_calls import difference, eager, facts, ours, product
    from gpu_race import Arena, Contender, race
    from gpu_tasks import Task

    alone = not one.present and one.attributes.get("activation", "none") == "none" and operator == "gemm"
    arena = Arena(Task(operator, one, "product" if alone else "fused", one.dtypes["T"]))
    mine, other = ours(arena, None), product(arena) if alone else eager(arena)
    off = difference(arena, mine, eager(arena))
    contenders = [Contender("ours", mine, arena.sets), Contender("torch", other, arena.sets)]
    return {"us": race(contenders, rounds), "off": off, **facts(arena, None)}


def told(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table of a group's rows, and their summary."""
    lines = [f"### {name}", "", "| product | ours, us | torch, us | ratio | served by |", "|---|---|---|---|---|"]
    ratios = []
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['problem']} | {row['error']} | | | |")
            continue
        mine, other = (Timing(n, tuple(row["us"][n])) for n in ("ours", "torch"))
        ratios.append(paired_ratio(other, mine))
        served = row.get("kernel") or row.get("missing", "")
        lines.append(f"| {row['problem']} | {mine.median:.1f} | {other.median:.1f} | {ratios[-1]:.2f} | {served} |")
    errors = sum("error" in row for row in rows)
    least = f", {min(ratios):.2f} the least" if ratios else ""
    return [
        *lines,
        "",
        f"{geometric_mean(ratios):.2f} x torch in the mean of {len(ratios)}{least}; {errors} errors.",
        "",
    ]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), choices=GROUPS)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import torch

    torch.set_grad_enabled(False)
    kept: dict[str, list[dict[str, Any]]] = {}
    for group in given.groups:
        for dtype in given.dtypes:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            rows: list[dict[str, Any]] = []
            for operator, one in cases(group, dtype):
                try:
                    row = measure(operator, one, given.rounds)
                    wrong = not row["off"] <= _WRONG
                    row |= {"error": f"it differs from torch by {row['off']:.2e} of the norm"} if wrong else {}
                except Exception as error:  # the others are measured anyway
                    row = {"error": f"{type(error).__name__}: {str(error)[:120]}"}
                rows.append({"problem": one.id, **row})
            kept[f"{group}, {dtype}"] = rows
            print("\n".join(told(f"{group}, {dtype}", rows)), flush=True)
            if given.json:
                given.json.write_text(json.dumps(kept))
    return int(any("error" in row for rows in kept.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
