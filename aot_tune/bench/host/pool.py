"""Workers of one bench: one for candidates with a warm spare, and one for frameworks.

None of them outlives the bench.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from aot_tune.bench.devices.family import family
from aot_tune.bench.host import containment
from aot_tune.bench.host.worker_process import DiedError, Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.support import processes
from aot_tune.support.errors import WorkerError

__all__ = ["Pool"]


class Pool:
    """A context manager. The module keeps no state, so several pools can be open in one process."""

    def __init__(
        self,
        device: Device,
        policy: Policy,
        scratch: Path,
        threads: int,
        log: Callable[[str], None],
        interpreter: tuple[str, ...] = (),
        references: Path | None = None,
    ) -> None:
        self.device, self.policy, self.threads = device, policy, threads
        self._on_host = family(device.family).on_host
        self.token = secrets.token_hex(16)
        self._references = references or scratch / "references"
        self._folder, self._log, self._interpreter = scratch / "workers", log, interpreter
        self._candidates: Worker | None = None
        self._spare: Worker | None = None
        self._frameworks: Worker | None = None
        self._count = 0
        self._open = False
        self._noted: set[str] = set()
        self.deaths = 0

    def __enter__(self) -> Pool:
        containment.hold_subreaper()
        self._open, self._owner = True, os.getpid()
        atexit.register(self.close)
        try:
            self._references.mkdir(parents=True, exist_ok=True)
            self._candidates, self._spare = self._new("candidate"), self._new("candidate")
            self._candidates.start()
            self._spare.start()
            if not self._on_host:  # a framework takes seconds to import, and the import disturbs no timing
                self._frameworks = self._new("framework")
                self._frameworks.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new(self, role: Role) -> Worker:
        self._count += 1
        shared = self._references if role == "framework" else None
        return Worker(
            self.device,
            self.policy,
            role,
            self.threads,
            self._folder / str(self._count),
            self.token,
            self._log,
            shared,
            self._interpreter,
        )

    def workers(self) -> list[Worker]:
        """Those that are alive."""
        found = (self._candidates, self._spare, self._frameworks)
        return [w for w in found if w is not None and w.state not in ("NEW", "DEAD")]

    def candidates(self) -> Worker:
        """The worker for candidates. If it died, the spare replaces it, and a new one replaces the spare.

        Raises:
            WorkerError: when no worker can be started.
        """
        if not self._open:
            raise WorkerError("the bench is closed", fix="use it inside its `with` block")
        self._bury(self._candidates, self._spare)
        if self._candidates is None or self._candidates.state == "DEAD":
            self._candidates, self._spare = self._spare, None
        if self._candidates is None or self._candidates.state == "DEAD":
            self._candidates = self._new("candidate")
        if self._spare is None or self._spare.state == "DEAD":
            self._spare = self._new("candidate")
        self._candidates.start()
        self._spare.start()
        try:
            self._ready(self._candidates)
        except WorkerError as error:
            if not _died(error):
                raise
            self._candidates = self._new("candidate")
            self._ready(self._candidates)
        return self._candidates

    def frameworks(self) -> Worker:
        """The worker for references and baselines. It starts when it is first asked for.

        Raises:
            WorkerError: when it cannot be started.
        """
        if not self._open:
            raise WorkerError("the bench is closed", fix="use it inside its `with` block")
        self._bury(self._frameworks)
        if self._frameworks is None or self._frameworks.state == "DEAD":
            self._frameworks = self._new("framework")
        try:
            self._ready(self._frameworks)
        except WorkerError as error:
            if not _died(error):
                raise
            self._frameworks = self._new("framework")
            self._ready(self._frameworks)
        return self._frameworks

    def _bury(self, *workers: Worker | None) -> None:
        """Clean up after workers that died while idle. The next request is not to blame."""
        for worker in workers:
            if worker is not None and worker.died_idle():
                self.deaths += 1
                self.sweep()
                self._clear(worker)

    def _ready(self, worker: Worker) -> None:
        worker.wait_ready()
        for note in worker.hello.notes if worker.hello else ():
            if note not in self._noted:
                self._noted.add(note)
                self._log(f"sandbox: {note}")

    def request(self, worker: Worker, request: messages.Request, seconds: float) -> messages.Reply:
        """Ask a worker. If it dies of the request, kill what it left behind.

        Raises:
            DiedError: as `Worker.request` does.
        """
        try:
            return worker.request(request, seconds)
        except DiedError as death:
            self.deaths += 1
            self.sweep()
            self._clear(worker)
            if death.status == "timeout":
                self._log(f"a worker was killed: {death.reason}")
            raise

    def refer(self, request: messages.Request, seconds: float) -> messages.Reply:
        """Ask the worker for frameworks. After a death that may not happen again, such as a kill, ask once more.

        Raises:
            DiedError: as `Worker.request` does.
            WorkerError: when it cannot be started.
        """
        try:
            return self.request(self.frameworks(), request, seconds)
        except DiedError as death:
            if death.certain or death.status == "timeout":
                raise
            if death.status == "oom":
                self.relieve()
        return self.request(self.frameworks(), request, seconds)

    def relieve(self) -> None:
        """Free what the host's workers keep of earlier problems: new ones take the place of those that hold any."""
        for worker in self.workers() if self._on_host else ():
            if worker.known:
                worker.kill()
                self._clear(worker)

    def settle(self) -> None:
        """Before times are taken on the host's cores: wait for a warm spare, and until no other worker runs."""
        if not self._on_host:
            return
        if self._spare is not None:
            with contextlib.suppress(WorkerError):  # said when the spare is needed
                self._spare.wait_ready()
        others = [w.pid for w in self.workers() if w is not self._candidates]
        processes.wait_until_quiet(others, 0.5)

    def quiet(self, worker: Worker) -> None:
        """Wait until a worker's threads sleep."""
        processes.wait_until_quiet([worker.pid], 0.5)

    def sweep(self) -> None:
        """Kill what dead workers left behind."""
        processes.sweep(self.token, [w.pid for w in self.workers()])

    def _clear(self, worker: Worker) -> None:
        shutil.rmtree(worker.folder, ignore_errors=True)

    def close(self) -> None:
        """Kill all workers and what they left behind, and restore what was set. Idempotent."""
        if not self._open or os.getpid() != self._owner:
            return
        self._open = False
        atexit.unregister(self.close)
        for worker in self.workers():
            worker.kill()
            self._clear(worker)
        self.sweep()
        containment.release_subreaper()


def _died(error: WorkerError) -> bool:
    """Whether a worker died by itself while it started.

    Only this is worth a second try, not a deadline or a wrong device.
    """
    return isinstance(error.__cause__, DiedError) and error.__cause__.status != "timeout"
