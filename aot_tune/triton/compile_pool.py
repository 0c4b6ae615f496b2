"""Processes that compile Triton functions.

They start when they are needed, are kept, and are replaced when they die.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from aot_tune.support.errors import ToolchainError
from aot_tune.support.limits import note_peak
from aot_tune.support.processes import peak_bytes, resident_bytes, stat_of
from aot_tune.support.run_program import adopt, disown, group_seconds, python_module
from aot_tune.support.storage import scratch_folder
from aot_tune.triton.ask_declarations import ADDRESS_SPACE, child_environment
from aot_tune.triton.triton_messages import CompileReply, CompileRequest, CompilerReady

_START_SECONDS = 120.0
_MEMORY = 3 << 29
"""A worker that holds more than this is replaced, because LLVM frees little."""
_IDLE = 16


class CompilerSetup(NamedTuple):
    """What identical workers have in common."""

    target: str
    roots: tuple[str, ...]
    search: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, target: str, roots: Sequence[str], search: Sequence[str], environ: Mapping[str, str]) -> CompilerSetup:
        """The same from plain data. Only variables that reach a worker count."""
        reach = child_environment(environ, (), Path("/nowhere"))
        return cls(target, tuple(roots), tuple(search), tuple(sorted(reach.items())))


class CompilerDiedError(Exception):
    """A worker died while it compiled. The message says how, and what it printed last."""


class TimedOutError(Exception):
    """A worker took too long and was killed. `busy` is its CPU seconds, with those of the programs it ran."""

    def __init__(self, busy: float) -> None:
        super().__init__()
        self.busy = busy


class _CompilerProcess:
    """One process, used by one thread at a time."""

    def __init__(self, setup: CompilerSetup, scratch: Path) -> None:
        self.setup, self._scratch, self._buffer = setup, scratch, b""
        environ = child_environment(dict(setup.environ), setup.search, scratch)
        argv = python_module("aot_tune.triton.compile_worker", setup.target, *setup.roots)
        with (scratch / "worker.log").open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                cwd=scratch,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        adopt(self._process, ADDRESS_SPACE)
        try:
            self._greet()
        except BaseException:
            self.end()
            raise

    def alive(self) -> bool:
        """Whether it can take a request."""
        return self._process.poll() is None and self._resident() < _MEMORY

    def compile(self, request: CompileRequest, timeout: float) -> CompileReply:
        """Have it compile. A worker that died or was too slow cannot be used again.

        Raises:
            CompilerDiedError, TimedOutError: see these classes.
        """
        before = self._busy()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            return msgspec.json.decode(self._line(timeout), type=CompileReply)
        except (BrokenPipeError, EOFError):
            raise CompilerDiedError(self._last_words()) from None
        except TimeoutError:
            raise TimedOutError(max(0.0, group_seconds(self._process.pid) - before)) from None

    def end(self) -> None:
        """Kill it with everything that it started."""
        disown(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _greet(self) -> None:
        try:
            hello = msgspec.json.decode(self._line(_START_SECONDS), type=CompilerReady)
        except (EOFError, TimeoutError, msgspec.DecodeError) as error:
            raise ToolchainError(
                f"a process that compiles Triton functions does not start: {self._last_words() or repr(error)}",
                fix="see whether `python -c 'import triton'` works",
            ) from error
        if hello.fault is not None:
            raise hello.fault.error(ToolchainError)

    def _line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + timeout
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        text = (self._scratch / "worker.log").read_text(errors="replace").strip()
        disown(self._process)  # programs that it started may go on, and its own exit status still tells how it died
        code = self._process.returncode
        died = f"died of signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        return f"its process {died}\n{text[-4000:]}".strip()

    def _busy(self) -> float:
        """CPU seconds of the process so far, with those of the programs that it waited for."""
        try:
            return stat_of(self._process.pid).busy
        except OSError:
            return 0.0

    def _resident(self) -> int:
        try:
            return resident_bytes(self._process.pid)
        except OSError:
            return 0

    def peak(self) -> int:
        """The most memory that it held, in bytes."""
        peak = peak_bytes(self._process.pid)
        note_peak("a compiler of Triton functions", peak)
        return peak


class CompilerPool:
    """Workers of one process. Each thread that compiles has one to itself for as long as the compile takes."""

    def __init__(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._idle: list[_CompilerProcess] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0
        atexit.register(self.close)

    def compile(self, setup: CompilerSetup, request: CompileRequest, timeout: float) -> tuple[CompileReply, int]:
        """The reply of a worker, and the most memory in bytes that it has held.

        Raises:
            CompilerDiedError, TimedOutError: when the request killed it, or took longer than `timeout` seconds.
            ToolchainError: when no worker can be started.
        """
        worker = self._take(setup)
        try:
            reply = worker.compile(request, timeout)
            if reply.stale:  # a source has changed since the worker loaded it
                worker.end()
                worker = _CompilerProcess(setup, self._scratch())
                reply = worker.compile(request, timeout)
            peak = worker.peak()
        except BaseException:
            worker.end()
            raise
        self._give(worker)
        return reply, peak

    def close(self) -> None:
        """End all workers. Only the process that started them may do so."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            idle, self._idle = self._idle, []
            folder, self._folder = self._folder, None
        for worker in idle:
            worker.end()
        if folder is not None:
            folder.cleanup()

    def _take(self, setup: CompilerSetup) -> _CompilerProcess:
        while True:
            with self._lock:
                worker = next((w for w in self._idle if w.setup == setup), None)
                if worker is not None:
                    self._idle.remove(worker)
            if worker is None:
                return _CompilerProcess(setup, self._scratch())
            if worker.alive():
                return worker
            worker.end()

    def _give(self, worker: _CompilerProcess) -> None:
        with self._lock:
            self._idle.insert(0, worker)
            dropped = self._idle[_IDLE:]
            del self._idle[_IDLE:]
        for other in dropped:
            other.end()

    def _scratch(self) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = scratch_folder()
            self._count += 1
            folder = Path(self._folder.name, f"triton-{self._count}")
        folder.mkdir()
        return folder


_pools: dict[int, CompilerPool] = {}
_pools_lock = threading.Lock()


def pool() -> CompilerPool:
    """The workers of this process. A forked child starts its own."""
    with _pools_lock:
        if os.getpid() not in _pools:
            _pools[os.getpid()] = CompilerPool()
        return _pools[os.getpid()]
