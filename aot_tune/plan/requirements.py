"""What a build needs beside its static requirements: torch, Triton, nvcc, CUTLASS, XLA's headers, or nothing.


It depends on the targets, the kernels and the machine. Only the standard library is used, because the build backend
asks before anything else is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot_tune.plan.cutlass_use import uses_cutlass
from aot_tune.plan.pyproject_tables import define_text, table_of
from aot_tune.support.cuda_places import NVCC_WHEELS, SYSTEM_CUDA

__all__ = ["build_requirements", "chosen", "visible_gpus"]

_MEASURING, _REPLAYING = ("auto", "tune"), ("replay", "replay-or-generic")
_TORCH = "torch>=2.9"
_CUTLASS = "nvidia-cutlass>=4.2"
_XLA = "jaxlib>=0.6"
_TRITON = "triton>=3.6,<3.10"
_OLDEST_WHEELS = 13
"""The oldest CUDA whose nvcc wheels contain nvcc."""
_SECONDS = 20.0
_DEPTH = 4
_SKIPPED = ("build", "dist", "node_modules", "__pycache__")


def build_requirements(
    settings: Mapping[str, Any] | None,
    environ: Mapping[str, str],
    project: Path,
    *,
    editable: bool = False,
    system: Path = SYSTEM_CUDA,
) -> list[str]:
    """Requirements of a wheel of the project in a folder; empty for one without GPUs and without handlers of XLA.

    Args:
        settings: what the front end passes on (`-C`).
        editable: whether the install is editable. Such an install measures only under AOT_TUNE_MODE=tune.
        system: where the machine's CUDA toolkit is if no variable says it.
    """
    mode = chosen("AOT_TUNE_MODE", settings, environ, project) or "auto"
    text = chosen("AOT_TUNE_TARGETS", settings, environ, project) or "native"
    targets = [t.strip() for t in text.split(";") if t.strip()]
    cuda, hip = (any(t.partition("-")[0] == family for t in targets) for family in ("cuda", "hip"))
    driver, gpus = 0, 0
    if mode in _REPLAYING:
        cuda = cuda or ("native" in targets and _any_file(project, ".jsonl", b"cuda-sm_"))
        hip = hip or ("native" in targets and _any_file(project, ".jsonl", b"hip-gfx"))
    elif cuda or "native" in targets:
        driver, gpus = visible_gpus(environ)
        cuda = cuda or gpus > 0
    found = _nvcc_wheels(driver) if cuda and not _has_nvcc(environ, system) else []
    excluded = chosen("AOT_TUNE_EXCLUDE_BACKENDS", settings, environ, project).split(";")
    if cuda and not environ.get("CUTLASS_PATH") and "nvcc" not in excluded and uses_cutlass(project):
        found.append(_CUTLASS)
    if (cuda or hip) and _any_file(project, ".py", b"TritonFunction("):
        found.append(_TRITON)
    if chosen("AOT_TUNE_XLA_FFI", settings, environ, project) == "1":
        found.append(_XLA)
    if gpus and mode in (("tune",) if editable else _MEASURING):
        found.append(_TORCH)
    return found


def chosen(name: str, settings: Mapping[str, Any] | None, environ: Mapping[str, str], project: Path) -> str:
    """The value of a CMake variable as the build will see it; empty if it is not set.

    The first place counts, in scikit-build-core's order: arguments of CMake, definitions, and an environment variable
    of that name. Arguments and definitions come from the environment, then from the front end, definitions also from
    the project.
    """
    places = (
        _words(environ.get("CMAKE_ARGS", "")),
        _listed(environ.get("SKBUILD_CMAKE_ARGS")) or _listed(_setting("cmake.args", settings)),
        _listed(environ.get("SKBUILD_CMAKE_DEFINE")),
    )
    for word in (word for place in places for word in reversed(place)):
        key, equals, value = word.removeprefix("-D").partition("=")
        if equals and key.partition(":")[0].strip() == name and value:
            return value
    given = _setting(f"cmake.define.{name}", settings)
    if given:
        return define_text(given[-1] if isinstance(given, list) else given)
    defines = table_of(project, "tool", "scikit-build", "cmake", "define")
    return define_text(defines.get(name)) or environ.get(name, "")


def visible_gpus(environ: Mapping[str, str]) -> tuple[int, int]:
    """The newest CUDA that the driver supports (13000 for 13.0, 0 without a driver), and the number of visible GPUs."""
    probe = Path(__file__).resolve().parents[1] / "compile" / "ask_driver.py"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(probe)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        told = json.loads(done.stdout)
        return int(told["driver"]), len(told["devices"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return 0, 0


def _nvcc_wheels(driver: int) -> list[str]:
    """A complete compiler that is not newer than the driver, if there is a driver."""
    limit = f",<{driver // 1000}.{driver % 1000 // 10 + 1}" if driver // 1000 >= _OLDEST_WHEELS else ",<14"
    return [f"{name}>={_OLDEST_WHEELS}{limit}" for name in NVCC_WHEELS]


def _has_nvcc(environ: Mapping[str, str], system: Path) -> bool:
    """Whether the machine has an nvcc in a place where the toolchain looks. A wrong NVCC is reported later."""
    if environ.get("NVCC") or environ.get("CUDACXX"):
        return True
    homes = [str(Path(environ[n], "bin")) for n in ("CUDA_HOME", "CUDA_PATH") if environ.get(n)]
    places = [*homes, environ.get("PATH", os.defpath), str(system / "bin")]
    return any(shutil.which("nvcc", path=place) for place in places)


def _any_file(project: Path, ending: str, text: bytes) -> bool:
    """Whether a file of the project whose name has the given ending contains the text."""
    top = len(project.parts)
    for folder, folders, files in os.walk(project):
        deep = len(Path(folder).parts) - top >= _DEPTH
        folders[:] = [] if deep else [f for f in folders if not f.startswith(".") and f not in _SKIPPED]
        for file in files:
            if file.endswith(ending) and text in _contents(Path(folder, file)):
                return True
    return False


def _contents(path: Path) -> bytes:
    """A file's contents; empty if it cannot be read, such as an editor's lock, which is a dangling link."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""


def _setting(name: str, settings: Mapping[str, Any] | None) -> Any:
    """The value that a front end passes to scikit-build-core under a name."""
    return (settings or {}).get(name) or (settings or {}).get(f"skbuild.{name}")


def _listed(value: Any) -> list[str]:
    """A list of scikit-build-core. In text form, semicolons separate its items."""
    parts = value if isinstance(value, list) else str(value or "").split(";")
    return [str(part) for part in parts if part]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
