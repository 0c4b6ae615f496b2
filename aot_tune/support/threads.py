"""Threads that have to end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from typing import Any

__all__ = ["AGAIN", "end_all"]

AGAIN = 0.1
"""Seconds between two attempts to end what runs."""


def end_all(waiting: Collection[Future[Any]], interrupt: Callable[[], object]) -> None:
    """Wait until all have ended, and interrupt what they run until then.

    Once is not enough: of workers that are only starting, the next time kills what there is by then.
    """
    while wait(waiting, timeout=AGAIN).not_done:
        interrupt()
