"""Finds nvcc and what belongs to it: the machine's toolkit, or else the wheels of the `nvidia-cuda-nvcc` family."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from aot_tune.compile.programs import Compiler, ask, named_command, program_state
from aot_tune.support.cuda_tools import NVCC_WHEELS, SYSTEM_CUDA
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import compiler_environment

_TOLD = re.compile(r"^#\$ (\w+)=(.*)$", re.MULTILINE)
_RELEASE = re.compile(r"\bV(\d+\.\d+\.\d+)")
_INSTALL = (
    "install the CUDA toolkit, or set NVCC or CUDA_HOME to where it is, "
    f"or `pip install {' '.join(NVCC_WHEELS)}`, or leave the cuda targets out of AOT_TUNE_TARGETS"
)


_WORKING = "set NVCC to a working nvcc, 11.8 or later"
_RUNTIME = "install the CUDA runtime of this version, or `pip install nvidia-cuda-runtime` beside nvidia-cuda-nvcc"


class Toolkit(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA compiler with its files.

    Args:
        command: nvcc and the arguments that always come before ours.
        version: such as 13.0.88.
        known: architectures that it compiles for, such as sm_90. The special ones (sm_90a) are not listed.
        programs: the files of its parts, by name.
        include: folder of cuda_runtime.h.
        libraries: folders that may hold the CUDA runtime.
    """

    command: tuple[str, ...]
    version: str
    known: frozenset[str]
    programs: dict[str, str]
    include: str
    libraries: tuple[str, ...]

    def static_runtime(self) -> Path:
        """libcudart_static.a. Raises ToolchainError when it is not there."""
        return self._library("libcudart_static.a")

    def shared_runtime(self) -> Path:
        """libcudart.so. Wheels only have it under its versioned name. Raises ToolchainError when it is not there."""
        return self._library("libcudart.so", f"libcudart.so.{self.version.partition('.')[0]}")

    def _library(self, *names: str) -> Path:
        for folder in self.libraries:
            for name in names:
                path = Path(folder, name)
                if path.is_file():
                    return path
        raise ToolchainError(
            f"nvcc {self.version} has no {names[-1]}",
            why=f"looked in {', '.join(self.libraries) or 'no folder'}",
            fix=_RUNTIME,
        )


class FoundNvcc(NamedTuple):
    """An nvcc, the arguments that a variable adds to it, and why it was chosen."""

    command: tuple[str, ...]
    reason: str


def find_nvcc(environ: Mapping[str, str], system: Path = SYSTEM_CUDA, search: Sequence[str] | None = None) -> FoundNvcc:
    """The program, and the arguments that NVCC or CUDACXX adds.

    The order is NVCC, CUDACXX, CUDA_HOME, CUDA_PATH, PATH, `system`, and the wheels below the folders of `search` (by
    default, those that Python imports from).

    Raises:
        ToolchainError: when there is none, or a variable names something else.
    """
    path = environ.get("PATH", os.defpath)
    for name in ("NVCC", "CUDACXX"):
        named = environ.get(name, "")
        if named:
            command = named_command(named, path)
            if command is None:
                raise ToolchainError(
                    f"{name}={named!r} is not a program", fix=f"set {name} to nvcc, or unset it to have it found"
                )
            return FoundNvcc(tuple(command), f"{name} names it")
    for searched, reason in _places(environ, system, search):
        program = shutil.which("nvcc", path=searched)
        if program is not None:
            return FoundNvcc((str(Path(program).absolute()),), reason)
    raise ToolchainError(
        "no CUDA compiler found: NVCC, CUDACXX, CUDA_HOME, CUDA_PATH and PATH lead to no nvcc, and there is no wheel",
        why="CUDA candidates are compiled when the library is built",
        fix=_INSTALL,
    )


def find_compute_sanitizer(environ: Mapping[str, str]) -> str | None:
    """The program, beside nvcc or where nvcc is looked for. None without one."""
    places = [place for place, _ in _places(environ, SYSTEM_CUDA, None)]
    with contextlib.suppress(ToolchainError):
        places.insert(0, str(Path(find_nvcc(environ).command[0]).resolve().parent))
    return next(filter(None, (shutil.which("compute-sanitizer", path=place) for place in places)), None)


