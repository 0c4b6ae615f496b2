"""The end of a budget: it ends whatever still runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from aot_tune.search.budget import Budget
from aot_tune.support.interrupts import AGAIN

__all__ = ["ended_with"]


@contextlib.contextmanager
def ended_with(budget: Budget, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` repeatedly, in a thread of its own, from the end of the budget until the block ends."""
    if budget.seconds is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        wait = budget.left
        while not done.wait(wait):
            if budget.left <= 0:
                stop()
            wait = max(budget.left, AGAIN)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
