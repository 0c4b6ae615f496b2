#!/usr/bin/env python3
"""Kills parts of builds at random moments, and tells what that cost.

    tests/kills.py [--kills 300] [--first 50] [--seed 0]

Each round is a `pip wheel` of a small project, over the cache and the build folder of the rounds before, with kernels
and problems that are new to them. One process of it gets SIGKILL: in turn pip, its backend, CMake, ninja, the tuner, a
worker or a compiler. The first rounds strike within a second of the start, the others anywhere. For each kind of victim
are printed: how many were killed, how many of those builds went on to their end, how many measurements that were stored
before the kill are gone, and how many processes were left 2 s after the build's end. In the end a build that nobody
disturbs must succeed. The exit status is 1 where something was lost or left, or that build fails.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from project import OPERATOR, Project, descendants, start, wait_until_gone

PYPROJECT = """
[build-system]
requires = ["scikit-build-core"]
build-backend = "scikit_build_core.build"
[project]
name = "tiny"
version = "1"
[tool.scikit-build]
build-dir = "wheel-build"
wheel.packages = []
"""

VICTIMS = ("pip", "backend", "cmake", "ninja", "tuner", "worker", "compiler")
_PR_SET_CHILD_SUBREAPER = 36


def kind_of(command: str) -> str:
    """Which kind of victim a command line is of; empty for none."""
    program = Path(command.partition(" ")[0]).name
    if program in ("cmake", "ninja"):
        return program
    if program in ("cc1plus", "g++", "as", "ld", "collect2", "counting-g++"):
        return "compiler"
    words = {
        "-m pip": "pip",
        "_in_process": "backend",
        "aot_tune.bench.worker": "worker",
        "-m aot_tune.cli.main": "tuner",
    }
    return next((kind for text, kind in words.items() if text in command), "")


def reap() -> None:
    """Collect orphans that have died."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def stored(project: Project) -> set[str]:
    """Names of the measurements that the cache holds."""
    return {str(p) for p in (project.folder / "cache" / "measurements").rglob("*") if p.is_file()}


def begin(project: Project, number: int) -> subprocess.Popen[str]:
    """Start the build of a round, which compiles and measures something new."""
    text = OPERATOR
    for old, new in (
        ("(1, 4, 16, 64, 256)", f"(1, 4, {300 + number}, {700 + number}, {1100 + number})"),
        ("problem(N=20000)", f"problem(N={20000 + number})"),
    ):
        assert old in text
        text = text.replace(old, new)
    project.operator.write_text(text, encoding="utf-8")
    wheels = project.folder / "wheels"
    argv = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", wheels, project.folder]
    return start(argv, project.environment())


def strike(process: subprocess.Popen[str], kind: str, delay: float) -> bool:
    """Kill a process of a kind, after a delay or as soon as there is one; False when the build ended before that."""
    time.sleep(delay)
    while process.poll() is None:
        mine = {process.pid: "-m pip", **{p: c for p, c in descendants(os.getpid()).items() if p != process.pid}}
        found = [pid for pid, command in mine.items() if kind_of(command) == kind]
        for pid in random.sample(found, len(found)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        time.sleep(0.002)
    return False


def left_over() -> int:
    """How many processes are there 2 s later; they are ended."""
    try:
        wait_until_gone({}, 2.0)
    except AssertionError as error:
        print(error, flush=True)
    left = descendants(os.getpid())
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    reap()
    return len(left)


def whole(project: Project, number: int) -> float:
    """Build undisturbed; the seconds that it takes.

    Raises:
        SystemExit: when the build fails or finds something damaged.
    """
    began = time.monotonic()
    process = begin(project, number)
    said = process.communicate(timeout=300)[0]
    if process.returncode != 0 or "damaged" in said or "Traceback" in said:
        raise SystemExit(f"a build that nobody disturbs fails:\n{said[-8000:]}")
    return time.monotonic() - began


def run(kills: int, first: int, folder: Path) -> dict[str, Counter[str]]:
    """What each kind of victim came to."""
    project = Project.make(folder / "project")
    (project.folder / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    lasts = whole(project, 0)
    print(f"a build takes {lasts:.1f} s", flush=True)
    counts = {kind: Counter[str]() for kind in VICTIMS}
    done = number = 0
    while done < kills:
        number += 1
        kind = VICTIMS[done % len(VICTIMS)]
        process = begin(project, number)
        hit = strike(process, kind, random.uniform(0, 1.0 if done < first else 0.9 * lasts))
        before = stored(project)
        said = process.communicate(timeout=300)[0]
        reap()
        orphans = left_over()
        print(f"{kind}: {'killed' if hit else 'none seen'}, status {process.returncode}", flush=True)
        if not hit:
            continue
        done += 1
        counts[kind]["injected"] += 1
        counts[kind]["survived"] += process.returncode == 0
        counts[kind]["lost"] += len(before - stored(project)) + ("damaged" in said)
        counts[kind]["orphans"] += orphans
    whole(project, number + 1)
    return counts


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--first", type=int, default=50, help="how many strike within a second of the start")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random.seed(given.seed)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        counts = run(given.kills, given.first, Path(folder))
    columns = ("injected", "survived", "lost", "orphans")
    counts["all"] = sum(counts.values(), Counter[str]())
    print(f"{'victim':10}" + "".join(f"{c:>10}" for c in columns))
    for kind, count in counts.items():
        print(f"{kind:10}" + "".join(f"{count[c]:>10}" for c in columns))
    return 1 if counts["all"]["lost"] or counts["all"]["orphans"] else 0


if __name__ == "__main__":
    sys.exit(main())
