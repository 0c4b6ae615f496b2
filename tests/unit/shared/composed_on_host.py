"""Composed kernels compiled for the host, to be called beside a stand-in for the vendor's library."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from places import SHARED
from precompiled import include
from rows_on_host import HOST

from aot_tune.render import Rendered

FAULTS = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")  # what a GPU would not load

Calls = list[dict[str, Any]]


class OnHost:
    """A composed kernel compiled for the host, to be called beside a stand-in for the vendor's library."""

    def __init__(self, folder: Path, rendered: Rendered, templates: Path) -> None:
        self._rendered, self._program, self._templates = rendered, folder / "kernel.so", templates
        self.dtype = rendered.candidate.dtypes["T"]
        (folder / "kernel.cpp").write_text(rendered.source)
        flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-pthread", "-fno-gnu-unique", "-fno-strict-aliasing", *FAULTS]
        flags = include(folder.parent, HOST / "cuda_runtime.h", [*flags, "-I", str(HOST)])
        command = ["g++", *flags, "-shared", "kernel.cpp", "-o", "kernel.so", "-ldl"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def call(self, calls: Calls, libraries: Path | None) -> Any:
        candidate = self._rendered.candidate
        wide = candidate.config.get("SCRATCH", True)
        given = {
            "candidate": str(self._program),
            "symbol": self._rendered.symbol,
            "templates": str(self._templates),
            "operator": candidate.operator,
            "dtype": candidate.dtypes["T"],
            "rounded": not wide,
            "libraries": [str(libraries / n) for n in ("libcublasLt.so.13", "libcuda.so.1")] if libraries else [],
            "calls": calls,
        }
        caller = _caller()
        assert caller.stdin is not None
        assert caller.stdout is not None
        print(json.dumps(given), file=caller.stdin, flush=True)
        answer = ""
        for line in caller.stdout:
            if re.fullmatch(r"-?\d+\n", line):
                break
            answer += line
        assert line == "0\n", answer
        return json.loads(answer)


@functools.cache
def _caller() -> subprocess.Popen[str]:
    """`composed_calls.py`, until this process ends."""
    environ = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    started = subprocess.Popen(
        [sys.executable, str(SHARED / "composed_calls.py")],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(started.communicate)
    return started
