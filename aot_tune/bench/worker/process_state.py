"""What a candidate could change of the process, or of the thread, that it shares with later ones, and must not."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from aot_tune.bench.worker import sandbox
from aot_tune.bench.worker.reference_results import is_truth
from aot_tune.support.processes import stat_of

_libm = ctypes.CDLL("libm.so.6")
_SAVED = ctypes.create_string_buffer(64)
"""The environment at import. C's `fenv_t` takes at most 32 bytes."""
_libm.fegetenv(_SAVED)
_LEAST, _ONE = 5e-324, 1.0
_libc = ctypes.CDLL(None)
_LC_ALL, _FAR, _BILLION, _ROUNDING = 6, 1 << 32, 10**9, 1000
_TELLING = 40
"""Values of settings that take more characters say little."""
_STATED = {"mask of new files": "Umask", "locked memory": "VmLck", "system calls": "Seccomp", "traces": "TracerPid"}
"""Other settings that `/proc/self/status` states."""
_ANSWERED = {"dumps": 3, "timers' slack": 30, "large pages": 42}
_WRITTEN = {"signal when its parent ends": 2, "time stamps": 25, "orphans": 37}
"""Those that `prctl` returns, and that it writes, by the numbers of <linux/prctl.h>."""
_OPENMP: list[Any] = []
T = TypeVar("T")
_SETTLES = 0.5
"""Seconds in which ending threads must end, such as those of an OpenMP team that was larger."""
_SIGNALS = re.compile(rb"^Sig(?:Blk|Ign|Cgt):\s*([0-9a-f]+)", re.MULTILINE)
"""Lines of `/proc` on signals: those that are blocked, ignored and caught, as bits."""
_THREADS = 0b11 << 31
"""Signals 32 and 33. The C library takes them for itself once there are threads."""


_KEPT = ("rbx", "rbp", "r12", "r13", "r14", "r15", "the direction flag")
"""What a function on x86-64 must leave as it was."""
_DIRECTION = 1 << 10
_FLAGS, _TARGET, _COUNT, _TOP = 8, 9, 10, 11
"""Words of the block of `_GUARD`, after what it has kept."""
_GUARD = (
    "49bb",
    "",  # r11 is the block. Keep in it rbx, rbp, r12 to r15, rsp and the flags.
    "49891b 49896b08 4d896310 4d896b18 4d897320 4d897b28 49896330 9c 418f4338",
    "498b5b58 4885db 480f44dc 4883e3f0 4d8b6350",  # rbx is the top of a stack, this one for 0. r12 is a count.
    "4883eb08 4e8b2ce4 4c892b 49ffcc 75f0 4889dc",  # Copy so many arguments to that stack, and change to it.
    "4c89db 4c89dd 4d89dc 4d89dd 4d89de 4d89df 41ff5348",  # Registers are the block. Call the target.
    "49bb",
    "",  # Exchange what is in them now and what was kept. Keep the flags, and write those from before.
    "49871b 49876b08 4d876310 4d876b18 4d877320 4d877b28 498b6330 9c 418f4340 41ff7338 9d c3",
)
"""Machine code that calls a function with the arguments that it is called with. Empty texts are the block's address."""
_SMALL, _BELOW = 256 << 10, 8 << 20
"""Bytes of a small stack, and of what nobody may access below it."""
Arithmetic = tuple[int, bool, bytes]


def arithmetic_now() -> Arithmetic:
    """How the calling thread computes: its rounding mode, whether denormal numbers are flushed to 0, and its units.

    Of these, it is how they are set, and which registers of the x87 unit are in use. MMX code that does not empty them
    leaves them so.
    """
    return int(_libm.fegetround()), _LEAST * _ONE == 0.0, _units()


def _units() -> bytes:
    if os.uname().machine != "x86_64":
        return b""
    now = ctypes.create_string_buffer(64)
    _libm.fegetenv(now)
    return now.raw[0:2] + now.raw[8:10] + bytes([now.raw[28] & 0xC0, now.raw[29]])  # without what only records errors


