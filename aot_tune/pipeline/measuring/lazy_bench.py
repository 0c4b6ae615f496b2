"""The benches of a build: started when something has to run. They share files, and what one device found out."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import msgspec

from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.findings import Findings
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import Object, Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.executor import MeasuringBench
from aot_tune.pipeline.measuring.device_lock import device_lock
from aot_tune.pipeline.session import Session
from aot_tune.render import Rendered
from aot_tune.search.budget import Budget
from aot_tune.spec import Operator
from aot_tune.support.errors import ToolchainError, WorkerError
from aot_tune.support.storage import check_loadable, scratch_folder


class BenchFiles:
    """A context manager whose files are removed at its end. Any thread may use it.

    `benches` is how many share it. When `over` says so, no bench waits for another's findings any more.
    """

    def __init__(self, session: Session, benches: int = 1, over: Callable[[], bool] = lambda: False) -> None:
        self.benches, self._over = benches, over
        self._session, self._stack, self._lock = session, ExitStack(), threading.Lock()
        self._folder: Path | None = None
        self._findings: Findings | None = None
        self._linked: dict[str, Path] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> BenchFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def findings(self) -> Findings:
        """What one device found out for all."""
        folder = self.folder()
        with self._lock:
            if self._findings is None:
                self._findings = Findings(folder / "references", over=self._over, checks=self._session.checks)
            return self._findings

    def folder(self) -> Path:
        """A folder for files that all benches can read. It is removed at the end."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(self._stack.enter_context(scratch_folder())).resolve()
            return self._folder

    def own_folder(self) -> Path:
        """A new folder inside it for one bench."""
        return self.folder() / f"bench-{next(self._numbers)}"

    def is_linked(self, compiled: Object) -> bool:
        with self._lock:
            return compiled.digest in self._linked

    def link(self, rendered: Rendered, compiled: Object) -> Path:
        """Link a candidate's object for the benchmark, once. Several threads may ask at the same time.

        Raises:
            ToolchainError: when the object does not link.
            WorkerError: when workers could not load it from its folder.
        """
        with self._lock:
            linked = self._linked.get(compiled.digest)
        if linked is not None:
            return linked
        folder = self.folder()
        check_loadable(folder)  # else every candidate would fail, and the failures would be stored
        path = folder / f"{compiled.digest[:24]}-{threading.get_ident()}.so"
        toolchain, made = self._session.cache(rendered.candidate.backend).toolchain, path.with_suffix(".o")
        made.write_bytes(self._session.read_object(rendered, compiled))
        toolchain.link_shared([made], path, toolchain.libraries(rendered.compile))
        made.unlink()
        with self._lock:
            return self._linked.setdefault(compiled.digest, path)


class LazyBench:
    """A context manager: a bench on one device whose workers start at first use.

    It is `exclusive` if something is timed, or if the device's memory is not shared. Then it waits while another build
    measures on the device, as long as the `budget` has patience, if there is one. It shares `shared` with other
    benches; `shared` outlives it. `since` is when it had started, by the clock of the build's progress.
    """

    def __init__(
        self,
        session: Session,
        device: Device,
        budget: Budget | None = None,
        *,
        exclusive: bool = True,
        shared: BenchFiles | None = None,
    ) -> None:
        self.session, self.device, self.budget, self._exclusive = session, device, budget, exclusive
        self._stack = ExitStack()
        self.shared = shared or self._stack.enter_context(BenchFiles(session))
        self.since = math.inf
        self._bench: MeasuringBench | None = None
        self._coming: MeasuringBench | None = None
        self._interrupted = threading.Event()

    def __enter__(self) -> LazyBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        self._bench = None

    def get(self) -> MeasuringBench:
        """The bench, started at first use. Raises WorkerError when it cannot be, or another build has the device."""
        return self._bench if self._bench is not None else self._start(self.budget)

    def start(self) -> None:
        """Start the bench without waiting for its workers. If it cannot start now, the first use reports why."""
        if self._bench is None:
            with contextlib.suppress(WorkerError):
                self._start(Budget(0.0))

    def _start(self, patience: Budget | None) -> MeasuringBench:
        self._interrupted.clear()
        with ExitStack() as stack:  # a bench that does not start must release the device
            executor = self.session.executor
            if executor is not None and executor.has(self.device):
                policy = self.session.policy(self.device.family)
                findings = self.shared.findings
                there = executor.bench(
                    self.device, policy, self.session.threads, patience, findings, exclusive=self._exclusive
                )
                self._coming = there
                try:
                    bench: MeasuringBench = stack.enter_context(there)
                finally:
                    self._coming = None
            else:
                if self._exclusive:
                    log = self.session.progress.line
                    stack.enter_context(device_lock(self.device, log, patience, self._interrupted.is_set))
                bench = stack.enter_context(
                    Bench(
                        self.device,
                        self.session.policy(self.device.family),
                        scratch=self.shared.own_folder(),
                        threads=self.session.threads,
                        log=self.session.progress.line,
                        findings=self.shared.findings,
                        waits=self._exclusive,
                    )
                )
            self._stack.enter_context(stack.pop_all())
        self._bench, self.since = bench, self.session.progress.now()
        return bench

    @property
    def referring(self) -> float:
        """Seconds that its bench has spent on references."""
        return 0.0 if self._bench is None else self._bench.referring

    def interrupt(self) -> None:
        """Kill the workers, from another thread. Their jobs end with them. It also ends a wait for the device."""
        self._interrupted.set()
        bench = self._bench or self._coming  # it may end meanwhile
        if bench is not None:
            bench.interrupt()

    def choose(self, operator: Operator, variants: Sequence[Variant]) -> int:
        """Which of an operator's candidates to try next: the first that no other bench has begun to check.

        All devices start with the same candidates. What one finds about them on odd problems holds for all.
        """
        if self.shared.benches == 1:
            return 0
        findings = self.shared.findings
        return findings.choose(findings.suite(operator.folder, e.code, e.requires) for e in variants)

    def _made(self, variant: Variant) -> None:
        """A killed compiler is not the candidate's own fault. Raises ToolchainError when that may have been."""
        if not variant.compiled and self._interrupted.is_set():
            raise ToolchainError(f"{variant.error}; the build, or its time, has ended")

    def linked(self, variant: Variant, evidence: Evidence | None = None) -> Variant:
        """A candidate whose object is linked for the bench, once. If it is compiled now, the evidence gets the object.

        Raises:
            ToolchainError: when the object does not link, or when only a record knows it and it does not compile here.
        """
        if variant.object is None:  # a record knows it, but not on this problem
            self._interrupted.clear()
            (variant,) = self.session.compile([variant], "", () if evidence is None else (evidence,), self._made)
        if not variant.compiled:
            raise ToolchainError(variant.error)
        path = self.shared.link(variant.rendered, variant.made)
        return msgspec.structs.replace(variant, shared=str(path))
