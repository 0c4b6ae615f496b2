"""The error of a registration."""

from __future__ import annotations

from aot_tune.support.errors import AotTuneError

__all__ = ["JaxError"]


class JaxError(AotTuneError):
    """Operators of a library cannot be registered with JAX."""
