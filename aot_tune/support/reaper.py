"""Kills registered processes when its parent is gone, however the parent died.

It is a separate program, run as `python -I -S reaper.py`. It reads lines `+<what>` and `-<what>` until its input ends:
a process group, or the token of a bench, whose descendants carry it. A parent-death signal reaches only a compiler's
driver, and a candidate can take it off its worker. This program also reaches what these started.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from pathlib import Path


def main() -> None:
    """Follow the list until the parent's end of the pipe closes. Then kill what is left on it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    listed: set[str] = set()
    for line in sys.stdin:
        (listed.add if line[0] == "+" else listed.discard)(line[1:].strip())
    for group in filter(str.isdecimal, listed):
        with contextlib.suppress(OSError):
            os.killpg(int(group), signal.SIGKILL)
    if tokens := [what.removeprefix("token ") for what in listed if not what.isdecimal()]:
        sweep = runpy.run_path(str(Path(__file__).with_name("processes.py")))["sweep"]
        for token in tokens:
            sweep(token)


if __name__ == "__main__":
    main()
