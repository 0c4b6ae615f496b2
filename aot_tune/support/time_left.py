"""How long things still take: as long as those that are done took, in the mean."""

from __future__ import annotations

__all__ = ["seconds_left"]

_SOONEST = 1.0
"""Seconds before which too little is known to tell."""


def seconds_left(done: int, total: int, spent: float, most: float = float("inf")) -> float | None:
    """Seconds until all are done, of which `done` took `spent`; never more than `most`, None where nothing is known."""
    if not 0 < done < total or spent <= _SOONEST:
        return None
    return min(spent / done * (total - done), most)
