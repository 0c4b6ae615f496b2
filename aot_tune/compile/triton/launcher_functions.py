"""The functions that launchers call. Each family of devices has one object, made when the first launcher is linked."""

from __future__ import annotations

import atexit
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from aot_tune.compile.diagnostics import first_error
from aot_tune.compile.programs import QUERY_SECONDS
from aot_tune.compile.triton.launcher_objects import LAUNCHER
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import compiler_environment, key_environment, run
from aot_tune.support.storage import scratch_folder

__all__ = ["FUNCTIONS", "functions_of"]

FUNCTIONS = {"cuda": LAUNCHER / "cuda.cpp", "hip": LAUNCHER / "hip.cpp"}
"""The source for each family. CMake links a library with the same source."""

_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-gnu-unique")
_lock = threading.Lock()
_made: dict[tuple[str, ...], Path] = {}
_folders: list[tempfile.TemporaryDirectory[str]] = []


def functions_of(objects: Sequence[Path], command: Sequence[str], environ: Mapping[str, str]) -> list[Path]:
    """What the launchers among `objects` must be linked with, compiled by `command`.

    Raises:
        ToolchainError: when the compiler fails.
    """
    held = [path.read_bytes() for path in objects]
    wanted = [f for f in FUNCTIONS if any(_namespace(f) in data for data in held)]
    with _lock:
        return [_object(family, list(command), environ) for family in wanted]


def _namespace(family: str) -> bytes:
    """The prefix of its functions' names in an object."""
    return f"_ZN8launcher{len(family)}{family}".encode()


def _object(family: str, command: list[str], environ: Mapping[str, str]) -> Path:
    key = (family, *command, str(key_environment(environ)))
    if key not in _made:
        if not _folders:
            _folders.append(scratch_folder())
            atexit.register(_folders[0].cleanup)
        folder = Path(_folders[0].name)
        out = folder / f"{len(_made)}_{family}.o"
        argv = [*command, *_FLAGS, "-I", str(LAUNCHER.parent / "include"), "-c", str(FUNCTIONS[family]), "-o", str(out)]
        done = run(argv, folder=folder, environ=compiler_environment(environ, folder), timeout=QUERY_SECONDS)
        if done.code != 0 or done.timed_out:
            raise ToolchainError(
                f"the functions of Triton launchers do not compile: {first_error(done.output)}", why=" ".join(argv)
            )
        _made[key] = out
    return _made[key]
