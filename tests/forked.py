"""Programs that tests run in forks of a process that has imported what they need.

To start Python and import numpy, torch or aot_tune for each of them costs more than they do.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments import ROOT, environment, own_processors

SERVER = """
import ctypes, gc, json, os, sys, traceback
exec(sys.argv[1])
gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, file in enumerate(asked["files"], 1):
    os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.environ.clear()
os.environ.update(asked["environment"])
given, status = asked["given"], 0
try:
    exec(compile(asked["code"], "<program>", "exec"))  # a test's own program
except BaseException:
    traceback.print_exc()
    status = 1
sys.stdout.flush()
ctypes.CDLL(None).exit(status)  # with the destructors of libraries
"""
LINKED = (
    "import signal, threading\nfrom pathlib import Path\nimport numpy as np\nimport linked, linked_cuda, linked_hip"
)
COMMANDS = """
import aot_tune.cli.main, aot_tune.pipeline.build_library, aot_tune.plan.library_plan, aot_tune.plan.preflight
from aot_tune.cli.main import main
"""
COMMAND = """
sys.path[:0] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
os.setsid()
try:
    status = main(given)
except SystemExit as end:
    status = end.code
sys.stdout.flush()
os._exit(status or 0)
"""


class _Server:
    """The process that waits for programs, from the first one to the end of the tests; `first` is run before them."""

    def __init__(self, first: str, **given: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = os.pathsep.join(map(str, (ROOT, *filter(None, sys.path))))
        environ = environment(PYTHONPATH=path, OPENBLAS_NUM_THREADS="1", **given)
        argv = [sys.executable, "-B", "-u", "-c", SERVER, first]
        self._process = subprocess.Popen(
            argv, env=environ, cwd=tempfile.gettempdir(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self._end)

    def _end(self) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def run(
        self, code: str, given: Any, environ: Mapping[str, str], names: Sequence[str] = ("out", "err")
    ) -> tuple[int, list[str]]:
        """A program's status, and what it wrote to stdout and stderr, which go to files of these names."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        files = [Path(self._folder.name, name) for name in names]
        for file in files:
            file.write_bytes(b"")
        asked = {"code": code, "given": given, "environment": dict(environ), "files": [str(f) for f in files]}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        return status, [f.read_text(errors="replace") for f in files]


_server = functools.cache(_Server)


def run(code: str, *, status: int = 0, **given: str) -> tuple[str, str]:
    """What a program writes to stdout and stderr; it has `np`, `linked`, `linked_cuda`, `linked_hip`, `Path`."""
    found, (out, err) = _server(LINKED).run(code, None, {**os.environ, **given})
    assert found == status, out + err
    return out, err


def python(code: str, **given: str) -> str:
    return run(code, **given)[0]


def answer(first: str, code: str, given: Any, **environ: str) -> Any:
    """The value, by JSON, of an expression of `given`, where `first` has been run once."""
    found, (out, err) = _server(first, **environ).run(f"print(json.dumps({code}))", given, {**os.environ, **environ})
    assert found == 0, out[-2000:] + err[-4000:]
    return json.loads(out.splitlines()[-1])


def command(argv: Sequence[object], *, env: Mapping[str, str], status: int | None = 0, timeout: float = 0) -> str:
    """What a command of `Project.command` says, as `environments.run` does. `status` None allows any."""
    del timeout
    words = [str(a) for a in argv[argv.index("aot_tune.cli.main") + 1 :]]
    with own_processors():
        server = _server(COMMANDS)
    found, (said, _) = server.run(COMMAND, words, env, ("said", "said"))
    assert status is None or found == status, f"{argv} ended with {found}:\n{said[-8000:]}"
    return said
