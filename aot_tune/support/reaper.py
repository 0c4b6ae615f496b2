"""Kills registered process groups when its parent is gone, however the parent died.

It is a separate program, run as `python -I -S reaper.py`. It reads lines `+<group>` and `-<group>` until its input
ends. A parent-death signal reaches only the compiler's driver. This program also reaches what the driver started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Follow the list of groups until the parent's end of the pipe closes. Then kill the groups that are left."""
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
