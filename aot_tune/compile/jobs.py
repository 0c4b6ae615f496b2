"""How many compilers to run at a time."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from aot_tune.support.control_groups import control_groups, core_limits
from aot_tune.support.errors import OptionError
from aot_tune.support.memory_limits import free_memory

__all__ = ["MEMORY_PER_COMPILE", "Jobs", "Room", "parallel_compiles"]

_VARIABLES = ("AOT_TUNE_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "MAX_JOBS")
MEMORY_PER_COMPILE = 1 << 30


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """A number of compilers, and one line that says where it came from and how to change it.

    `memory` is what one compiler may need, and `free` what all may take together, in bytes. `free` is None if somebody
    set the number.
    """

    count: int
    reason: str
    memory: int = MEMORY_PER_COMPILE
    free: int | None = None


class Room:
    """The cores and memory that compilers of several backends share.

    Args:
        count: how many compilers run at a time.
        free: bytes that they may take together. None is no limit.
    """

    def __init__(self, count: int, free: int | None = None) -> None:
        self._count, self._free = count, math.inf if free is None else free
        self._running = self._used = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def of(self, memory: int) -> Iterator[None]:
        """Wait until there is room for one more compiler that may need `memory` bytes.

        If none runs, there always is.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0 or self._fits(memory))
            self._running, self._used = self._running + 1, self._used + memory
        try:
            yield
        finally:
            with self._changed:
                self._running, self._used = self._running - 1, self._used - memory
                self._changed.notify_all()

    def _fits(self, memory: int) -> bool:
        return self._running < self._count and self._used + memory <= self._free


def parallel_compiles(environ: Mapping[str, str], *, root: Path = Path("/"), memory: int = MEMORY_PER_COMPILE) -> Jobs:
    """The first of AOT_TUNE_JOBS, CMAKE_BUILD_PARALLEL_LEVEL and MAX_JOBS, or else what cores and memory allow.

    Args:
        root: where /proc and /sys are read.
        memory: bytes that one compiler may need, as `Toolchain.memory_per_job` says.

    Raises:
        OptionError: when one of the variables is not a positive integer.
    """
    for name in _VARIABLES:
        text = environ.get(name, "")
        if text:
            if not text.isdecimal() or int(text) < 1:
                raise OptionError(f"{name}={text!r} is not a positive integer", fix=f"set {name} to 1 or more")
            return Jobs(count=int(text), reason=f"{text} compilers at a time ({name})", memory=memory)
    cores = min([len(os.sched_getaffinity(0)), *core_limits(control_groups(root))])
    known = free_memory(root)
    free = cores * memory if known is None else known
    count = max(1, min(cores, free // memory))
    each = f", {memory / 2**30:.1f} GiB each" if count < cores else ""
    reason = f"{count} compilers at a time ({cores} cores, {free / 2**30:.1f} GiB free{each}; AOT_TUNE_JOBS changes it)"
    return Jobs(count=count, reason=reason, memory=memory, free=free)
