"""A tiny project for the tests of whole builds: one operator, y = 2 * x, that is tuned within seconds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from environments import ROOT, Compiler, environment, obeying_modes, own_processors, run

OPERATOR = """
from aot_tune.spec import Kernel, Operator, Parameter, Tensor, dims, parameter, problem, stride

(N,) = dims("N")
operator = Operator(
    name="twice",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)),
    reference=lambda xp, call: {"y": 2 * call.x},
    flops=N,
    workload=(problem(N=20000), problem(N=60000)),
    kernels=(
        Kernel("generic", "twice/generic.cpp.j2", generic=True),
        Kernel(
            "loop",
            "twice/loop.cpp.j2",
            parameters=(Parameter("TIMES", (1, 4, 16, 64, 256)), Parameter("UNROLL", (1, 4))),
            constraints=(parameter("UNROLL") == 1,),
            requires=(stride("x", 0) == 1, stride("y", 0) == 1),
        ),
    ),
)
"""

GENERIC = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
    {{ store("y", ["i"], "2 * " ~ load("x", ["i"])) }}
    asm volatile("" ::: "memory");
    asm volatile("nop\\nnop\\nnop\\nnop");
  }
  return 0;
}
"""

# TIMES repeats the work, so that there is never a doubt which config wins.
LOOP = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int t = 0; t < {{ TIMES }}; ++t) {
{{ unroll(UNROLL) }}
    for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
      {{ store("y", ["i"], "2 * " ~ load("x", ["i"])) }}
    }
    asm volatile("" ::: "memory");
  }
  return 0;
}
"""

LISTS = """
cmake_minimum_required(VERSION 3.25)
project(tiny LANGUAGES CXX)
include("{cmake}/aot_tune_add_library.cmake")
aot_tune_add_library(tiny TEMPLATES templates {arguments})
"""


@dataclass
class Project:
    """A project below `folder`; builds are below `folder/build` unless said otherwise."""

    folder: Path
    compiler: Compiler
    env: dict[str, str] = field(default_factory=dict)
    runs: Callable[..., str] = run
    """What runs the commands that CMake would, unless they are wrapped: `run`, or a fork that has imported aot_tune."""

    @classmethod
    def make(cls, folder: Path, *, arguments: str = "", **env: str) -> Project:
        """Write the project. Its cache is below its folder; `arguments` go to aot_tune_add_library."""
        templates = folder / "templates" / "twice"
        templates.mkdir(parents=True)
        (templates / "operator.py").write_text(OPERATOR)
        (templates / "generic.cpp.j2").write_text(GENERIC)
        (templates / "loop.cpp.j2").write_text(LOOP)
        (folder / "CMakeLists.txt").write_text(LISTS.format(cmake=ROOT / "cmake", arguments=arguments))
        return cls.at(folder, **env)

    @classmethod
    def at(cls, folder: Path, **env: str) -> Project:
        compiler = Compiler.make(folder / "compiler")
        settings = {"AOT_TUNE_CACHE_DIR": str(folder / "cache"), "AOT_TUNE_JOBS": "2", "AOT_TUNE_SURVEY": "0"}
        settings["PYTHONPATH"] = str(ROOT)
        return cls(folder, compiler, {**settings, "CXX": str(compiler.path), **env})

    def copied(self, folder: Path, *, arguments: str = "", **env: str) -> Project:
        """The project in another folder, with its builds, records, cache and store, and a compiler that has not run.

        `arguments` and `env` are as those of `make`.
        """
        shutil.copytree(self.folder, folder, symlinks=True)
        made = replace(self, folder=folder, compiler=Compiler.make(folder / "compiler"))
        made.env = {k: v.replace(str(self.folder), str(folder)) for k, v in self.env.items()}
        made.env |= env
        made.compiler.clear()
        (folder / "CMakeLists.txt").write_text(LISTS.format(cmake=ROOT / "cmake", arguments=arguments))
        return made

    @property
    def templates(self) -> Path:
        return self.folder / "templates"

    @property
    def operator(self) -> Path:
        return self.templates / "twice" / "operator.py"

    def change(self, old: str, new: str, path: str = "operator.py") -> None:
        """Replace text that must be there in a file of the operator."""
        file = self.templates / "twice" / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def add(self, name: str, *changes: tuple[str, str, str]) -> None:
        """Another operator like `twice`, with changes of old text to new in a file of its own."""
        folder = self.templates / name
        folder.mkdir()
        for file in (self.templates / "twice").iterdir():
            (folder / file.name).write_text(file.read_text().replace("twice", name))
        for old, new, path in changes:
            text = (folder / path).read_text()
            assert old in text
            (folder / path).write_text(text.replace(old, new))

    def environment(self, **given: str) -> dict[str, str]:
        return environment(**{**self.env, **given})

    # The two commands that CMake runs, without CMake.

    def configure(
        self, *arguments: object, build: str = "build", status: int | None = 0, wrap: bool = False, **given: str
    ) -> str:
        argv = self.command("configure", "--name", "tiny", "--prefix", "tiny", "--header", "tiny.h")
        argv += ["--directory", str(self.folder / build)]
        if "--templates" not in arguments:
            argv += ["--templates", str(self.templates)]
        argv += [str(a) for a in arguments]
        if wrap:
            return run(obeying_modes(argv), env=self.environment(**given), status=status)
        return self.runs(argv, env=self.environment(**given), status=status)

    def build(self, build: str = "build", *, status: int | None = 0, wrap: bool = False, **given: str) -> str:
        argv = self.command("build", "--directory", self.folder / build)
        if wrap:
            return run(obeying_modes(argv), env=self.environment(**given), status=status, timeout=300)
        return self.runs(argv, env=self.environment(**given), status=status, timeout=300)

    def record(self, folder: str = "tuning", **given: str) -> Path:
        """`aot-tune records export` of what was built last: the folder, below the project's."""
        self.ask("records", "export", self.folder / folder, "--library", "tiny", **given)
        return self.folder / folder

    def report(self, build: str = "build") -> str:
        return self.ask("report", "--build", self.folder / build)

    def ask(self, *arguments: object, status: int | None = 0, **given: str) -> str:
        return self.runs(self.command(*arguments), env=self.environment(**given), status=status, timeout=300)

    def start(self, build: str = "build", **given: str) -> subprocess.Popen[str]:
        """`aot-tune build`, not waited for, in a session of its own."""
        return start(self.command("build", "--directory", self.folder / build), env=self.environment(**given))

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-B", "-u", "-m", "aot_tune.cli.main", *map(str, arguments)]

    # Through CMake.

    def cmake(
        self, *arguments: object, build: str = "cmake", status: int | None = 0, cwd: Path | None = None, **given: str
    ) -> str:
        argv = ["cmake", "-G", "Ninja", "-S", self.folder, "-B", self.folder / build]
        argv += [f"-DPython_EXECUTABLE={sys.executable}", *arguments]
        return run(argv, env=self.environment(**given), status=status, cwd=cwd)

    def make_all(self, build: str = "cmake", *arguments: str, status: int | None = 0, **given: str) -> str:
        return run(["cmake", "--build", self.folder / build, *arguments], env=self.environment(**given), status=status)

    def manifest(self, build: str = "build") -> Any:
        return json.loads((self.folder / build / "manifest.json").read_bytes())

    def winners(self, build: str = "build") -> list[tuple[str, str]]:
        return [(v["name"], v["object"]) for o in self.manifest(build)["operators"] for v in o["variants"]]


