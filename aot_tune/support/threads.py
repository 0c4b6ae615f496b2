"""Ends threads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from typing import Any

__all__ = ["AGAIN", "end_all"]

AGAIN = 0.1
"""Seconds between two attempts to end them."""


def end_all(waiting: Collection[Future[Any]], interrupt: Callable[[], object]) -> None:
    """Wait until all threads have ended, and interrupt their work until then.

    One interrupt is not enough: workers that are only starting must be killed again later.
    """
    while wait(waiting, timeout=AGAIN).not_done:
        interrupt()
