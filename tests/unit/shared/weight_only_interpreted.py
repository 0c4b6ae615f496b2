"""Runs the Triton kernel of products with narrow weights in Triton's interpreter, on calls that a file holds.

`python weight_only_interpreted.py <folder>`, with TRITON_INTERPRET=1: of each `<operator>_<number>.npz` a call's
tensors, with M, the config and the checkpoint in `call.json` beside; writes `<operator>_<number>.out.npy`.
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bundled import OPERATORS

from aot_tune.spec import Expr, problem
from aot_tune.spec.load_operators import bundled_templates
from aot_tune.triton.installed import load

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def main() -> None:
    folder = Path(sys.argv[1])
    function: Any = load("common/weight_only/triton.py:multiply", [str(bundled_templates())])
    for name, call in json.loads((folder / "call.json").read_text()).items():
        run(folder / name, call, function)


def run(at: Path, call: dict[str, Any], function: Any) -> None:
    op = OPERATORS[call["operator"]]
    held = np.load(at.with_suffix(".npz"))
    tensors: dict[str, Any] = {n: torch.from_numpy(held[n]) for n in held.files}
    for name in ("a", "scales", "bias"):
        if name in tensors:
            tensors[name] = tensors[name].to(TYPES[call["dtype"]])
    m, n, k, g = call["shape"]
    tensors["out"] = torch.full((m, n), float("nan"), dtype=TYPES[call["dtype"]])
    if op.name == "int8_mm":
        tensors["w"] = tensors["w"].t().contiguous().t()
    given = problem(
        M=m,
        N=n,
        K=k,
        G=g,
        dtypes={"T": call["dtype"]},
        present=["bias"] if "bias" in tensors else [],
        strides={t: tuple(tensors[t].stride()) for t in tensors},
        attributes={"checkpoint": call["checkpoint"]} if op.attributes else {},
    )
    facts = op.facts(given) | {f"parameter.{p}": v for p, v in call["config"].items()}
    declared = op.kernel("triton").triton_functions[0]
    passed: dict[str, Any] = {}
    for parameter in inspect.signature(function.fn).parameters:
        value = declared.arguments.get(parameter, parameter)
        if isinstance(value, Expr):
            value = value.evaluate(facts)
        elif isinstance(value, str):
            value = {parameter: value, **given.dims, **call["config"], "bias": None, **tensors}.get(value, value)
        passed[parameter] = value
    (grid,) = (e.evaluate(facts) for e in declared.grid)
    function[(grid,)](**passed)
    np.save(at.with_suffix(".out.npy"), tensors["out"].to(torch.float64).numpy())


if __name__ == "__main__":
    main()
