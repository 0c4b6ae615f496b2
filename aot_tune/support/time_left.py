"""How long things still take: as long as those that are done took, in the mean."""

from __future__ import annotations

__all__ = ["seconds_left"]

_SOONEST, _LEAST, _SHARE = 5.0, 5, 0.05
"""Less is no ground for an estimate: seconds that went by, what is done, and its share of all."""


def seconds_left(done: int, total: int, spent: float, most: float = float("inf")) -> float | None:
    """Seconds until all are done, of which `done` took `spent`; never more than `most`, None where nothing is known."""
    if done >= total or spent < _SOONEST or done < max(_LEAST, _SHARE * total):
        return None
    return min(spent / done * (total - done), most)