def _places(environ: Mapping[str, str], system: Path, search: Sequence[str] | None) -> list[tuple[str, str]]:
    """Search paths of CUDA's programs, each with why it would be chosen."""
    homes = {n: Path(environ[n], "bin") for n in ("CUDA_HOME", "CUDA_PATH") if environ.get(n)}
    wheels = [p for folder in (sys.path if search is None else search) for p in _wheel_folders(folder)]
    return [
        *((str(home), f"the toolkit that {name} names") for name, home in homes.items()),
        (environ.get("PATH", os.defpath), "the first on PATH"),
        (str(system / "bin"), "the machine's toolkit; no variable names one, and none is on PATH"),
        *(
            (str(w), "the wheel nvidia-cuda-nvcc; the machine has no toolkit, and no variable names one")
            for w in wheels
        ),
    ]


def open_toolkit(command: tuple[str, ...], host: str, environ: Mapping[str, str]) -> Toolkit:
    """Ask an nvcc with a host compiler where its files are. Raises ToolchainError if it does not say so."""
    child = compiler_environment(environ, Path("/nowhere"))
    del child["TMPDIR"]
    return _open(Compiler(command, tuple(sorted(child.items())), program_state(Path(command[0]))), host)


def find_cutlass(environ: Mapping[str, str], search: Sequence[str] | None = None) -> Path | None:
    """The include folder of CUTLASS; None without one. Raises ToolchainError if CUTLASS_PATH names another folder."""
    named = environ.get("CUTLASS_PATH", "")
    folders = [Path(named), Path(named, "include")] if named else []
    if not named:
        imports = sys.path if search is None else search
        folders = [Path(root, "cutlass_library", "source", "include") for root in imports]
    for folder in folders:
        if Path(folder, "cutlass", "version.h").is_file():
            return folder.resolve()
    if named:
        raise ToolchainError(
            f"CUTLASS_PATH={named!r} holds no CUTLASS",
            why="neither it nor its folder `include` has cutlass/version.h",
            fix="set it to a checkout of CUTLASS, or unset it and `pip install nvidia-cutlass`",
        )
    return None


def _wheel_folders(folder: str) -> list[Path]:
    """Program folders of the wheels below an import folder, such as nvidia/cu13/bin. The newest comes first."""
    folders = Path(folder or ".", "nvidia").glob("cu[0-9]*/bin")
    return sorted(folders, key=lambda p: (len(p.parent.name), p.parent.name), reverse=True)


@cache
def _open(nvcc: Compiler, host: str) -> Toolkit:
    command = nvcc.command
    release = _RELEASE.search(ask(nvcc, "--version", fix=_WORKING))
    # A dry run tells the folders, even if nvcc on PATH is a script that starts the real one.
    question = ("--dryrun", f"-ccbin={host}", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null")
    macros = dict(_TOLD.findall(ask(nvcc, *question, fix=_WORKING)))
    if release is None or not macros.get("_HERE_") or not macros.get("CICC_PATH"):
        raise ToolchainError(
            f"{command[0]} does not answer as nvcc does", fix="set NVCC to NVIDIA's nvcc, 11.8 or later"
        )
    here = Path(macros["_HERE_"])
    parts = {name: here / name for name in ("nvcc", "cudafe++", "ptxas", "fatbinary")}
    parts["cicc"] = Path(macros["CICC_PATH"], "cicc")
    parts["libdevice"] = Path(macros.get("NVVMIR_LIBRARY_DIR", ""), "libdevice.10.bc")
    missing = [name for name, path in parts.items() if not path.is_file()]
    if missing:
        raise ToolchainError(
            f"the CUDA compiler {command[0]} is not complete: it has no {', '.join(missing)}", fix=_INSTALL
        )
    include = next((w[2:] for w in shlex.split(macros.get("INCLUDES", "")) if w.startswith("-I")), "")
    if not Path(include, "cuda_runtime.h").is_file():
        raise ToolchainError(
            f"the CUDA compiler {command[0]} has no cuda_runtime.h",
            why=f"looked in {include or 'no folder'}",
            fix=_RUNTIME,
        )
    libraries = [w[2:] for w in shlex.split(macros.get("LIBRARIES", "")) if w.startswith("-L")]
    libraries.append(str(here.parent / "lib"))  # the wheels of 13.0 have them here, but their nvcc names lib64
    return Toolkit(
        command=command,
        version=release[1],
        known=frozenset(re.findall(r"\bsm_\d+\b", ask(nvcc, "--list-gpu-code", fix=_WORKING))),
        programs={name: os.path.realpath(path) for name, path in parts.items()},
        include=os.path.realpath(include),
        libraries=tuple(os.path.realpath(folder) for folder in libraries if not folder.endswith("/stubs")),
    )
