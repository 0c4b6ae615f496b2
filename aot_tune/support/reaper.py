"""Kills the process groups that were registered with it once its parent is gone, however that died.

A program of its own, run as `python -I -S reaper.py`: reads lines `+<group>` and `-<group>` until its input ends. A
parent-death signal reaches only the compiler's driver; this reaches the programs that the driver started as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Follow the list of groups until the parent's end of the pipe closes; then kill those that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
