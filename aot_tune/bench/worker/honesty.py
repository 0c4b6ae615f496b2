"""Whether a candidate does less where a call is repeated, as it is while it is timed, than where it is needed.

Calls are timed twice. Before each one its outputs and an element of each input are written: with poison and another
element, or with what is there already. An honest candidate takes as long both times. One that sees that its output is
there already, or that its inputs are those of the last call, does not.
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
"""Of a call's time; less than that is taken for noise."""
_PAIRS = 16
"""Of a repeated and a fresh play. What else runs makes single ones longer, of either kind, but not all of one kind."""
_PAUSES = (0.0, 0.02, 0.08, 0.3)
"""Seconds before each look. The pairs of one take milliseconds: a core may get slower among them, and stay so."""


def does_less(
    play: Callable[[bool], float], call_ns: float, least_ns: float, pause: Callable[[float], None] = time.sleep
) -> str:
    """What is wrong with a candidate that does less where a call is repeated, each time that it is looked; else empty.

    The last play is a fresh one: what it leaves is to be verified.

    Args:
        play: ns of a call and of what is done before it: with True of a fresh call, else of a repeated one.
        call_ns: ns of a call as it was timed.
        least_ns: differences below that are noise.
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
        f"takes {(call_ns + least) / call_ns:.1f} times as long where its outputs are not there yet and its "
        "inputs have changed: it does less in a call that is repeated"
    )


def _difference(play: Callable[[bool], float], limit: float) -> float:
    """ns that the shortest fresh play takes longer than the shortest repeated one, of as many pairs as it takes."""
    repeated, fresh = math.inf, math.inf
    for _ in range(_PAIRS):
        repeated, fresh = min(repeated, play(False)), min(fresh, play(True))
        if fresh - repeated <= limit:
            break
    return fresh - repeated


def exchangeable(operator: Operator, inputs: Iterable[Tensor]) -> list[Tensor]:
    """Of some inputs those whose elements can change places: nothing depends on which stands where.

    That is not said of what a function of the author's may have seen when it drew a later input.
    """
    every = operator.inputs
    seen = {t.name for i, t in enumerate(every) if any(isinstance(later.values, Drawn) for later in every[i + 1 :])}
    return [t for t in inputs if isinstance(t.values, (Generator, Integers, Sparse)) and t.name not in seen]


def two_elements(values: NDArray[np.uint8], width: int, places: np.random.Generator) -> tuple[int, int] | None:
    """Byte offsets of two elements of a storage that differ; None where there are none, as far as some tries tell."""
    count = values.size // width
    for one, other in places.integers(0, max(count, 1), (16, 2)).tolist() if count > 1 else ():
        a, b = one * width, other * width
        if not np.array_equal(values[a : a + width], values[b : b + width]):
            return a, b
    return None
