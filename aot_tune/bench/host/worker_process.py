"""The bench's end of worker processes: starts one, sends requests, notices its death, kills it at a deadline.

A pool has one worker for candidates with a warm spare, and one for frameworks. None outlives it. Workers, and what they
leave behind, do no harm: they get few variables, what they use of the machine is watched, and orphans are killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import secrets
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.channel import HELLO, ClosedError, Frames, new_id, opened, write_frame
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role, Status
from aot_tune.bench.protocol.messages import Setup
from aot_tune.support import processes
from aot_tune.support.errors import WorkerError
from aot_tune.support.kernel_features import hold_subreaper, release_subreaper
from aot_tune.support.kernel_log import KernelLog
from aot_tune.support.limits import kills_for_memory, note_peak
from aot_tune.support.run_program import adopt_bench, disown_bench, python_environment, python_module
from aot_tune.support.storage import remove_tree

State = Literal["NEW", "STARTING", "READY", "BUSY", "DEAD"]
_Place = Literal["candidate", "spare", "framework"]
_HALF = 32 << 10
_LOOK = 0.25
"""Seconds between two readings of what a worker uses of the machine."""
_DISK = 256 << 20
"""The most bytes of all files of a worker together."""
_FILES, _DEPTH = 10_000, 12
"""The most files of a worker, and folders in each other. More take long to look through and to remove."""

_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "TZ")
"""Variables that a worker gets from the bench's environment. PYTHONPATH, LD_PRELOAD and the like are not among them."""
_PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


class DiedError(Exception):
    """A worker died, or was killed, before it answered. Or it answered and ended.

    `certain` says that the request did it, not something that an earlier request left running. `starved` says that the
    kernel killed it because memory ran out, although the request had taken little.
    """

    def __init__(self, status: Status, reason: str, certain: bool = False, starved: bool = False) -> None:
        super().__init__(reason)
        self.status, self.reason, self.certain, self.starved = status, reason, certain, starved


