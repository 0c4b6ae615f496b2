"""What a candidate may change of the process that it shares with those after it, and must not."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aot_tune.bench.worker import floating_point, sandbox
from aot_tune.bench.worker.reference_results import is_truth
from aot_tune.support.processes import stat_of

__all__ = ["ProcessState", "changes", "left_threads", "state_now"]

_SETTLES = 0.5
"""Seconds in which the threads of OpenMP, which spin for a while after their work, fall asleep."""

_SIGNALS = ("SigBlk", "SigIgn", "SigCgt")
_THREADS = 0b11 << 31
"""Signals 32 and 33, which the C library takes for itself once there are threads."""


class ProcessState(NamedTuple):
    """What is compared; of a GPU's worker, whose driver does much of its own, less."""

    affinity: frozenset[int]
    nice: tuple[int, int]
    folder: str
    limits: Mapping[str, tuple[int, int]]
    handlers: tuple[str, ...] = ()
    environment: frozenset[bytes] = frozenset()
    descriptors: frozenset[str] = frozenset()
    arithmetic: tuple[int, bool] = (0, False)
    threads: int = 0


def state_now(*, on_host: bool) -> ProcessState:
    """How this process is now."""
    common = ProcessState(
        affinity=frozenset(os.sched_getaffinity(0)),
        nice=(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
        folder=_folder(),
        limits=sandbox.limits(),
    )
    if not on_host:
        return common
    return common._replace(
        handlers=_handlers(),
        environment=_environment(),
        descriptors=_descriptors(),
        arithmetic=floating_point.mode(),
        threads=len(os.listdir("/proc/self/task")),  # noqa: PTH208
    )


def changes(before: ProcessState, *, on_host: bool) -> list[str]:
    """What is not as it was, in words; empty when all is."""
    now = state_now(on_host=on_host)
    found = []
    if lowered := (sandbox.lowered(before.limits) if on_host else []):
        found.append(f"its limits ({', '.join(lowered)} are lower)")
    if now.affinity != before.affinity:
        found.append(f"the cores that it may use ({len(before.affinity)}, now {len(now.affinity)})")
    if now.nice != before.nice:
        found.append(f"its priority (nice {before.nice[0]}, now {now.nice[0]})")
    if now.folder != before.folder:
        found.append(f"its working folder (now {now.folder})")
    if now.handlers != before.handlers:
        found.append(f"how it takes signals ({_signals(before.handlers, now.handlers)})")
    if now.environment != before.environment:
        names = {e.partition(b"=")[0].decode(errors="replace") for e in now.environment ^ before.environment}
        found.append(f"its environment ({', '.join(sorted(names)[:5])})")
    if new := now.descriptors - before.descriptors:
        found.append(f"its open files ({', '.join(sorted(new)[:3])})")
    if gone := before.descriptors - now.descriptors:
        found.append(f"its open files ({', '.join(sorted(gone)[:3])} closed)")
    if on_host and (more := _openmp_changes()):
        found.append(more)
    return found


def left_threads(before: ProcessState) -> str:
    """What threads a candidate left, beside those of OpenMP, which sleep until the next one; empty for none."""
    openmp = _openmp()
    allowed = before.threads + (max(_openmp_threads() - 1, 0) if openmp is not None else 0)
    deadline = time.monotonic() + _SETTLES
    while (running := _running()) and time.monotonic() < deadline:
        time.sleep(0.001)
    if running:
        return f"leaves {running} thread{'s' * (running > 1)} that run{'s' * (running == 1)} on after it returned"
    more = len(os.listdir("/proc/self/task")) - allowed  # noqa: PTH208
    return f"leaves {more} thread{'s' * (more > 1)}" if more > 0 else ""


def _running() -> int:
    """How many other threads of this process run or wait for a core."""
    count, own = 0, os.getpid()
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            count += int(thread) != own and stat_of(own, thread).state == "R"
        except OSError:  # it ended meanwhile
            continue
    return count


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return "one that is gone"


def _handlers() -> tuple[str, ...]:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return tuple(f"{int(found.get(name, '0'), 16) & ~_THREADS:x}" for name in _SIGNALS)


def _signals(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    bits = 0
    for one, other in zip(before, now, strict=True):
        bits |= int(one or "0", 16) ^ int(other or "0", 16)
    known = {int(s): s.name for s in signal.Signals}
    return ", ".join(known.get(n, f"signal {n}") for n in range(1, 65) if bits >> (n - 1) & 1)


def _environment() -> frozenset[bytes]:
    """What C has, which Python's copy does not follow."""
    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found = []
    for number in range(1 << 16):
        if not pointer or (text := pointer[number]) is None:
            break
        if not text.startswith(b"AOT_TUNE_"):  # by which this process itself tells a library what to call
            found.append(text)
    return frozenset(found)


def _descriptors() -> frozenset[str]:
    """What is open, but for the files that true values are mapped from."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:  # that of the listing itself
            continue
        if not is_truth(target):
            found.add(f"{name} to {target}")
    return frozenset(found)


def _openmp() -> Any:
    """OpenMP's run time library, if something has loaded it."""
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def _openmp_threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() else len(os.sched_getaffinity(0))


def _openmp_changes() -> str:
    """What is not as it was at first of OpenMP, which candidates share, and of the arithmetic of its threads."""
    library = _openmp()
    if library is None:
        return ""
    wanted, most = _openmp_threads(), int(library.omp_get_max_threads())
    if most != wanted:
        library.omp_set_num_threads(wanted)
        return f"OpenMP's number of threads ({wanted}, now {most})"
    if len(os.listdir("/proc/self/task")) < 2:  # noqa: PTH208
        return ""
    odd = _arithmetic_of_team(library, wanted)
    return f"how {odd} of OpenMP's threads compute{'s' * (odd == 1)} in floating point" if odd else ""


def _arithmetic_of_team(library: Any, threads: int) -> int:
    """How many threads of a team compute otherwise than this module found arithmetic at first; they are put right."""
    odd: list[int] = []

    def look(_data: object) -> None:
        if floating_point.changed_since(floating_point.AT_FIRST):
            odd.append(1)

    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(look)
    library.GOMP_parallel(called, None, ctypes.c_uint(threads), ctypes.c_uint(0))
    return len(odd)
