"""A build has at least three processes: configure, tune, and checks of linked files. Its wall clock, and its folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from aot_tune.support.errors import BuildError
from aot_tune.support.file_locks import Timeout, TrueLock
from aot_tune.support.processes import ancestors, stat_of
from aot_tune.support.storage import (
    TEMPORARIES,
    CorruptError,
    OtherSchemaError,
    private_folder,
    replace_file,
    seal,
    unseal,
)

_SCHEMA = 1
_FILE = "clock.json"
_NEXT_COMMAND = 10.0
"""If a build starts within this many seconds after configuring, both are one command of the user's."""
_TOOLS = frozenset(("cmake", "ninja", "ninja-build", "make", "gmake"))
_SHELLS = frozenset(("bash", "dash", "sh"))
"""Names of programs between build tools. A build tool above other programs is the user's own."""

_REMEMBERED = 3
"""How many links are remembered, because machines are sometimes busier."""


_USED = "used_by"
"""File in a build folder: the process whose end is the end of the build, and when it began, in ticks."""


class Wall(msgspec.Struct, kw_only=True):
    """Moments of a build in seconds since boot.

    They are when CMake began to configure it, when the plan was written, and when the tuning ended. `checks` of linked
    files came after that. `memory` is the file that remembers how long linking takes with all cores. `granted` is the
    share of the cores that linking got.
    """

    began: float = 0.0
    planned: float = 0.0
    tuned: float = 0.0
    checks: int = 0
    granted: float = 1.0
    memory: str = ""


class _Links(msgspec.Struct, frozen=True):
    seconds: tuple[float, ...] = ()


def take_folder(directory: Path) -> None:
    """Keep other builds from a build folder until this one, or the tool that links next, ends. Raises BuildError."""
    if not directory.is_dir():
        return
    tools = [pid for pid, stat in ancestors() if stat.name.startswith("ninja")]
    owner, file = (*tools, _outermost(_TOOLS | _SHELLS), os.getpid()), directory / _USED
    mine = next(pid for pid in owner if pid is not None)
    lock = TrueLock(directory / f"{_USED}.lock", timeout=_NEXT_COMMAND, mode=0o600)
    with contextlib.suppress(OSError, Timeout), lock:  # where files cannot be locked, nobody is told
        other = _user_of(file)
        if other is not None and other not in {os.getpid(), *(pid for pid, _ in ancestors())}:
            raise BuildError(
                f"another build is using {directory}",
                why=f"process {other} has not ended",
                fix="wait until it has ended, or build in another folder",
            )
        file.write_text(f"{mine} {stat_of(mine).began}")


def _user_of(file: Path) -> int | None:
    """The process that a build folder was given to, if it still runs."""
    try:
        pid, began = map(int, file.read_bytes().split())
        return pid if stat_of(pid).began == began else None
    except (OSError, ValueError):
        return None


def note_configured(directory: Path) -> None:
    """Write down in a build's folder that its plan was written now, and when CMake began."""
    write_wall(directory, Wall(began=began_at(_outermost({"cmake"}) or os.getpid()), planned=since_boot()))


def spent_before(directory: Path) -> float:
    """Seconds of a build until now: since this process began, and those of a configure just before."""
    started = began_at(os.getpid())
    began = read_wall(directory).began if planned_just_now(directory) else started
    return max(since_boot() - began, 0.0)


def planned_just_now(directory: Path) -> bool:
    """Whether the plan was written, and told, by the same command of the user's."""
    return 0.0 <= began_at(os.getpid()) - read_wall(directory).planned <= _NEXT_COMMAND


def note_tuned(directory: Path, memory: Path | None, *, ago: float = 0.0, granted: float = 1.0) -> None:
    """Write down that the tuning ended `ago` seconds ago, and the file that shall remember how long linking takes.

    `granted` is the share of the cores that compilers got lately beside other programs.
    """
    wall = read_wall(directory)
    wall.tuned, wall.checks, wall.granted, wall.memory = since_boot() - ago, 0, granted, str(memory or "")
    write_wall(directory, wall)


def note_linked(directory: Path) -> None:
    """Remember the time from the end of a library's tuning until now. Each check of a linked file calls this."""
    wall = read_wall(directory)
    now = since_boot()
    if not wall.memory or not began_at(_outermost(_TOOLS | _SHELLS) or os.getpid()) <= wall.tuned <= now:
        return  # linked by another command later, or after a reboot
    memory = Path(wall.memory)
    earlier = link_times(memory)[1 if wall.checks else 0 :]  # only the last check of a build counts
    links = _Links(((now - wall.tuned) * wall.granted, *earlier)[:_REMEMBERED])
    wall.checks += 1
    with contextlib.suppress(OSError):  # only an estimate is lost
        private_folder(memory.parent)
        replace_file(memory, seal(links, _SCHEMA), memory.parent.parent / TEMPORARIES)
        write_wall(directory, wall)


def link_seconds(memory: Path | None) -> float | None:
    """Seconds from tuning to a checked library on an idle machine: the longest of the last times, or None."""
    return max(link_times(memory), default=None) if memory is not None else None


def link_times(memory: Path) -> tuple[float, ...]:
    """How long earlier links took, in seconds, the newest first. Empty without a memory file."""
    try:
        return unseal(memory.read_bytes(), _Links, _SCHEMA).seconds
    except (OSError, CorruptError, OtherSchemaError):
        return ()


def read_wall(directory: Path) -> Wall:
    """What a build folder's note says; an empty note if there is none."""
    try:
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=Wall)
    except (OSError, ValueError):
        return Wall()


def write_wall(directory: Path, wall: Wall) -> None:
    """Write the note into the build folder. Nothing happens if the folder cannot be written."""
    with contextlib.suppress(OSError):
        (directory / _FILE).write_bytes(msgspec.json.encode(wall))


def since_boot() -> float:
    """Seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _outermost(names: AbstractSet[str]) -> int | None:
    """The outermost build tool in the unbroken chain of ancestors with these names; None if there is none."""
    outermost = None
    for pid, stat in ancestors():
        if stat.name not in names:
            break
        outermost = pid if stat.name in _TOOLS else outermost
    return outermost


def began_at(pid: int) -> float:
    """When a process began, in seconds since boot; the current time if the system does not tell."""
    try:
        return stat_of(pid).began / os.sysconf("SC_CLK_TCK")
    except OSError:
        return since_boot()
