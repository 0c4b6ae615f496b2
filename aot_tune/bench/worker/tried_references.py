"""A process that runs references on one small problem each, on numpy's arrays and on torch's tensors as for a GPU.

python -m aot_tune.bench.worker.tried_references <request.json> <answers.json>
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from aot_tune.bench.protocol.messages import TriedReference
from aot_tune.bench.worker.reference_results import logical_inputs, run_reference
from aot_tune.spec.load_operators import load_operator

_TEXT = 500
"""How many characters of an error are reported."""


def _on_arrays(tried: TriedReference) -> str:
    """What is wrong with the reference on numpy's arrays."""
    operator = load_operator(Path(tried.folder)).concrete(tried.check.problem.dtypes)
    with np.errstate(all="ignore"):
        inputs = logical_inputs(operator, tried.check, tried.seed)
        for wide in (True, False):
            run_reference(operator, tried.check, inputs, np, wide=wide)
    return ""


def _on_tensors(tried: TriedReference) -> str:
    """What is wrong with the reference on torch's tensors, also beside numpy's arrays, if it takes these."""
    try:
        import torch
    except ImportError:
        return ""
    from torch.overrides import TorchFunctionMode

    from aot_tune.bench.worker.cuda_truth import draw_inputs, exact_on_host, exact_values

    class NoneOnHost(TorchFunctionMode):
        """What a GPU's tensors refuse is refused."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in ("__array__", "numpy"):
                raise TypeError("it calls a function of numpy itself, which cannot read a GPU's tensor; use xp's")
            return func(*args, **(kwargs or {}))

    operator, check = load_operator(Path(tried.folder)).concrete(tried.check.problem.dtypes), tried.check
    host = torch.device("cpu")
    storages = draw_inputs(operator, check, tried.seed, host)
    with NoneOnHost():
        results = exact_values(operator, check, storages, host)
    exact_values(operator, check, storages, host, wide=False)
    try:
        others = exact_on_host(operator, check, storages, wide=True)
    except Exception:  # a reference may be for tensors alone
        return ""
    for name, value in results.items():
        if not torch.allclose(value.double(), others[name].double(), rtol=1e-6, atol=1e-9, equal_nan=True):
            return f"{name!r} is another than on numpy's arrays. Does it call methods of arrays, or torch's functions?"
    return ""


def main() -> int:
    """Answer the requests. Each answer is written before the next reference runs, since one may end the process."""
    answers: list[str] = []
    for tried in msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[TriedReference]):
        try:
            fault = (_on_tensors if tried.arrays == "torch" else _on_arrays)(tried)
        except Exception as error:  # anything that a reference raises
            fault = " ".join(f"{type(error).__name__}: {error}".split())[:_TEXT]
        answers.append(fault)
        Path(sys.argv[2]).write_bytes(msgspec.json.encode(answers))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