_AT_FIRST = arithmetic_now()
"""The mode at import."""


def arithmetic_change(before: Arithmetic) -> str:
    """How a call changed the arithmetic from before it, or empty. It is then set as at import."""
    now = arithmetic_now()
    if now == before:
        return ""
    restore_arithmetic()
    words = (
        "rounds in another direction",
        "treats denormal numbers differently",
        "has another state of its x87 or SSE unit",
    )
    what = next(word for word, then, late in zip(words, before, now, strict=True) if then != late)
    return f"the thread that called it {what} from then on"


def restore_arithmetic() -> None:
    """Let the thread compute as it did at import."""
    _libm.fesetenv(_SAVED)


def guarded(call: partial[int], *, small: bool) -> tuple[int, str]:
    """Make a call of a C function. Returns its code, and what it has lost of what its caller had, or empty.

    On x86-64 that is told, and a `small` stack is used if it is asked for. Otherwise the call is made as it is.
    """
    target: Any = call.func
    guard = _guard() if isinstance(target, ctypes._CFuncPtr) else None  # type: ignore[attr-defined]
    if guard is None:
        return call(), ""
    function, block, top = guard
    block[_TARGET], block[_TOP] = ctypes.cast(target, ctypes.c_void_p).value or 0, top if small else 0
    block[_COUNT] = len(call.args) + len(call.args) % 2  # at least as many as are on the stack
    code = int(function(*call.args))
    left = [block[n] == ctypes.addressof(block) for n in range(len(_KEPT) - 1)] + [not block[_FLAGS] & _DIRECTION]
    lost = [name for name, is_left in zip(_KEPT, left, strict=True) if not is_left]
    return code, f"the thread that called it has lost {', '.join(lost)}" if lost else ""


@cache
def _guard() -> tuple[Any, ctypes.Array[ctypes.c_uint64], int] | None:
    """See `_GUARD`: it, its block, and the top of a small stack. None if there is none here."""
    if os.uname().machine != "x86_64":
        return None
    block = (ctypes.c_uint64 * (_TOP + 1))()
    code, stack = (mmap.mmap(-1, s, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for s in (4096, _BELOW + _SMALL))
    here = ctypes.addressof(block).to_bytes(8, "little")
    code.write(b"".join(bytes.fromhex(part) if part else here for part in _GUARD))
    run, bottom = (ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in (code, stack))
    if _libc.mprotect(ctypes.c_void_p(run), ctypes.c_size_t(4096), mmap.PROT_READ | mmap.PROT_EXEC):
        return None
    _libc.mprotect(ctypes.c_void_p(bottom), ctypes.c_size_t(_BELOW), 0)
    function = ctypes.CFUNCTYPE(ctypes.c_int32)(run)
    function.memory = code, stack  # type: ignore[attr-defined]  # for as long as it is called
    return function, block, bottom + _BELOW + _SMALL


class ProcessState(NamedTuple):
    """What is compared. It is less for a GPU's worker, because the driver changes much by itself."""

    affinity: frozenset[int]
    nice: tuple[int, int]
    folder: str
    limits: Mapping[str, tuple[int, int]]
    handlers: tuple[str, ...] = ()
    environment: frozenset[bytes] = frozenset()
    descriptors: frozenset[str] = frozenset()
    threads: frozenset[int] = frozenset()
    settings: Mapping[str, str] = MappingProxyType({})


def state_now(*, on_host: bool) -> ProcessState:
    """The present state of this process."""
    _timer()
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
        threads=_threads(),
        settings=_settings(),
    )


