"""Operators of tuned libraries in JAX: `register(my_kernels.ops)` returns functions that work under `jax.jit`.

Importing this package imports jax. No other part of aot_tune imports it.
"""

from __future__ import annotations

from aot_tune.jax.jax_operators import JaxError, JaxOperators, register

__all__ = ["JaxError", "JaxOperators", "register"]
