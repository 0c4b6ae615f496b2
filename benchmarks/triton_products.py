"""Triton's persistent matrix products against cuBLAS: a build of only the Triton kernels of `gemm`, and its races.

The compared times are from the build's own races. In their rounds, the winner and torch's product take turns.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_tables import Verdict
from projects import cut_templates, tune

from aot_tune.spec.load_operators import bundled_templates, load_operator

__all__ = ["LEAST_ROWS", "products", "verdicts_of"]

LEAST_ROWS = 1024
"""The least number of rows for which a persistent kernel is compared."""
_LEAST = 0.9


def products(objects: Path | None, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The fastest Triton kernel of each 16-bit product with many rows and no epilogue; and cuBLAS.

    `objects` is a folder of compiled objects to start from. A copy of it is used.


    Raises:
        SystemExit: when the build fails.
    """
    workload = load_operator(bundled_templates() / "gemm").workload_for("cuda")
    kept = [
        p.id
        for p in workload
        if p.dims["M"] >= LEAST_ROWS and p.dtypes.get("T") in ("bf16", "f16") and not p.present and not p.attributes
    ]
    say(f"{len(kept)} products")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cache = folder / "cache"
        cache.mkdir(mode=0o700)
        if objects is not None and objects.is_dir():
            shutil.copytree(objects, cache / "objects", copy_function=os.link)
        cut_templates(folder / "templates", "cuda", {"gemm": kept})
        tuned = tune(folder / "plan", folder / "templates", "cuda", cache, FILTER="gemm/triton_*")
    say(f"tuned in {tuned.seconds:.0f} s")
    rows = next(o.problems for o in tuned.report.operators if o.target.startswith("cuda"))
    return [
        {"problem": r.problem, "kernel": r.winner, "ns": r.ns, "cublas_ns": r.baselines, "paired": r.paired}
        for r in rows
    ]


def verdicts_of(rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """The mean over all products, and the slowest of them."""
    ratios = {r["problem"]: r["paired"][0] for r in rows if r["paired"]}
    what = f"persistent product of {LEAST_ROWS} rows and more, against cuBLAS"
    if not ratios or len(ratios) < len(rows):
        return [Verdict(what, f">= {_LEAST:g} x", f"{len(ratios)} of {len(rows)} raced", False)]
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    lowest = min(ratios, key=lambda p: ratios[p])
    below = sum(ratio < _LEAST for ratio in ratios.values())
    slowest = f"{ratios[lowest]:.3f} x ({lowest}); {below} of {len(ratios)} below"
    return [
        Verdict(f"{what}, geometric mean", f">= {_LEAST:g} x", f"{mean:.3f} x", mean >= _LEAST),
        Verdict(f"{what}, the slowest", f">= {_LEAST:g} x", slowest, below == 0),
    ]