def changes(before: ProcessState, *, on_host: bool) -> list[str]:
    """What has changed, in words, or empty."""
    now = state_now(on_host=on_host)
    changed = []
    if lowered := (sandbox.lowered(before.limits) if on_host else []):
        changed.append(f"its limits ({', '.join(lowered)} are lower)")
    if now.affinity != before.affinity:
        changed.append(f"the cores that it may use ({len(before.affinity)}, now {len(now.affinity)})")
    if now.nice != before.nice:
        changed.append(f"its priority (nice {before.nice[0]}, now {now.nice[0]})")
    if now.folder != before.folder:
        changed.append(f"its working folder (now {now.folder})")
    if now.handlers != before.handlers:
        changed.append(f"how it takes signals ({_signals(before.handlers, now.handlers)})")
    changed += _changed_settings(before.settings, now.settings)
    if now.environment != before.environment:
        names = {e.partition(b"=")[0].decode(errors="replace") for e in now.environment ^ before.environment}
        changed.append(f"its environment ({', '.join(sorted(names)[:5])})")
    if new := now.descriptors - before.descriptors:
        changed.append(f"its open files ({', '.join(sorted(new)[:3])})")
    if gone := before.descriptors - now.descriptors:
        changed.append(f"its open files ({', '.join(sorted(gone)[:3])} closed)")
    if on_host and (more := _openmp_changes()):
        changed.append(more)
    if _is_clock_changed():
        changed.append("the clock of its calls")
    return changed


def _changed_settings(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    changed = []
    for what, then in before.items():
        if (value := now[what]) != then:
            told = f" ({then or 'none'}, now {value or 'none'})"
            changed.append(f"its {what}{told if len(told) < _TELLING else ''}")
    return changed


def _is_clock_changed() -> bool:
    """Whether the clock that times calls is not the system's, which a timer tells on another way."""
    left = (ctypes.c_int64 * 4)()
    before = time.perf_counter_ns() - _ROUNDING
    if _libc.timerfd_gettime(_timer(), left) != 0:
        return False
    now = (_FAR - left[2]) * _BILLION - left[3]
    return not before <= now <= time.perf_counter_ns() + _ROUNDING


@cache
def _timer() -> int:
    """The descriptor of a timer that ends at `_FAR` seconds of the clock that times calls."""
    timer = int(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC))
    _libc.timerfd_settime(timer, 1, (ctypes.c_int64 * 4)(0, 0, _FAR, 0), None)
    return timer


def left_threads(before: ProcessState) -> str:
    """Which threads a candidate left, or empty. Those of OpenMP do not count: they wait for the next."""
    deadline = time.monotonic() + _SETTLES
    while more := _threads() - before.threads - {os.getpid()}:
        more -= {*_in_team(threading.get_native_id)}
        if not more or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    if running := sum(map(_runs, more)):
        return f"leaves {running} thread{'s' * (running > 1)} that run{'s' * (running == 1)} on after it returned"
    return f"leaves {len(more)} thread{'s' * (len(more) > 1)}" if more else ""


def _threads() -> frozenset[int]:
    return frozenset(map(int, os.listdir("/proc/self/task")))  # noqa: PTH208


def _runs(thread: int) -> bool:
    """Whether a thread runs or waits for a core."""
    try:
        return stat_of(os.getpid(), str(thread)).state == "R"
    except OSError:  # it ended meanwhile
        return False


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return "one that is gone"


def _mode() -> str:
    try:
        return f"{Path().stat().st_mode:o}"
    except OSError:
        return "nobody may look"


def _handlers() -> tuple[str, ...]:
    status = Path("/proc/self/status").read_bytes()
    return tuple(f"{int(value, 16) & ~_THREADS:x}" for value in _SIGNALS.findall(status))


