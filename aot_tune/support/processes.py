"""Processes of this machine, as /proc shows them: children, leftovers to remove, threads that still run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TOKEN = "AOT_TUNE_BENCH_TOKEN"  # noqa: S105
"""Environment variable that marks the workers of one bench and all of their descendants."""


WORKERS: set[int] = set()
"""Workers of all benches of this process that are not reaped yet. No bench may sweep those of another."""

_CLEAN_PASSES = 3
"""Number of passes: a process that forks and exits while /proc is read can hide its child from one pass."""

_RSS_SHMEM = re.compile(rb"RssShmem:\s*(\d+)")
_SHARED = Path("/dev/shm")  # noqa: S108

NAME = "aot_tune-bench"
"""The process name of a worker and of its forks, at most 15 bytes."""


class Stat(NamedTuple):
    """A process or thread. `busy`: CPU seconds, with awaited children's. `began`: its start, in ticks after boot."""

    name: str
    state: str
    parent: int
    group: int
    busy: float
    began: int


def stat_of(pid: int, thread: str = "") -> Stat:
    """What /proc says of a process or one of its threads. Raises OSError when there is none, or it does not say."""
    path = Path(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat")
    text = path.read_text(encoding="utf-8", errors="replace")  # the process name in it may be any bytes
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        raise OSError(f"{path} has too few fields")
    busy = sum(int(n) for n in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return Stat(head.partition("(")[2], fields[0], int(fields[1]), int(fields[2]), busy, int(fields[19]))


def all_pids() -> list[int]:
    """All processes that this one can see."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def children_of(parent: int) -> list[int]:
    """Processes whose parent is `parent`, zombies included."""
    children = []
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if stat_of(pid).parent == parent:
                children.append(pid)
    return children


def ancestors() -> Iterator[tuple[int, Stat]]:
    """The ancestors of this process, its parent first, as far as it can see them."""
    pid, seen = os.getppid(), set[int]()
    with contextlib.suppress(OSError):
        while pid > 0 and pid not in seen:
            seen.add(pid)
            stat = stat_of(pid)
            yield pid, stat
            pid = stat.parent


def busy_now(most: int = 3) -> list[tuple[int, str]]:
    """Ids and names of processes that run now and have used the cores longest, without this one and its descendants."""
    stats = {}
    for pid in all_pids():
        with contextlib.suppress(OSError):
            stats[pid] = stat_of(pid)

    def is_own(pid: int) -> bool:
        return pid == os.getpid() or (pid in stats and is_own(stats[pid].parent))

    running = [pid for pid, stat in stats.items() if stat.state == "R" and not is_own(pid)]
    return [(pid, stats[pid].name) for pid in sorted(running, key=lambda pid: -stats[pid].busy)[:most]]


def arguments_of(pid: int) -> list[str]:
    """The command line of a process; empty if the system does not tell."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
    return words[:-1]


def _memory(pid: int | str, field: int) -> int:
    """Bytes of a field of a process's statm. Raises OSError when there is no such process."""
    file = os.open(f"/proc/{pid}/statm", os.O_RDONLY)  # workers ask before each run
    try:
        return int(os.read(file, 256).split()[field]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(file)


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process in bytes; by default of this one. Raises OSError when there is no such process."""
    return _memory(pid, 1)


def peak_bytes(pid: int) -> int:
    """The most resident memory that a process has had, in bytes; 0 if the system does not tell, or it has ended."""
    return stated_bytes(Path(f"/proc/{pid}/status"), "VmHWM") or 0


def stated_bytes(path: Path, name: str) -> int | None:
    """Bytes of a field that the system states in kB, as in /proc/meminfo; None if it does not state it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for row in path.read_text().splitlines():
            if row.startswith(f"{name}:"):
                return int(row.split()[1]) * 1024
    return None


def data_bytes() -> int:
    """What RLIMIT_DATA counts for this process: its private writable memory in bytes."""
    return _memory("self", 5)


def started_by(pid: int) -> list[int]:
    """Children of a process. It takes less time than `children_of`, and some systems do not tell."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # some kernels lack this file, and threads end
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return children


def _read(path: str) -> bytes:
    """Read a small file of `/proc` between candidates' turns, without the extra work of Python's files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def shared_bytes(pid: int) -> int:
    """Resident bytes that a process shares, without those of files on a disk."""
    with contextlib.suppress(OSError):
        match = _RSS_SHMEM.search(_read(f"/proc/{pid}/status"))
        return int(match[1]) << 10 if match else 0
    return 0


def shared_files(pid: int) -> set[Path]:
    """Files of shared memory that a process has open."""
    files: set[Path] = set()
    with contextlib.suppress(OSError):
        if not os.listdir(_SHARED):  # noqa: PTH208  # it is mostly empty
            return files
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
                if target.startswith(f"{_SHARED}/") and os.path.exists(target):  # noqa: PTH110
                    files.add(Path(target))
    return files


def mark_of(token: str) -> int:
    """A bench's mark: a resource limit that all descendants of its workers inherit, whatever their environment."""
    return 1 + int.from_bytes(hashlib.sha256(token.encode()).digest()[:4], "big") % 800_000


def _is_marked(pid: int, token: str) -> bool:
    try:
        if f"{TOKEN}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
        limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    line = next((text for text in limits.splitlines() if text.startswith("Max msgqueue size")), "")
    return line.split()[3:5] == [str(mark_of(token))] * 2


def sweep(token: str, spare: Iterable[int] = ()) -> None:
    """Kill and reap all processes that have the token, or the resource limit for it, which no `exec` removes.

    While this process is a subreaper, orphaned descendants of a worker become its children. While a parent dies, its
    child may belong to no process that is visible from here. So all processes are checked. `spare` are live workers.
    """
    kept, swept = {os.getpid(), *spare, *WORKERS}, set[int]()
    clean, deadline = 0, time.monotonic() + 2.0
    while clean < _CLEAN_PASSES and time.monotonic() < deadline:
        strays = [p for p in all_pids() if p not in kept and p not in swept and _is_marked(p, token)]
        for pid in strays:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        swept |= set(strays)
        clean = 0 if strays else clean + 1
        if clean:
            time.sleep(0.001)
    for pid in swept:
        _reap(pid, 0.2)
    for pid in children_of(os.getpid()):  # a process that died by itself has a name, but no environment
        if pid not in kept and _is_dead_worker(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _is_dead_worker(pid: int) -> bool:
    try:
        stat = stat_of(pid)
    except OSError:
        return False
    return stat.state == "Z" and stat.name == NAME


def _reap(pid: int, seconds: float) -> None:
    """Take the exit status of a killed process when it has become this process's child, if that is in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.0005)


def reap_children() -> int:
    """Kill and reap every child of this process. Returns how many there were. For a worker, which must have none."""
    reaped = 0
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                reaped += 1
                continue
        except ChildProcessError:
            return reaped
        for pid in children_of(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                reaped += 1


def _runs(pid: int) -> bool:
    """Whether some thread of a process runs or waits for a core."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if stat_of(pid, thread.name).state == "R":
                    return True
    return False


def wait_until_quiet(pids: Iterable[int], seconds: float) -> None:
    """Wait, at most so long, until no thread of these processes runs: those of BLAS spin after their work."""
    begin = time.monotonic()
    watched = list(pids)
    while any(map(_runs, watched)) and time.monotonic() - begin <= seconds:
        time.sleep(0.0005)
