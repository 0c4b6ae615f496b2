"""The bench of a build: started when something has to run, with candidates linked for it."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from aot_tune.bench import Bench, Device
from aot_tune.compile import toolchain_for
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.session import Session

__all__ = ["LazyBench"]


class LazyBench:
    """A bench on one device whose workers start at first use; a context manager."""

    def __init__(self, session: Session, device: Device) -> None:
        self.session, self.device = session, device
        self._stack = ExitStack()
        self._bench: Bench | None = None
        self._scratch = Path()
        self._linked: dict[str, Path] = {}

    def __enter__(self) -> LazyBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        self._bench = None

    def get(self) -> Bench:
        """The bench, started at first use.

        Raises:
            WorkerError: when no worker can be started.
        """
        if self._bench is None:
            self._scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="aot_tune-bench-")))
            self._bench = self._stack.enter_context(
                Bench(
                    self.device,
                    self.session.policy,
                    scratch=self._scratch,
                    threads=self.session.threads,
                    log=self.session.progress.line,
                )
            )
        return self._bench

    def shared_object(self, entry: Entry) -> Path:
        """The candidate's object linked for the benchmark, made once."""
        self.get()
        if entry.object is None:  # known from a record, but not on this problem
            self.session.compile([entry], "again")
        assert entry.object is not None
        if entry.digest not in self._linked:
            path = self._scratch / f"{entry.digest[:24]}.so"
            chain = toolchain_for(entry.candidate.backend, self.session.environment)
            chain.link_shared([Path(entry.object.path)], path)
            self._linked[entry.digest] = path
        return self._linked[entry.digest]