def _signals(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    bits = 0
    for one, other in zip(before, now, strict=True):
        bits |= int(one or "0", 16) ^ int(other or "0", 16)
    names = {int(s): s.name for s in signal.Signals}
    return ", ".join(names.get(n, f"signal {n}") for n in range(1, 65) if bits >> (n - 1) & 1)


def _settings() -> dict[str, str]:
    """Other settings of a process, which kernels have no reason to change."""
    status = Path("/proc/self/status").read_text(errors="replace")
    lines = dict(line.partition(":\t")[::2] for line in status.splitlines())
    stack = ctypes.create_string_buffer(24)
    _libc.sigaltstack(None, stack)
    _libc.setlocale.restype = _libc.uselocale.restype = ctypes.c_void_p
    timers = [name for name in ("REAL", "VIRTUAL", "PROF") if signal.getitimer(getattr(signal, f"ITIMER_{name}"))[0]]
    return {
        "locale": ctypes.string_at(_libc.setlocale(_LC_ALL, None)).decode(errors="replace"),
        "thread's locale": f"{_libc.uselocale(None):x}",
        "interval timers": ", ".join(timers),
        "timers": str(_read("/proc/self/timers").count("ID:")),
        "stack for signals": stack.raw.hex(),
        "folder's mode": f"{Path().stat().st_mode:o}",
        "session": f"{os.getsid(0)} {os.getpgid(0)}",
        "score for the system's killer": _read("/proc/self/oom_score_adj").strip(),
        **{what: lines.get(name, "").strip() for what, name in _STATED.items()},
        **{what: str(_libc.prctl(number, 0, 0, 0, 0)) for what, number in _ANSWERED.items()},
        **{what: _written(number) for what, number in _WRITTEN.items()},
    }


def _read(path: str) -> str:
    """A small file of `/proc`, which some systems lack."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _written(number: int) -> str:
    """What `prctl` writes."""
    value = ctypes.c_int(0)
    _libc.prctl(number, ctypes.byref(value), 0, 0, 0)
    return str(value.value)


def _environment() -> frozenset[bytes]:
    """The environment as C sees it. Python's copy does not follow changes."""
    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    variables = []
    for number in range(1 << 16):
        if not pointer or (text := pointer[number]) is None:
            break
        if not text.startswith(b"AOT_TUNE_"):  # this process itself sets these, to tell a library what to call
            variables.append(text)
    return frozenset(variables)


def _descriptors() -> frozenset[str]:
    """What is open, without the files that true values are mapped from."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:  # the descriptor of the listing itself
            continue
        if not is_truth(target):
            descriptors.add(f"{name} to {target}")
    return frozenset(descriptors)


def _openmp() -> Any:
    """OpenMP's runtime library, if something has loaded it. Then it stays."""
    if not _OPENMP:
        with suppress(OSError):
            _OPENMP.append(ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    return _OPENMP[0] if _OPENMP else None


def _openmp_threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() else len(os.sched_getaffinity(0))


@contextmanager
def openmp_threads(count: int) -> Iterator[None]:
    """In the block, OpenMP, if it is loaded, has so many threads, or as many as usual for 0."""
    library = _openmp() if count else None
    if library is not None:
        library.omp_set_num_threads(count)
    try:
        yield
    finally:
        if library is not None and int(library.omp_get_max_threads()) == count:
            library.omp_set_num_threads(_openmp_threads())


def has_team() -> bool:
    """Whether a call may take several threads of OpenMP."""
    return _openmp_threads() > 1 and _openmp() is not None


def _openmp_changes() -> str:
    """What has changed of OpenMP, which candidates share, or of the arithmetic of its threads."""
    library = _openmp()
    if library is None:
        return ""
    wanted, most = _openmp_threads(), int(library.omp_get_max_threads())
    if most != wanted:
        library.omp_set_num_threads(wanted)
        return f"OpenMP's number of threads ({wanted}, now {most})"
    odd = sum(map(bool, _in_team(_arithmetic))) if len(_threads()) > 1 else 0
    return f"how {odd} of OpenMP's threads compute{'s' * (odd == 1)} in floating point" if odd else ""


def _arithmetic() -> str:
    return arithmetic_change(_AT_FIRST)


def _in_team(ask: Callable[[], T]) -> list[T]:
    """The answers of all OpenMP threads, including this one. Empty if nobody has loaded OpenMP."""
    library, answers = _openmp(), []
    if library is None:
        return []
    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _data: answers.append(ask()))
    # A team of one would leave the pool alone, with the threads that a kernel asked for by number. A larger team trims
    # it.
    team = max(_openmp_threads(), min(len(_threads()), 2))
    library.GOMP_parallel(called, None, ctypes.c_uint(team), ctypes.c_uint(0))
    return answers
