"""Links candidates for the benchmark, several at a time. It links only what is to be measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aot_tune.compile import Object, Variant
from aot_tune.compile.batches import Task
from aot_tune.pipeline.evidence import Evidence
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

    @property
    def evidence(self) -> list[Evidence]:
        """What is known of the operators."""
        return [evidence for _, evidence in self._of.values()]

    def after(self, entry: Variant, made: Object) -> Task | None:
        """What links a new object; None if all its screens are known or if there is no object."""
        wanted = made.status == "ok" and self._lacks(entry, made.code)
        return partial(self._link, entry, made) if wanted else None

    def all(self, entries: Iterable[Variant]) -> None:
        """Link compiled candidates."""
        made = [(e, e.made) for e in entries if e.compiled]
        with ThreadPoolExecutor(self._session.jobs_of("cxx").count) as pool:
            for done in [pool.submit(self._link, *one) for one in made]:
                done.result()

    def _lacks(self, entry: Variant, digest: str) -> bool:
        loaded, evidence = self._of[entry.candidate.operator]
        wanted = (p for p in evidence.workload if evidence.meant_for(entry, p) and not evidence.has(entry, p))
        return not all(self._pool.knows(loaded, p, entry.candidate.id, digest) for p in wanted)

    def _link(self, entry: Variant, made: Object) -> None:
        with contextlib.suppress(ToolchainError):
            self._pool.shared.link(entry.candidate.backend, made, entry.rendered.compile)
