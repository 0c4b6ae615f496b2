"""Links candidates for the benchmark, several at a time. It links only what is to be measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aot_tune.compile import Object
from aot_tune.compile.batches import Task
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.support.errors import ToolchainError

__all__ = ["BenchLinker"]


class BenchLinker:
    """Links for all devices of a pool before anything is timed, because a linker could disturb timing.

    If a candidate does not link, the error is reported when it is measured.
    """

    def __init__(self, session: Session, pool: DevicePool, pairs: Sequence[tuple[LoadedOperator, Evidence]]) -> None:
        self._session, self._pool = session, pool
        self._of = {evidence.operator.name: (loaded, evidence) for loaded, evidence in pairs}

    def after(self, entry: Entry, made: Object) -> Task | None:
        """What links a new object; None if all its screens are known or if there is no object."""
        wanted = made.status == "ok" and self._lacks(entry, made.code)
        return partial(self._link, entry, made) if wanted else None

    def all(self, entries: Iterable[Entry]) -> None:
        """Link compiled candidates."""
        made = [(e, e.object) for e in entries if e.object is not None and e.compiled]
        with ThreadPoolExecutor(self._session.jobs_of("cxx").count) as pool:
            for done in [pool.submit(self._link, *one) for one in made]:
                done.result()

    def _lacks(self, entry: Entry, digest: str) -> bool:
        loaded, evidence = self._of[entry.candidate.operator]
        wanted = (p for p in evidence.workload if evidence.meant_for(entry, p) and not evidence.has(entry, p))
        return not all(self._pool.knows(loaded, p, entry.candidate.id, digest) for p in wanted)

    def _link(self, entry: Entry, made: Object) -> None:
        with contextlib.suppress(ToolchainError):
            self._pool.shared.link(entry.candidate.backend, made, entry.rendered.compile)
