"""Functions that references need and that the array API standard lacks."""

from __future__ import annotations

import math
from typing import Any


def erf(xp: Any, x: Any) -> Any:
    """The error function, element by element, in the dtype of `x`; numpy goes through the C library."""
    if hasattr(xp, "special"):
        return xp.special.erf(x)
    exact = xp.frompyfunc(math.erf, 1, 1)
    return exact(x).astype(x.dtype)


def sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)) without overflow."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + small), small / (1 + small))


def activation(xp: Any, name: str, x: Any) -> Any:
    """Apply `none`, `relu`, `gelu` (with erf), `gelu_tanh` or `silu`. NaN stays NaN, and -inf gives the limit, 0.

    The two forms of GELU are from Hendrycks and Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415).
    """
    if name == "none":
        return x
    if name == "relu":
        return xp.where(x < 0, xp.zeros_like(x), x)
    if name == "gelu":
        value = x * 0.5 * (1 + erf(xp, x * math.sqrt(0.5)))
    elif name == "gelu_tanh":
        value = x * 0.5 * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    elif name == "silu":
        value = x * sigmoid(xp, x)
    else:
        raise ValueError(f"there is no activation {name!r}")
    return xp.where(x == -math.inf, xp.zeros_like(x), value)
