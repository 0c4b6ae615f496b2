"""Programs that tests run in processes of their own: forks of one that has imported what they need.

To start Python and import numpy for each costs more than the programs do.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from places import ROOT, SHARED

__all__ = ["python", "run"]

SERVER = """
import ctypes, gc, json, os, signal, sys, threading, traceback
from pathlib import Path
import numpy as np
import linked, linked_cuda, linked_hip, traces

gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number in (1, 2):
    os.dup2(os.open(asked["files"][number - 1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.environ.clear()
os.environ.update(asked["environment"])
status = 0
try:
    exec(compile(asked["code"], "<program>", "exec"))
except BaseException:
    traceback.print_exc()
    status = 1
sys.stdout.flush()
ctypes.CDLL(None).exit(status)  # with the destructors of libraries
"""


class _Server:
    """The process that waits for programs."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._files = [str(Path(self._folder.name) / name) for name in ("out", "err")]
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", SHARED, *sys.path)))
        own = {k: v for k, v in os.environ.items() if not k.startswith("AOT_TUNE_")}
        environment = {**own, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-u", "-c", SERVER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(argv, env=environment, text=True, **pipes)  # type: ignore[call-overload]
        atexit.register(self._end)

    def _end(self) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def run(self, code: str, environment: dict[str, str]) -> tuple[int, str, str]:
        """Its status, and what it wrote to stdout and stderr."""
        asked = {"code": code, "environment": environment, "files": self._files}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        out, err = (Path(file).read_text(errors="replace") for file in self._files)
        return status, out, err


_server = functools.cache(_Server)


def run(code: str, *, status: int = 0, **environment: str) -> tuple[str, str]:
    """What a program writes to stdout and stderr; it has `np`, `linked`, `linked_cuda`, `linked_hip`, `Path`."""
    found, out, err = _server().run(code, {**os.environ, **environment})
    assert found == status, out + err
    return out, err


def python(code: str, **environment: str) -> str:
    """What a program writes to stdout."""
    return run(code, **environment)[0]