def shadow_modules(folder: Path) -> None:
    """Modules of the standard library's names, and those that we import, each of which ends its process."""
    folder.mkdir()
    for name in (*sys.stdlib_module_names, "numpy", "msgspec", "jinja2", "filelock", "elftools", "aot_tune"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('this is not the module {name}')\n")


def start(argv: Sequence[object], env: Mapping[str, str]) -> subprocess.Popen[str]:
    with own_processors():
        return subprocess.Popen(
            [str(a) for a in argv],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def read_until(process: subprocess.Popen[str], *words: str) -> str:
    """Read a process's lines until one holds any of `words`."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if any(one in line for one in words):
            return text
    raise AssertionError(f"it ended with {process.wait()} without {words!r}:\n{text}")


def descendants(root: int) -> dict[int, str]:
    """Living processes below `root`, with their command lines."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                rest = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if rest[0] not in "ZX":
                parents[int(entry.name)] = int(rest[1])
    found: dict[int, str] = {}
    grown = True
    while grown:
        new = [p for p, parent in parents.items() if p not in found and (parent == root or parent in found)]
        grown = bool(new)
        for pid in new:
            try:
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                found[pid] = "?"
    return found


def wait_until_gone(before: Mapping[int, str], limit: float) -> float:
    """Wait until this process has no other descendants than `before`; seconds that it took.

    Raises:
        AssertionError: naming those that are left after `limit` seconds.
    """
    began = time.monotonic()
    while True:
        left = {p: c for p, c in descendants(os.getpid()).items() if p not in before}
        spent = time.monotonic() - began
        if not left:
            return spent
        assert spent < limit, f"left after {spent:.1f} s: {left}"
        time.sleep(0.02)
