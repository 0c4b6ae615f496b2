#!/usr/bin/env python3
"""How long it takes to decide on products: of measured sizes, of other sizes, and of one size repeatedly.

    benchmarks/first_calls.py [--device cuda|cpu] [--dtypes bf16 f16 f32] [--count 4000] [--seed 1] [--turns 30]

It times validation and dispatch of the installed library, from C, without a launch. Each turn passes all sizes. So when
a size comes again, the memo of last calls has lost it. The output is the median of the turns and their quartiles, in ns
per call.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from native import build_calls, installed
from unseen_shapes import products

__all__: list[str] = []

_DEVICES = {"cpu": 1, "cuda": 2}
_DTYPES = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16)}
"""Codes and bits, by DLPack's numbers."""
_ENOUGH = 256
"""The least number of sizes in a turn, because there are few measured ones."""

Sizes = Sequence[tuple[int, int, int]]


def measured(family: str, dtype: str) -> Sizes:
    """Sizes of the plain products that are tuned for a family, with b stored by columns."""
    from aot_tune.spec.load_operators import bundled_templates, load_operator

    workload = load_operator(bundled_templates() / "gemm").workload_for(family)
    plain = [p for p in workload if not p.present and not p.attributes and p.order == {"b": (1, 0)}]
    return [(p.dims["M"], p.dims["N"], p.dims["K"]) for p in plain if p.dtypes.get("T", "f32") == dtype]


def turn(probe: ctypes.CDLL, device: str, dtype: str, sizes: Sizes) -> float:
    """ns per call."""
    flat = [extent for size in sizes for extent in size]
    code, bits = _DTYPES[dtype]
    array = (ctypes.c_int64 * len(flat))(*flat)
    return float(probe.calls_gemm_sizes(_DEVICES[device], code, bits, array, ctypes.c_int64(len(sizes))))


def main() -> None:
    """Print a line of JSON for each dtype and kind of sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(_DEVICES), default="cuda")
    parser.add_argument("--dtypes", nargs="+", choices=list(_DTYPES), default=["bf16", "f16", "f32"])
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        probe = ctypes.CDLL(str(build_calls(Path(folder), installed())))
        probe.calls_gemm_sizes.restype = ctypes.c_double
        for dtype in given.dtypes if given.device == "cuda" else ["f32"]:
            known = list(measured(given.device, dtype))
            sorts = {
                "measured": known * (_ENOUGH // max(len(known), 1) + 1) if known else [],
                "repeated": known[:1] * 1000,
            }
            sorts["others"] = products(given.count, given.seed)
            for name, sizes in sorts.items():
                found = [turn(probe, given.device, dtype, sizes) for _ in range(given.turns)] if sizes else []
                if found:
                    spread = statistics.quantiles(found, n=4)
                    told = {"ns": round(statistics.median(found)), "quartiles": [round(spread[0]), round(spread[2])]}
                    print(json.dumps({"dtype": dtype, "sizes": name, "count": len(set(sizes)), **told}), flush=True)


if __name__ == "__main__":
    main()
