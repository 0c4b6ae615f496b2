"""From the start of a process to the first result: `triton_start.py WAY KERNELS`, one JSON line of seconds.

WAY is `cuda` (only torch's tensors), `aot_tune` (the installed library of examples/triton_package) or `jit` (its
functions as they are in the file KERNELS). AOT_TUNE_BENCHMARK_START is the time when the process was started, by the
monotonic clock.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from typing import Any


def main(way: str, kernels: str) -> dict[str, float]:
    """Print seconds since the start: until CUDA and the tensors are ready, and until the result is."""
    import torch

    x = torch.ones(64, 4096, dtype=torch.bfloat16, device="cuda")
    weight, out = torch.ones(4096, dtype=torch.bfloat16, device="cuda"), torch.empty_like(x)
    torch.cuda.synchronize()
    ready = _since()
    if way == "aot_tune":
        importlib.import_module("triton_package.ops").rms_norm(x, weight, out=out)
    elif way == "jit":
        spec = importlib.util.spec_from_file_location("kernels", kernels)
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        sys.modules["kernels"] = module
        spec.loader.exec_module(module)
        module.rms_norm[lambda meta: (-(-64 // meta["ROWS"]),)](out, x, weight, 4096, 4096, 64, 4096, 1e-5)
    torch.cuda.synchronize()
    first = _since()
    if way != "cuda" and not bool(torch.isfinite(out).all()):
        raise SystemExit("the result is wrong")
    return {"ready": ready, "first": first}


def _since() -> float:
    return time.monotonic() - float(os.environ["AOT_TUNE_BENCHMARK_START"])


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
