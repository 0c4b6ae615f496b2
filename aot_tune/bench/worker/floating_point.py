"""How the calling thread computes in floating point. A candidate must leave this as it found it."""

from __future__ import annotations

import ctypes

__all__ = ["AT_FIRST", "changed_since", "mode", "restore"]

_libm = ctypes.CDLL("libm.so.6")
_SAVED = ctypes.create_string_buffer(64)
"""The environment at import. C's `fenv_t` takes at most 32 bytes."""
_libm.fegetenv(_SAVED)
_LEAST, _ONE = 5e-324, 1.0


def mode() -> tuple[int, bool]:
    """The rounding mode, and whether denormal numbers are flushed to 0."""
    return int(_libm.fegetround()), _LEAST * _ONE == 0.0


AT_FIRST = mode()
"""The mode at import."""


def changed_since(before: tuple[int, bool]) -> str:
    """How a call changed the `mode` from before it, or empty. This also resets the mode to that at import."""
    now = mode()
    if now == before:
        return ""
    restore()
    what = "rounds in another direction" if now[0] != before[0] else "treats denormal numbers differently"
    return f"the thread that called it {what} from then on"


def restore() -> None:
    """Let the thread compute as it did at import."""
    _libm.fesetenv(_SAVED)
