"""Fits the odd problems of candidates while workers start, when the build's own process is idle."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from aot_tune.bench.devices.family import family
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.session import Session
from aot_tune.spec import Target
from aot_tune.support.errors import AotTuneError

__all__ = ["checks_fitted_beside"]


@contextmanager
def checks_fitted_beside(session: Session, target: Target, entries: Sequence[Entry]) -> Iterator[None]:
    """In the block, a thread fits the odd problems on which the entries are verified, in their order.

    Benches need them before an object's first screen, and share them. If one fails, that screen reports it.
    """
    policy, on_host = session.policy_of(target.family), family(target.family).on_host
    ended = threading.Event()

    def fit() -> None:
        for entry in entries:
            loaded = session.operators[entry.candidate.operator]
            if ended.is_set():
                return
            try:
                session.checks.of(loaded.folder, loaded.operator, entry.requires, policy, on_host)
            except AotTuneError:
                continue

    with ThreadPoolExecutor(1) as thread:
        thread.submit(fit)
        try:
            yield
        finally:
            ended.set()
