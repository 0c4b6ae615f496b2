"""Processes as tests see them in /proc, and what a test makes for them: programs, and small disks."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def processes(where: Callable[[Path], object]) -> list[int]:
    """Those whose folder in /proc meets a condition; what ends meanwhile does not."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and where(entry):
                found.append(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not only what its parent has yet to ask for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def becomes_true(condition: Callable[[], object], seconds: float) -> bool:
    """Whether a condition holds within so many seconds."""
    until = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < until:
        time.sleep(0.005)
    return bool(holds)


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a program that is just being started cannot be written to
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system at a folder, with options such as its size. The test is skipped where nobody may mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if (done := subprocess.run(mount, check=False, capture_output=True, text=True)).returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
