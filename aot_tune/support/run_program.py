"""Runs a compiler: argument lists only, its own process group, limits on time, memory and output, and no leftovers."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.support.errors import ToolchainError
from aot_tune.support.processes import all_pids, stat_of

_PASSED = ("PATH",)
_KEYED = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "CCC_OVERRIDE_OPTIONS",
    "LD_LIBRARY_PATH",
)
OUTPUT = 64 * 1024
_REMEDIES = {
    errno.EAGAIN: "allow more processes (`ulimit -u`, or the container's limit), or lower AOT_TUNE_JOBS",
    errno.ENOMEM: "lower AOT_TUNE_JOBS, or give the build more memory",
    errno.EMFILE: "allow more open files (`ulimit -n`), or lower AOT_TUNE_JOBS",
}
"""Remedies for errors of starting a program that are not the program's fault."""
_running: dict[int, int] = {}
"""Process groups, each with the thread that waits for it, or 0."""


def key_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that reach the compiler and may change its output. They are part of every object's key."""
    return {name: environ[name] for name in _KEYED if environ.get(name)}


def compiler_environment(environ: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The complete environment of a compiler: an allow-list, English messages, and temporary files in `scratch`."""
    kept = {name: environ[name] for name in _PASSED if environ.get(name)}
    kept |= key_environment(environ)
    kept.setdefault("PATH", os.defpath)
    return kept | {"LC_ALL": "C", "TMPDIR": str(scratch), "SOURCE_DATE_EPOCH": "0"}


def python_environment(search: Iterable[str]) -> dict[str, str]:
    """Variables for a Python that imports from `search`, ignores the user's settings, and writes no bytecode."""
    path = os.pathsep.join(folder for folder in search if folder and Path(folder).exists())
    fixed = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}
    return {"PYTHONPATH": path, **fixed}


def python_module(name: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
    """The command that runs a module in this Python, wherever it runs. `flags` are the interpreter's."""
    return [sys.executable, *flags, str(Path(__file__).with_name("start.py")), name, *arguments]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A program that ended: `code` is its exit status (negative: the signal), `output` both streams together.

    `memory` is the largest resident set in bytes, of the program or of a process that it waited for. `busy` is CPU
    seconds of the whole group, exact for programs that ended in time.
    """

    code: int
    output: str
    timed_out: bool
    seconds: float
    busy: float
    memory: int


def run(
    argv: Sequence[str],
    *,
    folder: Path,
    environ: Mapping[str, str],
    timeout: float,
    memory: int | None = None,
    keep: int = OUTPUT,
) -> Finished:
    """Run a program in `folder` and wait. At `timeout` seconds its whole process group is killed.

    Args:
        memory: address space in bytes that each process of the group may use.
        keep: bytes of output to keep. The middle is left out.

    Raises:
        ToolchainError: when it cannot be started.
        FileNotFoundError: when somebody has removed `folder`.
    """
    reaper = _reaper()
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder)) from error
        fix = _REMEDIES.get(error.errno or 0, "set CXX to a C++ compiler, NVCC to nvcc")
        raise ToolchainError(f"{argv[0]!r} cannot be started: {error.strerror}", fix=fix) from error
    reaper.add(process.pid)
    _running[process.pid] = threading.get_ident()
    try:
        _limit(process.pid, memory)
        output, timed_out = _collect(process, began + timeout, keep // 2)
        busy_group = group_seconds(process.pid) if timed_out else 0.0
    finally:
        _running.pop(process.pid, None)
        _kill(process.pid)  # also kills what the program left running
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        reaper.remove(process.pid)
        if process.stdout is not None:
            process.stdout.close()
    return Finished(
        code=process.returncode,
        output=output,
        timed_out=timed_out,
        seconds=time.monotonic() - began,
        busy=max(usage.ru_utime + usage.ru_stime, busy_group),
        memory=usage.ru_maxrss * 1024,
    )


def kill_running(spared: Collection[int] = ()) -> None:
    """Kill adopted processes and programs that other threads wait for in `run`, but for `spared` threads'."""
    for group, thread in list(_running.items()):
        if thread not in spared:
            _kill(group)


def adopt(process: subprocess.Popen[bytes], memory: int | None = None) -> None:
    """Let a permanent process, in its own group, die with the others: in `kill_running`, and with this process.

    Args:
        memory: address space in bytes that each process of the group may use.
    """
    _reaper().add(process.pid)
    _running[process.pid] = 0
    _limit(process.pid, memory)


def disown(process: subprocess.Popen[bytes]) -> None:
    """Kill the group of an adopted process, and wait for the process."""
    _running.pop(process.pid, None)
    if process.returncode is None:  # its number stays its own until it is waited for
        _kill(process.pid)
        process.wait()
    _reaper().remove(process.pid)


def adopt_bench(token: str) -> None:
    """Let all descendants of a bench's workers die with this process, see `processes.sweep`."""
    _reaper().add(f"token {token}")


def disown_bench(token: str) -> None:
    """Undo `adopt_bench`."""
    _reaper().remove(f"token {token}")


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _limit(pid: int, memory: int | None) -> None:
    """Limit a process and everything that it has started. What these start later inherits the limits."""
    with contextlib.suppress(OSError):  # the program has ended already
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        if memory is not None:
            hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
            wanted = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
            resource.prlimit(pid, resource.RLIMIT_AS, (wanted, hard))
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            _limit(int(child), memory)


def _collect(process: subprocess.Popen[bytes], deadline: float, half: int) -> tuple[str, bool]:
    """Read both streams until they end and the program is done, or until the deadline. Keep the head and the tail."""
    assert process.stdout is not None
    head, tail, dropped = b"", b"", 0
    ended = os.pidfd_open(process.pid)
    timed_out = False
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    timed_out = True
                    break
                ready = {key.fd for key, _ in selector.select(left)}
                if process.stdout.fileno() in ready:
                    chunk = os.read(process.stdout.fileno(), 65536)
                    if not chunk:
                        selector.unregister(process.stdout)
                    room = half - len(head)
                    head, rest = head + chunk[:room], chunk[room:]
                    dropped += max(0, len(tail) + len(rest) - half)
                    tail = (tail + rest)[-half:]
                    if chunk:
                        continue
                if ended in ready:
                    break
    finally:
        os.close(ended)
    cut = f"\n... {dropped} bytes left out ...\n".encode() if dropped else b""
    return (head + cut + tail).decode(errors="replace"), timed_out


def group_seconds(group: int) -> float:
    """CPU seconds of the living processes of a group, with those of children that they waited for."""
    seconds = 0.0
    for pid in all_pids():
        with contextlib.suppress(OSError):
            stat = stat_of(pid)
            seconds += stat.busy if stat.group == group else 0.0
    return seconds


class _Reaper:
    """This process's connection to the reaper program."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        program = Path(__file__).with_name("reaper.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.defpath},
            cwd="/",
        )
        atexit.register(self.close)

    def add(self, what: int | str) -> None:
        self._say(f"+{what}\n")

    def remove(self, what: int | str) -> None:
        self._say(f"-{what}\n")

    def close(self) -> None:
        """End the program. Only the process that started it does so."""
        if os.getpid() == self.owner and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait(timeout=5)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError):  # without a reaper only a safety net is missing
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


_reapers: dict[int, _Reaper] = {}
_reapers_lock = threading.Lock()


def _reaper() -> _Reaper:
    """The reaper of this process. A forked child starts its own."""
    with _reapers_lock:
        if os.getpid() not in _reapers:
            _reapers[os.getpid()] = _Reaper()
        return _reapers[os.getpid()]
