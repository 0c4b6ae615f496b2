"""The build's side of the processes that hold Triton: their environment, and reading functions in one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import compiler_environment, python_environment, run
from aot_tune.support.storage import scratch_folder
from aot_tune.triton.installed import find_triton
from aot_tune.triton.triton_messages import Answer, InspectRequest

__all__ = ["ADDRESS_SPACE", "ROOTS", "child_environment", "inspect", "template_roots"]

ROOTS = "AOT_TUNE_TEMPLATE_ROOTS"
"""The variable with the folders that may hold files of functions, separated as in PATH."""
ADDRESS_SPACE = 24 << 30
"""Bytes of address space of a process. Triton's and torch's libraries reserve most of it, but use little."""


def template_roots(environ: Mapping[str, str]) -> list[str]:
    """The folders that `ROOTS` names."""
    return [folder for folder in environ.get(ROOTS, "").split(os.pathsep) if folder]


def child_environment(environ: Mapping[str, str], search: Sequence[str], scratch: Path) -> dict[str, str]:
    """The complete environment of a process that holds Triton.

    The process imports from `search` and writes only inside of `scratch`. It sees no GPU: questions about a device are
    answered for the target. It gets no variable that changes what Triton makes.
    """
    child = compiler_environment(environ, scratch) | python_environment(search)
    child |= dict.fromkeys(("HOME", "TRITON_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"), str(scratch))
    child |= dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
    return child | {"OMP_NUM_THREADS": "1"}


def inspect(
    request: InspectRequest, environ: Mapping[str, str], timeout: float = 300.0, search: Sequence[str] | None = None
) -> list[Answer]:
    """Read functions in a separate process. If something is wrong with one, its answer says so.

    Args:
        timeout: seconds for all of them together.
        search: folders to import from; the default is this process's.

    Raises:
        ToolchainError: when Triton is missing or untested, or when the process died.
    """
    folders = list(sys.path) if search is None else list(search)
    find_triton(folders)
    with scratch_folder() as name:
        scratch = Path(name)
        asked, answered = scratch / "request.json", scratch / "answer.json"
        asked.write_bytes(msgspec.json.encode(request))
        argv = [sys.executable, "-m", "aot_tune.triton.declarations_worker", str(asked), str(answered)]
        child = child_environment(environ, folders, scratch)
        done = run(argv, folder=scratch, environ=child, timeout=timeout, memory=ADDRESS_SPACE)
        if done.timed_out or done.code != 0 or not answered.is_file():
            ended = f"took longer than {timeout:g} s" if done.timed_out else f"ended with status {done.code}"
            last = " | ".join(done.output.strip().splitlines()[-3:])
            raise ToolchainError(
                f"reading Triton functions for {request.target} {ended}: {last[-500:]}",
                why=f"functions {', '.join(f.function for f in request.functions)}",
                fix="try to import only their modules with Python, without a GPU",
            )
        return msgspec.json.decode(answered.read_bytes(), type=list[Answer])
