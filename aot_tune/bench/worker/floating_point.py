"""How the calling thread computes in floating point: a candidate must leave it as it found it."""

from __future__ import annotations

import ctypes

__all__ = ["AT_FIRST", "changed_since", "mode", "restore"]

_libm = ctypes.CDLL("libm.so.6")
_SAVED = ctypes.create_string_buffer(64)
"""The environment when this was imported; C's `fenv_t` takes 32 bytes at most."""
_libm.fegetenv(_SAVED)
_LEAST, _ONE = 5e-324, 1.0


def mode() -> tuple[int, bool]:
    """The rounding mode, and whether denormal numbers are flushed to 0."""
    return int(_libm.fegetround()), _LEAST * _ONE == 0.0


AT_FIRST = mode()
"""What it was when this was imported."""


def changed_since(before: tuple[int, bool]) -> str:
    """What a call made of the `mode` from before it, empty when nothing; it is what it was at first from then on."""
    now = mode()
    if now == before:
        return ""
    restore()
    what = "rounds in another direction" if now[0] != before[0] else "treats denormal numbers otherwise"
    return f"the thread that called it {what} from then on"


def restore() -> None:
    """Let the thread compute as it did when this was imported."""
    _libm.fesetenv(_SAVED)
