"""Programs that answer lines of JSON, each line in a forked process: what is imported there needs seconds.

The answer comes as a line; then an empty line and the exit status.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from places import SHARED


class Served:
    """A program of this folder, from its first question to the end of the tests."""

    def __init__(self, *argv: str, **environment: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - until the tests end
        environ = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"} | environment
        environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            [sys.executable, str(SHARED / argv[0]), *argv[1:]],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        atexit.register(self._process.communicate)

    def __call__(self, given: Any) -> Any:
        """The answer to a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before = os.fstat(self._errors.fileno()).st_size
        print(json.dumps(given), file=self._process.stdin, flush=True)
        answer = line = ""
        for line in self._process.stdout:
            if re.fullmatch(r"-?\d+\n", line):
                break
            answer += line
        errors = os.pread(self._errors.fileno(), 1 << 20, before).decode()
        assert line == "0\n", answer[-2000:] + errors[-4000:]
        return json.loads(answer)


served = functools.cache(Served)
"""One that is running, or starts now."""


def serve(answer: Callable[[Any], Any], prepare: Callable[[Any], Any] = lambda given: None) -> None:
    """Answer the lines of standard input; what `prepare` does stays for later lines."""
    for line in sys.stdin:
        given = json.loads(line)
        prepare(given)
        child = os.fork()
        if child == 0:
            print(json.dumps(answer(given)), flush=True)
            os._exit(0)
        print(f"\n{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
