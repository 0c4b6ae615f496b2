"""Runs fragments in Triton's interpreter: a line of JSON with the fragments and a call each way.

`python triton_formulas.py <folder>`, with TRITON_INTERPRET=1. Each fragment has a kernel of its own, written to the
folder, which passes what it takes.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from formulas import MODES, SIZES, FormulaCall, triton_kernel

from aot_tune.render.triton.recipe import TritonFragment, parameters_of
from aot_tune.triton.triton_private import fragment_function

BLOCK = (4, 8)


def kernel_of(fragment: TritonFragment, folder: Path, number: int) -> Any:
    path = folder / f"kernel_{number}.py"
    path.write_text(triton_kernel(fragment))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def run(fragment: TritonFragment, call: FormulaCall, kernel: Any, function: Any) -> list[list[float]]:
    tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in call.arrays.items()}
    tensors["rows"] = tensors["rows"].to(torch.bfloat16)
    given: dict[str, Any] = {**SIZES, **call.scalars, "mode": MODES.index(call.mode), "maybe": None, **tensors}
    for name, tensor in {"maybe": torch.zeros(1), **tensors}.items():
        given |= {f"stride_{name}_{axis}": stride for axis, stride in enumerate(tensor.stride())}
    out = torch.full((SIZES["M"], SIZES["N"]), float("nan"))
    grid = tuple(-(-SIZES[n] // b) for n, b in zip("MN", BLOCK, strict=True))
    passed = {n: given[n] for n in ("x", "M", "N", *parameters_of(fragment))}
    with np.errstate(all="ignore"):
        kernel[grid](**passed, out=out, BM=BLOCK[0], BN=BLOCK[1], FRAGMENT=function)
    return out.tolist()


def main() -> None:
    """Answer until the input ends."""
    folder, number = Path(sys.argv[1]), 0
    for line in sys.stdin:
        asked, answers = json.loads(line), []
        for fragment in msgspec.convert(asked["fragments"], list[TritonFragment]):
            number += 1
            kernel, function = kernel_of(fragment, folder, number), fragment_function(fragment, folder)
            answers.append([run(fragment, FormulaCall(**call), kernel, function) for call in asked["calls"]])
        sys.stdout.write(json.dumps(answers) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
