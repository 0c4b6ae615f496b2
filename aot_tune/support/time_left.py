"""Estimates how long things still take, from the mean time of those that are done."""

from __future__ import annotations

__all__ = ["seconds_left"]

_SOONEST, _LEAST, _SHARE = 5.0, 5, 0.05
"""An estimate needs at least these: seconds that passed, number of things done, and their share of all."""


def seconds_left(done: int, total: int, spent: float, most: float = float("inf")) -> float | None:
    """Seconds until all are done. `done` of them took `spent` seconds. At most `most`; None if nothing is known."""
    if done >= total or spent < _SOONEST or done < max(_LEAST, _SHARE * total):
        return None
    return min(spent / done * (total - done), most)
