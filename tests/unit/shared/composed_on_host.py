"""Composed kernels compiled for the host, to be called beside a stand-in for the vendor's library."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from cublaslt_stand_in import stand_ins
from precompiled import include
from rows_on_host import HOST
from served import served

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
            "libraries": stand_ins(libraries),
            "calls": calls,
        }
        return served("composed_calls.py")(given)
