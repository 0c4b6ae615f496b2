"""The price of a call: from Python, from C, and of the kernel by itself, on tensors of one element."""

from __future__ import annotations

import ctypes
import gc
import itertools
import time
from collections.abc import Callable
from typing import Any

__all__ = ["OPERATORS", "Overhead"]

OPERATORS = ("silu_mul", "gemm")
"""Operators that take two inputs and one output, so a call passes three tensors."""

_TREE = (1, 4096, 4096)
"""M, N, K of the product whose dispatch is timed without running it."""


class Overhead:
    """Three tensors of one element in a framework's form, and the same calls from C in the same process.

    With more `columns` (at most 4), they are rows of that many elements, and a second factor is a square.
    """

    def __init__(self, framework: str, calls: str, kernels: dict[str, dict[str, str] | None], columns: int = 1) -> None:
        from aot_tune import ops

        if framework == "torch":
            import torch

            torch.set_grad_enabled(False)
            ones: Callable[[int, int], Any] = torch.ones
        else:
            import numpy as np

            ones = lambda rows, columns: np.ones((rows, columns), dtype=np.float32)  # noqa: E731
        self.first, self.out = ones(1, columns), ones(1, columns)
        self.second = {"silu_mul": ones(1, columns), "gemm": ones(columns, columns)}
        self.columns = columns
        self.functions: dict[str, Callable[..., Any]] = {name: getattr(ops, name) for name in OPERATORS}
        self.probe = ctypes.CDLL(calls)
        self.kernels = {name: _address(kernel) for name, kernel in kernels.items() if kernel is not None}

    def measure(self, count: int) -> dict[str, float]:
        """Mean ns per call of each kind, from one loop each, shortly after each other."""
        found: dict[str, float] = {}
        self.probe.calls_columns(ctypes.c_int64(self.columns))
        for name in OPERATORS:
            found[f"{name} python"] = self._python(self.functions[name], self.second[name], count)
            found[f"{name} c"] = self._c(f"calls_{name}", 4 * count)
            if name in self.kernels:
                found[f"{name} kernel"] = self._c(f"calls_{name}_kernel", 4 * count, self.kernels[name])
        found["gemm workspace"] = self._c("calls_gemm_workspace", 4 * count, *_TREE)
        return found

    def _python(self, function: Callable[..., Any], second: Any, count: int) -> float:
        first, out = self.first, self.out
        rounds = itertools.repeat(None, count)
        enabled = gc.isenabled()
        gc.disable()
        try:
            start = time.perf_counter_ns()
            for _ in rounds:
                function(first, second, out=out)
            return (time.perf_counter_ns() - start) / count
        finally:
            if enabled:
                gc.enable()

    def _c(self, name: str, count: int, *arguments: int | ctypes.c_void_p) -> float:
        function = getattr(self.probe, name)
        function.restype = ctypes.c_double
        passed = [a if isinstance(a, ctypes.c_void_p) else ctypes.c_int64(a) for a in (*arguments, count)]
        spent = float(function(*passed))
        if spent < 0:
            raise RuntimeError(f"{name}: a call fails")
        return spent


def _address(kernel: dict[str, str]) -> ctypes.c_void_p:
    """The launch function of a kernel in its own library, which stays loaded."""
    return ctypes.cast(getattr(ctypes.CDLL(kernel["path"]), kernel["symbol"]), ctypes.c_void_p)