def _shown(text: str) -> str:
    """Any text, made safe for a terminal: escapes and other control characters become their codes."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class Output:
    """What a worker printed: its first 32 KiB, its last 32 KiB, and how much was between them."""

    def __init__(self) -> None:
        self._head, self._tail, self.total = bytearray(), bytearray(), 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = _HALF - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        if len(self._tail) > _HALF:
            del self._tail[: len(self._tail) - _HALF]

    def text(self) -> str:
        """Everything that was kept, and a line that says how much is left out."""
        missing = self.total - len(self._head) - len(self._tail)
        middle = f"\n[... {missing} bytes left out ...]\n".encode() if missing else b""
        return _shown((bytes(self._head) + middle + bytes(self._tail)).decode(errors="replace"))

    def last_lines(self) -> str:
        """The last three lines in one line, for a reason."""
        return " | ".join(self.text().strip().splitlines()[-3:])[-300:]


class _Usage:
    """Watches one worker: process `pid`, which writes below `folder` and may share `most` bytes of memory."""

    def __init__(self, pid: int, folder: Path, most: int) -> None:
        self._pid, self._folder, self._most = pid, folder, most
        self._files: set[Path] = set()

    def excess(self) -> tuple[Status, str] | None:
        """What it uses too much of, or None."""
        if disk := _excess_below(self._folder):
            return disk
        pids = (self._pid, *processes.started_by(self._pid))
        for pid in pids:
            self._files |= processes.shared_files(pid)
        shared = sum(map(processes.shared_bytes, pids)) + sum(map(_size, self._files))
        if shared > self._most:
            return "oom", f"it shares {shared >> 20} MiB of memory, but only {self._most >> 20} are allowed"
        return None

    def clear(self) -> None:
        """Remove the shared memory that it used and left behind."""
        for path in self._files:
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    path.unlink()
        self._files.clear()


def _excess_below(folder: Path) -> tuple[Status, str] | None:
    """What there is too much of in a folder. It takes no longer to find out than that allows."""
    taken, count, folders = 0, 0, [(str(folder), 0)]
    while folders:
        path, depth = folders.pop()
        with contextlib.suppress(OSError), os.scandir(path) as entries:  # others end meanwhile, and may end a scan
            for entry in entries:
                count += 1
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    taken += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        if ~status.st_mode & stat.S_IRWXU:
                            return "failed", "it leaves a folder that nobody can look into"
                        folders.append((entry.path, depth + 1))
                if count > _FILES:
                    return "too-much-disk", f"it makes more than {_FILES} files"
        if depth > _DEPTH:
            return "too-much-disk", f"it makes folders more than {_DEPTH} deep"
    if taken > _DISK:
        return "too-much-disk", f"its files take {taken >> 20} MiB, but only {_DISK >> 20} are allowed"
    return None


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


class Worker:
    """One worker process. States: NEW, STARTING, READY, BUSY, DEAD; `start` is idempotent.

    `known` are the keys of the problems that it knows. `hosted` are the digests of all objects that it was asked to
    load: what one leaves behind stays until the worker ends. `loaded` are the handles that are still loaded, the oldest
    first.

    The thread that starts it must live as long as the worker, because the kernel ties the worker's life to it.
    """

    def __init__(
        self,
        device: Device,
        policy: Policy,
        role: Role,
        threads: int,
        folder: Path,
        token: str,
        log: Callable[[str], None],
        shared: Path | None = None,
        interpreter: tuple[str, ...] = (),
    ) -> None:
        self.known: set[str] = set()
        self.hosted: set[str] = set()
        self.loaded: dict[str, None] = {}
        self.device, self.policy, self.role, self.threads = device, policy, role, threads
        self.state: State = "NEW"
        self.output = Output()
        self.hello: messages.Hello | None = None
        self.pid = 0
        self.folder, self._token, self._log, self._shared = folder, token, log, shared
        self._command = interpreter or tuple(python_module("aot_tune.bench.worker"))
        self._frames, self._id = Frames(), HELLO
        self._place, self._resident = "starting", 0
        self.passive = False

    def let_go(self, most: int) -> Iterator[str]:
        """Handles to unload, so that at most `most` are left."""
        while len(self.loaded) > most:
            handle = next(iter(self.loaded))
            del self.loaded[handle]
            yield handle

    def died_idle(self) -> bool:
        """Whether it died while it had nothing to do. This call finds out, and then it is DEAD."""
        if self.state == "READY" and any(key.data == "death" for key, _ in self._selector.select(0)):
            self._finish()
            return True
        return False

    def start(self) -> None:
        """Start the process, once; does not wait for it."""
        if self.state != "NEW":
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        to_read, self._requests = os.pipe()
        self._replies, to_write = os.pipe()
        self._printed, printing = os.pipe()
        setup = Setup(
            device=self.device,
            role=self.role,
            threads=self.threads,
            policy=self.policy,
            parent=os.getpid(),
            requests=to_read,
            replies=to_write,
            scratch=str(self.folder),
            shared=str(self._shared or ""),
            mark=processes.mark_of(self._token),
        )
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env |= python_environment(sys.path)  # where build front ends put build requirements
        env |= {"HOME": str(self.folder), "TMPDIR": str(self.folder), "LC_ALL": "C.UTF-8"}
        given = self.device, self.threads, self.role, self.folder, self.policy
        env |= dict(family(self.device.family).environment(*given))
        env |= _PASSIVE if self.passive else {}
        env[processes.TOKEN] = self._token
        try:
            self._process = subprocess.Popen(
                [*self._command, msgspec.json.encode(setup).decode()],
                stdin=subprocess.DEVNULL,
                stdout=printing,
                stderr=printing,
                pass_fds=(to_read, to_write),
                cwd=self.folder,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (self._requests, self._replies, self._printed):
                os.close(descriptor)
            self.state = "DEAD"
            raise WorkerError(f"a worker cannot be started: {error}", fix="check the Python installation") from error
        finally:
            for descriptor in (to_read, to_write, printing):
                os.close(descriptor)
        self.pid, self.state = self._process.pid, "STARTING"
        self._usage = _Usage(self.pid, self.folder, self.policy.memory_bytes)
        self._kills = kills_for_memory()
        processes.WORKERS.add(self.pid)
        self._pidfd = os.pidfd_open(self.pid)
        self._selector = selectors.DefaultSelector()
        for descriptor, name in ((self._replies, "reply"), (self._printed, "output"), (self._pidfd, "death")):
            self._selector.register(descriptor, selectors.EVENT_READ, name)
        for descriptor in (self._replies, self._printed):
            os.set_blocking(descriptor, False)

    def wait_ready(self) -> None:
        """Wait for the worker's Hello. Raises WorkerError if it is late or wrong, with what the worker printed."""
        self.start()
        if self.state != "STARTING":
            return
        seconds = self.policy.deadlines.handshake
        try:
            hello = self._wait(seconds)
        except DiedError as death:
            said = self.output.text().strip()[-2000:]
            fix = "correct what it printed" if said else "free memory and processes, or look into the kernel's log"
            if death.status == "timeout":
                fix = "raise the handshake deadline, or run fewer things beside the build"
            raise WorkerError(
                f"a worker never answered: {death.reason}", why=said or "it printed nothing", fix=fix
            ) from death
        if not isinstance(hello, messages.Hello) or hello.abi != messages.PROTOCOL:
            self.kill()
            raise WorkerError(f"a worker answered in another protocol: {hello!r:.200}", fix="reinstall the package")
        differ = sorted(k for k, v in self.device.identity.items() if hello.device.get(k) != v)
        if hello.unit.partition("-")[2] not in self.device.unit:
            differ.append("UUIDs")
        if differ:
            self.kill()
            raise WorkerError(
                f"a worker is on another device: {', '.join(differ)} differ",
                why=f"wanted {self.device.unit} {self.device.identity}, got {hello.unit} {hello.device}",
                fix="build again; if a GPU was added or removed, `nvidia-smi -L` shows it",
            )
        self.hello, self.state = hello, "READY"

    def request(self, request: messages.Request, seconds: float) -> messages.Reply:
        """Send a request and wait for its answer, at most `seconds` after each place that the worker reports.

        Raises:
            DiedError: when the worker dies, ends itself or is killed at the deadline. Says by what, where, and what it
                printed last.
        """
        self.wait_ready()
        if self.state != "READY":
            raise DiedError("no-result", "the worker is gone")
        self._resident = 0
        self.state, self._place, self.output = "BUSY", type(request).__name__.lower(), Output()
        with contextlib.suppress(ClosedError):  # the code below notices a dead worker
            self._id = new_id()
            write_frame(self._requests, self._id + messages.encode(request))
        reply = self._wait(seconds)
        if isinstance(reply, messages.Failure) and reply.last:
            where = self._place
            self._drain_output()
            said = self._said()
            self.kill()
            raise DiedError(reply.status, f"{reply.reason} in {where}{said}", certain=True)
        unloads = family(self.device.family).on_host
        if messages.ends_a_turn(request, unloads=unloads) and not isinstance(request, messages.Turn):
            self._look()  # not between turns of a race: nothing may disturb the times
        self.state = "READY"
        return reply

    def _look(self) -> None:
        """Kill a worker whose candidate uses too much of the machine."""
        if self.role == "candidate" and (excess := self._usage.excess()):
            where = self._place
            self.kill()
            raise DiedError(excess[0], f"{excess[1]} in {where}{self._said()}", certain=True)

    def _wait(self, seconds: float) -> messages.Reply:
        deadline, where = time.monotonic() + seconds, self._place
        while True:
            if self._place != where:  # a hang is still found as soon, and a busy machine is no hang
                deadline, where = time.monotonic() + seconds, self._place
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()
                raise DiedError("timeout", f"no answer within {seconds:g} s in {self._place}{self._said()}")
            ready = {key.data for key, _ in self._selector.select(min(left, _LOOK))}
            if not ready:
                self._look()
            if "output" in ready:
                self._drain_output()
            if "reply" in ready or "death" in ready:
                reply = self._next_reply()
                if reply is not None:
                    return reply
            if "death" in ready:
                raise self._bury()

    def _next_reply(self) -> messages.Reply | None:
        try:
            frames = [opened(f) for f in self._frames.feed(self._read_replies())]
            if any(number != self._id for number, _ in frames):
                raise ClosedError("an answer that nobody asked for")
            replies = [messages.decode_reply(data) for _, data in frames]
        except (ClosedError, msgspec.MsgspecError) as error:  # whatever wrote that, no later answer can be recognised
            self._drain_output()
            self.kill()
            raise DiedError("no-result", f"no message in {self._place}: {error}{self._said()}") from error
        for reply in replies:
            if not isinstance(reply, messages.Place):
                return reply
            self._place, self._resident = reply.place, reply.resident_bytes
        return None

    def _read_replies(self) -> bytes:
        try:
            data = os.read(self._replies, 1 << 16)
        except BlockingIOError:
            return b""
        if not data:  # the pipe has ended; the pidfd reports the death itself
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._replies)
        return data

    def _drain_output(self) -> None:
        for _ in range(16):  # in turns with the other pipe: much output must not hide an answer or a deadline
            try:
                data = os.read(self._printed, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(self._printed)
                return
            self.output.feed(data)

    def _said(self) -> str:
        said = self.output.last_lines()
        return f"; it printed: {said}" if said else ""

    def _bury(self) -> DiedError:
        """Reap a worker that died by itself, with its group, and say how it died."""
        code, peak = self._finish()
        said = self.output.text()
        where = f" in {self._place}"
        near_limit = self._resident > 0 and peak - self._resident > self.policy.memory_bytes * 3 // 4
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            if -code == signal.SIGKILL or "bad_alloc" in said or near_limit:
                little = self._resident > 0 and peak - self._resident < self.policy.memory_bytes // 4
                starved = -code == signal.SIGKILL and little and kills_for_memory() > self._kills
                reason = f"killed by {name}{where} at {peak >> 20} MiB resident{self._said()}"
                return DiedError("oom", reason, starved=starved)
            return DiedError("crashed", f"{name}{where}{self._said()}")
        if "MemoryError" in said or near_limit:
            return DiedError("oom", f"ended with status {code}{where} at {peak >> 20} MiB resident{self._said()}")
        return DiedError("no-result", f"ended with status {code}{where} before it answered{self._said()}")

    def kill(self) -> None:
        """Kill the worker's group by the steps of the deadlines, reap it, and close its pipes. Idempotent."""
        if self.state in ("NEW", "DEAD"):
            self.state = "DEAD"
            return
        limits = self.policy.deadlines
        for seconds, number in ((limits.graceful, 0), (limits.terminate, int(signal.SIGTERM))):
            if seconds <= 0:
                continue
            with contextlib.suppress(OSError, ClosedError):
                if number:
                    os.killpg(self.pid, number)
                else:
                    write_frame(self._requests, new_id() + messages.encode(messages.Quit()))
            if self._died_within(seconds):
                break
        self._finish()

    def _died_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready = {key.data for key, _ in self._selector.select(left)}
            if "output" in ready:
                self._drain_output()
            if "death" in ready:
                return True
            if "reply" in ready:
                self._read_replies()
        return False

    def _finish(self) -> tuple[int, int]:
        """Kill what is left of the group, reap the worker, remove its folder. Returns exit code and peak memory."""
        held = processes.peak_bytes(self.pid)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        code, peak = 0, 0
        try:
            _, status, usage = os.wait4(self.pid, 0)
            code, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        except ChildProcessError:
            pass  # somebody else reaped it
        # Linux counts what the parent held at the spawn into a child's peak. A lower peak says nothing of the child.
        inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        highest = peak if peak > inherited else max(held, self._resident)
        note_peak("a worker for references" if self.role == "framework" else "a worker for candidates", highest)
        self._process.returncode = code
        processes.WORKERS.discard(self.pid)
        with contextlib.suppress(ChildProcessError):  # members of its group that it left behind
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        self._drain_output()
        self._usage.clear()
        remove_tree(self.folder)
        self._selector.close()
        for descriptor in (self._requests, self._replies, self._printed, self._pidfd):
            os.close(descriptor)
        self.state = "DEAD"
        return code, highest


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
        self._workers: dict[_Place, Worker] = {}
        self._count = 0
        self._open = False
        self._noted: set[str] = set()
        self._passive = False
        self.deaths = 0
        self.faults: Callable[[], str] = str

    def __enter__(self) -> Pool:
        hold_subreaper()
        self._kernel = KernelLog()
        self._open, self._owner = True, os.getpid()
        adopt_bench(self.token)
        atexit.register(self.close)
        try:
            self._references.mkdir(parents=True, exist_ok=True)
            self._start("candidate")
            self._start("spare")
            if not self._on_host:  # a framework takes seconds to import, and the import disturbs no timing
                self._start("framework")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _start(self, place: _Place) -> Worker:
        """The worker in a place. If there is none that lives, a new one is started."""
        worker = self._workers.get(place)
        if worker is None or worker.state == "DEAD":
            self._count += 1
            framework = place == "framework"
            worker = self._workers[place] = Worker(
                self.device,
                self.policy,
                "framework" if framework else "candidate",
                self.threads,
                self._folder / str(self._count),
                self.token,
                self._log,
                self._references if framework else None,
                self._interpreter,
            )
            worker.passive = self._passive and not framework
        worker.start()
        return worker

    def workers(self) -> list[Worker]:
        """Those that are alive."""
        return [w for w in list(self._workers.values()) if w.state not in ("NEW", "DEAD")]

    def candidates(self) -> Worker:
        """The worker for candidates; the spare, if it died. Raises WorkerError when no worker can be started."""
        self._bury("candidate", "spare")
        if self._workers["candidate"].state == "DEAD" and "spare" in self._workers:
            self._workers["candidate"] = self._workers.pop("spare")
        self._start("candidate")
        self._start("spare")
        return self._ready("candidate")

    def frameworks(self) -> Worker:
        """The worker for references and baselines, started when first asked for. Raises WorkerError if it cannot be."""
        self._bury("framework")
        return self._ready("framework")

    def _bury(self, *places: _Place) -> None:
        """Clean up after workers that died while idle. The next request is not to blame."""
        if not self._open:
            raise WorkerError("the bench is closed", fix="use it inside its `with` block")
        for worker in (self._workers[p] for p in places if p in self._workers):
            if worker.died_idle():
                self.deaths += 1
                self.sweep()

    def _ready(self, place: _Place) -> Worker:
        """The worker in a place, ready. If one died by itself while it started, another is tried."""
        try:
            self._start(place).wait_ready()
        except WorkerError as error:
            if not isinstance(error.__cause__, DiedError) or error.__cause__.status == "timeout":
                raise
            self._start(place).wait_ready()
        worker = self._workers[place]
        for note in worker.hello.notes if worker.hello else ():
            if note not in self._noted:
                self._noted.add(note)
                self._log(f"sandbox: {note}")
        return worker

    def request(self, worker: Worker, request: messages.Request, seconds: float) -> messages.Reply:
        """Ask a worker. If it dies of the request, kill what it left. Raises DiedError as `Worker.request` does."""
        try:
            return worker.request(request, seconds)
        except DiedError as death:
            self.deaths += 1
            self.sweep()
            told = self._kernel.of(worker.pid), self.faults()  # of each death, lest it is told of the next one
            if death.status != "timeout" and any(told):
                death.reason += f"; {told[0] or told[1]}"
            if death.status == "timeout" and worker.role != "candidate":  # else it is told with the candidate's name
                self._log(f"a worker for references was killed: {death.reason}")
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
                self.dismiss(worker)

    def dismiss(self, worker: Worker) -> None:
        """End a worker that is not to be used again, and what it left behind."""
        worker.kill()
        self.sweep()

    @contextmanager
    def passive(self) -> Iterator[None]:
        """In the block, threads of candidates do not spin while they wait, which they do until other programs stop."""
        self._renew_candidates(passive=True)
        try:
            yield
        finally:
            self._renew_candidates(passive=False)

    def _renew_candidates(self, *, passive: bool) -> None:
        self._passive = passive
        for worker in self.workers():
            if worker.role == "candidate":
                self.dismiss(worker)

    def settle(self) -> None:
        """Before times are taken on the host's cores: wait for a warm spare, and until no other worker runs."""
        if not self._on_host:
            return
        if spare := self._workers.get("spare"):
            with contextlib.suppress(WorkerError):  # said when the spare is needed
                spare.wait_ready()
        others = [w.pid for w in self.workers() if w is not self._workers["candidate"]]
        processes.wait_until_quiet(others, 0.5)

    def sweep(self) -> None:
        """Kill what dead workers left behind."""
        processes.sweep(self.token, [w.pid for w in self.workers()])

    def close(self) -> None:
        """Kill all workers and what they left behind, and restore what was set. Idempotent."""
        if not self._open or os.getpid() != self._owner:
            return
        self._open = False
        atexit.unregister(self.close)
        for worker in self.workers():
            worker.kill()
        self.sweep()
        self._kernel.close()
        disown_bench(self.token)
        release_subreaper()
