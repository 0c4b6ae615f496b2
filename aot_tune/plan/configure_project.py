"""Plans a project's libraries by running CMake in a separate folder, for commands other than a build."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from aot_tune.plan.requirements import define_text, table_of
from aot_tune.support.errors import BuildError, ToolchainError
from aot_tune.support.installed_paths import cmake_dir

_LISTS, _CACHE = "CMakeLists.txt", "CMakeCache.txt"
_OURS, _MOST_LINES = "aot-tune: ", 60
"""How our errors begin in CMake's output, and how many of its lines are shown if it fails."""
_WORK = {"--build": "build what is linked in", "--install": "install"}


def source_folder(given: Path) -> Path:
    """The folder with a project's CMakeLists.txt; `given` is one of both. Raises BuildError when there is none."""
    folder = given.parent if given.name == _LISTS else given
    if not folder.is_dir():
        raise BuildError(f"{str(given)!r} is not a folder", fix="name the folder of a project, with its CMakeLists.txt")
    source = folder / define_text(table_of(folder, "tool", "scikit-build", "cmake").get("source-dir"))
    if (source / _LISTS).is_file():
        return source.resolve()
    home = _home_of(folder / _CACHE)
    above = next((f for f in folder.resolve().parents if (f / _LISTS).is_file()), None)
    better = home or (str(above) if above is not None else "")
    raise BuildError(
        f"{str(given)!r} is not a project",
        why=f"it is a build folder of {home}" if home else f"there is no {_LISTS} in it",
        fix=f"name the folder of the project{f', such as {shlex.quote(better)}' if better else ''}; its {_LISTS} calls "
        "aot_tune_add_library",
    )


def _home_of(cache: Path) -> str:
    """The project folder that a build folder belongs to; empty if it is not a build folder."""
    try:
        lines = cache.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2] for line in lines if line.startswith("CMAKE_HOME_DIRECTORY:")), "")


def configure_project(
    source: Path, project: Path, build: Path, options: Mapping[str, str], defines: Sequence[str] = ()
) -> list[Path]:
    """Configure a project in the folder `build`, as a build would. Returns the folders of its libraries' plans.


    If kernels are linked with libraries that the project makes itself, these are built.

    Args:
        source: the folder of its CMakeLists.txt.
        project: the folder of its pyproject.toml. The definitions there count, as in a build by pip.
        options: options of aot_tune, by name. An empty one is left to the project and the environment.
        defines: definitions for the project, `NAME=VALUE`.

    Raises:
        ToolchainError: when there is no CMake.
        BuildError: when CMake fails, or the project has no library.
    """
    output = _run([_cmake(), "-S", str(source), "-B", str(build), *_arguments(project, options, defines)], source)
    plans = sorted(p.parent for p in build.rglob("plan.json") if p.parent.parent.name == "aot_tune")
    if not plans:
        raise BuildError(
            f"{str(source)!r} has no library",
            why="its CMakeLists.txt calls no aot_tune_add_library" + (f"\n       {output[-1]}" if output else ""),
            fix="call it, or pass the -D NAME=VALUE that makes the project call it",
        )
    for file in (plan / "target-Release.txt" for plan in plans):
        if file.is_file():  # the generator of CMAKE_GENERATOR has several configurations
            shutil.copy(file, file.with_name("target.txt"))
    targets = sorted({target for plan in plans for target in _own_libraries(plan / "target.txt")})
    if targets:
        _run([*build_command(build), "--target", *targets], source)
    return plans


def build_command(build: Path) -> list[str]:
    """The command that builds what was configured in a folder."""
    return [_cmake(), "--build", str(build), "--config", "Release"]


def install_project(build: Path, folder: Path, source: Path) -> None:
    """Install what was built, below a folder, wherever the project would put it. Raises BuildError when CMake fails."""
    _run([_cmake(), "-E", "env", f"DESTDIR={folder}", _cmake(), "--install", str(build), "--prefix", "/"], source)


def _cmake() -> str:
    beside = str(Path(sys.executable).parent)
    program = shutil.which("cmake") or shutil.which("cmake", path=beside)
    if program is None:
        raise ToolchainError(
            "there is no CMake", why="CMake tells which libraries a project has", fix="pip install cmake ninja"
        )
    return program


def _arguments(project: Path, options: Mapping[str, str], defines: Sequence[str]) -> list[str]:
    """CMake's arguments: what pip would pass, then what was asked for here."""
    table = table_of(project, "project")
    own = {
        "CMAKE_BUILD_TYPE": "Release",
        "Python_EXECUTABLE": sys.executable,
        **{f"SKBUILD_PROJECT_{k.upper()}": str(table[k]) for k in ("name", "version") if k in table},
        **{k: define_text(v) for k, v in table_of(project, "tool", "scikit-build", "cmake", "define").items()},
    }
    with contextlib.suppress(BuildError):  # in a source tree, CMake must be told where the function is
        own["aot_tune_DIR"] = str(cmake_dir())
    ninja = shutil.which("ninja") is not None and not os.environ.get("CMAKE_GENERATOR")
    return [
        *(["-G", "Ninja"] if ninja else []),
        *(f"-D{name}={value}" for name, value in own.items()),
        *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        *(f"-D{define}" for define in defines),
        *(f"-D{name}={value}" for name, value in options.items() if value),
    ]


def _own_libraries(file: Path) -> list[str]:
    """Targets of the project that a library's kernels are linked with, as CMake wrote them down."""
    try:
        rows = os.fsdecode(file.read_bytes()).splitlines()
    except OSError:
        return []
    return [t for row in rows if row.startswith("targets=") for t in row.removeprefix("targets=").split(";") if t]


def _run(command: Sequence[str], source: Path) -> list[str]:
    """Run CMake. Returns the lines of its output."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        return lines
    errors = _errors(lines)
    if errors[:1] and errors[0].startswith(_OURS):
        raise BuildError("\n  ".join(errors).removeprefix(_OURS))
    raise BuildError(
        f"CMake cannot {next((what for word, what in _WORK.items() if word in command), 'configure')} {str(source)!r}",
        why="\n       ".join(errors),
        fix="correct what CMake reports; -D NAME=VALUE passes a definition to the project",
    )


def _errors(lines: Sequence[str]) -> list[str]:
    """The first error that CMake reported, ours without what CMake puts around it; else the last lines."""
    first = next((i for i, line in enumerate(lines) if line.startswith("CMake Error")), None)
    if first is None:
        return list(lines[-_MOST_LINES:])
    message = itertools.takewhile(lambda line: not line.startswith(("Call Stack", "-- ")), lines[first:])
    told = [line.strip() for line in message if line.strip()]
    ours = next((i for i, line in enumerate(told) if line.startswith(_OURS)), 0)
    return told[ours : ours + _MOST_LINES]
