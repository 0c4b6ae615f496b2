"""Runs the operator `attend` in Triton's interpreter: `triton_attend.py <folder>` reads and writes arrays there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from formulas import TEMPLATES
from places import SHARED

from aot_tune.render.triton.fragment_source import fragment_data
from aot_tune.spec.load_operators import load_operator
from aot_tune.triton.fragment_functions import fragment_function
from aot_tune.triton.load_function import load


def main() -> None:
    """Call it on the arrays of the folder."""
    folder, op = Path(sys.argv[1]), load_operator(TEMPLATES / "attend")
    arrays = dict(np.load(folder / "inputs.npz"))
    limit = float(arrays.pop("limit"))
    tensors: dict[str, Any] = {n: torch.from_numpy(a) for n, a in arrays.items()}
    tensors["out"] = torch.full_like(tensors["query"], float("nan"))
    strides = {f"stride_{n}_{a}": s for n, t in tensors.items() for a, s in enumerate(t.stride()[:3])}
    (b, h, q, d), k = tensors["query"].shape, tensors["key"].shape[2]
    function: Any = load("triton_functions/attend.py:attend", [str(SHARED)])
    score = fragment_function(fragment_data(op, "score"), folder)
    with np.errstate(all="ignore"):
        function[(-(-q // 16), b * h)](**tensors, **strides, limit=limit, H=h, Q=q, K=k, D=d, BM=16, BN=16, score=score)
    np.save(folder / "out.npy", tensors["out"].numpy())


if __name__ == "__main__":
    main()
