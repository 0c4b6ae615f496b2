"""The bench of a build: started when something has to run, with candidates linked for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.measuring.bench_files import BenchFiles
from aot_tune.pipeline.session import Session
from aot_tune.search import Budget
from aot_tune.support.errors import BuildError, ToolchainError, WorkerError

__all__ = ["LazyBench", "device_lock"]


@contextmanager
def device_lock(device: Device, log: Callable[[str], None], budget: Budget | None) -> Iterator[None]:
    """Keeps this user's other builds from measuring on the device at the same time.

    Raises:
        WorkerError: when another build measures until a budget ends.
    """
    shared = Path("/tmp")  # noqa: S108 - TMPDIR may differ between builds that must not measure together
    folder = (shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())) / f"aot_tune-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not folder.is_dir() or folder.is_symlink() or folder.lstat().st_uid != os.getuid():
        raise BuildError(f"{folder} is not a folder of yours", why="builds lock the device there", fix="remove it")
    one = hashlib.sha256(device.unit.encode()).hexdigest() if device.unit else device.digest
    lock = FileLock(folder / f"{device.family}-{one[:16]}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if budget is None or budget.left > 0:
            log(f"waiting: another build measures on {device.name}")
        _wait(lock, device, budget)
    try:
        yield
    finally:
        lock.release()


def _wait(lock: FileLock, device: Device, budget: Budget | None) -> None:
    limit = -1.0 if budget is None or budget.seconds is None else budget.left
    try:
        lock.acquire(timeout=limit)
    except Timeout:
        raise WorkerError(
            f"{device.name} is not free", why="another build measured on it until the budget's end"
        ) from None


class LazyBench:
    """A bench on one device whose workers start at first use; a context manager.

    It is `exclusive` where something is timed, or where the device's memory is not shared: then it waits for a device
    that another build measures on, no longer than a `budget` lasts where one is given. What it shares with others is
    `shared`, which outlives it.
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
        self.session, self.device, self._budget, self._exclusive = session, device, budget, exclusive
        self._stack = ExitStack()
        self.shared = shared or self._stack.enter_context(BenchFiles(session))
        self._bench: Bench | None = None

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
            WorkerError: when no worker can be started, or another build has the device until the budget ends.
        """
        return self._bench if self._bench is not None else self._start(self._budget)

    def start(self) -> None:
        """Start the bench, without waiting for its workers; what keeps it from starting now is told at first use."""
        if self._bench is None:
            with contextlib.suppress(WorkerError):
                self._start(Budget(0.0))

    def _start(self, patience: Budget | None) -> Bench:
        with ExitStack() as stack:  # a bench that does not start must not keep the device from the next attempt
            if self._exclusive:
                stack.enter_context(device_lock(self.device, self.session.progress.line, patience))
            bench = stack.enter_context(
                Bench(
                    self.device,
                    self.session.policy_of(self.device.family),
                    scratch=self.shared.own_folder(),
                    threads=self.session.threads,
                    log=self.session.progress.line,
                    findings=self.shared.findings,
                    waits=self._exclusive,
                )
            )
            self._stack.enter_context(stack.pop_all())
        self._bench = bench
        return bench

    @property
    def referring(self) -> float:
        """Seconds that its bench has spent on references."""
        return 0.0 if self._bench is None else self._bench.referring

    def interrupt(self) -> None:
        """Kill the workers, from another thread: what they were asked for ends with them."""
        bench = self._bench  # which may end meanwhile
        for worker in bench.pool.workers() if bench is not None else ():
            with contextlib.suppress(OSError):
                os.killpg(worker.pid, signal.SIGKILL)

    def choose(self, folder: Path, entries: Sequence[Entry]) -> int:
        """Which of an operator's candidates to try next: the first that no other bench has begun to check.

        All devices begin with the same candidates; what one finds of them on odd problems holds for all.
        """
        if self.shared.benches == 1:
            return 0
        findings, where = self.shared.findings, str(folder.resolve())
        return findings.choose(findings.suite(where, e.code, e.requires) for e in entries)

    def shared_object(self, entry: Entry) -> Path:
        """The candidate's object linked for the benchmark, made once.

        Raises:
            ToolchainError: when the object does not link, or is known from a record only and does not compile here.
        """
        if entry.object is None:  # known from a record, but not on this problem
            self.session.compile([entry], "again")
        if entry.object is None or not entry.compiled:
            raise ToolchainError(entry.object.error if entry.object is not None else "it was not compiled")
        return self.shared.link(entry.candidate.backend, entry.object, entry.rendered.compile)

    def entrant(self, entry: Entry) -> Entrant:
        """The candidate as the bench takes it.

        Raises:
            ToolchainError: as for `shared_object`.
        """
        return Entrant(
            candidate=entry.candidate,
            shared_object=self.shared_object(entry),
            symbol=entry.rendered.symbol,
            code=entry.code,
            requires=entry.requires,
        )
