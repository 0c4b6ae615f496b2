"""Whether a candidate does less when a call is repeated, as in timed calls, than in a call whose results are needed.

Calls are timed in two ways. Before each call, its outputs and an element of each input are written. In a fresh call,
that is poison and another element. In a repeated call, it is what is there already. An honest candidate takes the same
time in both. A candidate that notices that its output exists, or that its inputs have not changed, does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from aot_tune.spec import Drawn, Generator, Integers, Operator, Sparse, Tensor

__all__ = ["does_less", "exchangeable", "two_elements"]

_SHARE = 0.25
"""Share of a call's time. Less is noise."""
_PAIRS = 16
"""Pairs of a repeated and a fresh play. Other programs make single plays of either kind longer, but not all of one
kind."""
_PAUSES = (0.0, 0.02, 0.08, 0.3)
"""Seconds before each test. The pairs of a test take milliseconds. A core may slow down in between, and stay slow."""


def does_less(
    play: Callable[[bool], float], call_ns: float, least_ns: float, pause: Callable[[float], None] = time.sleep
) -> str:
    """What is wrong with a candidate that does less in repeated calls, in every test. Otherwise empty.

    The last play is a fresh one. Its results should be verified.

    Args:
        play: ns of a call and of the work before it. With True it is a fresh call, otherwise a repeated one.
        call_ns: ns of a call, as timed.
        least_ns: smaller differences are noise.
        pause: waits for so many seconds.
    """
    limit, least = max(_SHARE * call_ns, least_ns), math.inf
    for seconds in _PAUSES:
        pause(seconds)
        more = _difference(play, limit)
        if more <= limit:
            return ""
        least = min(least, more)
    return (
        f"takes {(call_ns + least) / call_ns:.1f} times as long when its outputs are missing and its "
        "inputs have changed: it does less in a call that is repeated"
    )


def _difference(play: Callable[[bool], float], limit: float) -> float:
    """How many ns the shortest fresh play takes longer than the shortest repeated one.

    It stops as soon as this is noise.
    """
    repeated, fresh = math.inf, math.inf
    for _ in range(_PAIRS):
        repeated, fresh = min(repeated, play(False)), min(fresh, play(True))
        if fresh - repeated <= limit:
            break
    return fresh - repeated


def exchangeable(operator: Operator, inputs: Iterable[Tensor]) -> list[Tensor]:
    """Those of some inputs whose elements can change places, because their order does not matter.

    Excluded are inputs that an author's function may have seen when it drew a later input.
    """
    every = operator.inputs
    seen = {t.name for i, t in enumerate(every) if any(isinstance(later.values, Drawn) for later in every[i + 1 :])}
    return [t for t in inputs if isinstance(t.values, (Generator, Integers, Sparse)) and t.name not in seen]


def two_elements(values: NDArray[np.uint8], width: int, places: np.random.Generator) -> tuple[int, int] | None:
    """Byte offsets of two different elements of a storage, or None if some tries found none."""
    count = values.size // width
    for one, other in places.integers(0, max(count, 1), (16, 2)).tolist() if count > 1 else ():
        a, b = one * width, other * width
        if not np.array_equal(values[a : a + width], values[b : b + width]):
            return a, b
    return None
