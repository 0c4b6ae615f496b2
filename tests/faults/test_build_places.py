"""Odd environments, odd paths, read-only sources, no network: the library is the same, or the error is clear."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ROOT, make_read_only, obeying_modes, run, tree_digest
from project import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that has been built in an ordinary environment."""
    project = Project.make(tmp_path_factory.mktemp("plain") / "project")
    project.configure()
    project.build()
    return project


ODD = {
    "LD_PRELOAD": "/nowhere/evil.so",
    "CUDA_VISIBLE_DEVICES": "",
    "TMPDIR": "/nowhere",
    "LC_ALL": "C",
    "LANG": "de_DE.UTF-8",
    "NVCC_APPEND_FLAGS": "--nonsense",
    "CXXFLAGS": "-O0 -DNDEBUG",
    "LDFLAGS": "-lnowhere",
    "GCC_COLORS": "error=01;31",
    "OMP_NUM_THREADS": "1",
    "OMP_PROC_BIND": "nonsense",
    "PYTHONHASHSEED": "7",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "20",
}


def test_odd_environments_change_nothing(plain: Project, tmp_path: Path) -> None:
    """Nothing is compiled or measured again, and the library is the same to the byte."""
    plain.compiler.clear()
    build = str(tmp_path / "build")
    plain.configure(build=build, **ODD)
    said = plain.build(build, **ODD)
    assert " 0 measurements made" in said
    assert plain.compiler.candidates() == 0
    assert (tmp_path / "build" / "variants.a").read_bytes() == (plain.folder / "build" / "variants.a").read_bytes()


def test_without_a_home_there_is_no_cache_and_it_is_said(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project")
    project.env.pop("AOT_TUNE_CACHE_DIR")
    env = {k: v for k, v in project.environment().items() if k not in ("HOME", "XDG_CACHE_HOME")}
    project.configure()
    directory = project.folder / "build"
    said = run(project.command("build", "--directory", directory), env=env)
    assert "cache disabled: neither AOT_TUNE_CACHE_DIR, XDG_CACHE_HOME nor HOME is set" in said
    assert project.manifest()["operators"]


def test_a_home_that_cannot_be_written_to_is_a_warning(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project")
    project.env.pop("AOT_TUNE_CACHE_DIR")
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    project.configure(wrap=True, HOME=str(home), XDG_CACHE_HOME="")
    said = project.build(wrap=True, HOME=str(home), XDG_CACHE_HOME="")
    assert said.count("cache disabled") == 1
    assert str(home) in said
    assert project.manifest()["operators"]


@pytest.mark.parametrize(
    ("locale", "name"),
    [
        ("C", "π"),
        ("C", "quote ' and (more)/" + "x" * 120 + "/" + "y" * 120),  # of what is ASCII the locale changes nothing
    ],
)
def test_paths(tmp_path: Path, locale: str, name: str) -> None:
    project = Project.make(tmp_path / name, arguments="MODULE ops", AOT_TUNE_MODE="generic")
    project.cmake(LC_ALL=locale)
    project.make_all(LC_ALL=locale)
    assert (project.folder / "cmake" / "libtiny.so").is_file()
    code = "import numpy as np, ops; print(ops.twice(np.ones(2, 'f4')))"
    assert (
        run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(project.folder / "cmake")})
        == "[2. 2.]\n"
    )


def test_a_tuned_build_in_an_odd_path(tmp_path: Path) -> None:
    """Workers, caches and compilers see the path too."""
    project = Project.make(tmp_path / "sp ace π 'x")
    project.cmake()
    assert "measurements made" in project.make_all()


@pytest.mark.parametrize("name", ["a;b", "a$b"])
def test_what_cmake_cannot_write_down_is_an_error_that_says_so(tmp_path: Path, name: str) -> None:
    """In the source folder; with `;` in the build folder CMake itself stops before any of our code runs."""
    project = Project.make(tmp_path / name, CXX=shutil.which("g++") or "g++")
    said = " ".join(project.cmake(build="../build", status=1).split())
    assert f"'{project.folder}' holds '{name[1]}'" in said
    assert "fix: move the folder" in said


def test_a_read_only_source_tree(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project", AOT_TUNE_CACHE_DIR=str(tmp_path / "cache"))
    shutil.move(project.folder / "compiler", tmp_path / "compiler")
    project.env["CXX"] = shutil.which("g++") or "g++"
    make_read_only(project.folder)
    before = tree_digest(project.folder)
    build = tmp_path / "build"
    argv = ["cmake", "-G", "Ninja", "-S", project.folder, "-B", build, f"-DPython_EXECUTABLE={sys.executable}"]
    run(obeying_modes(argv), env=project.environment())
    run(obeying_modes(["cmake", "--build", build]), env=project.environment())
    assert (build / "libtiny.so").is_file()
    assert tree_digest(project.folder) == before


def test_nothing_is_written_to_the_project_itself(plain: Project) -> None:
    assert not [p for p in plain.folder.rglob("*") if p.name in ("__pycache__", "tuning")]
    ignored = subprocess.run(
        ["git", "status", "--porcelain", "--ignored", "aot_tune", "templates"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ".so" not in ignored.stdout


def test_no_network(plain: Project, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no network namespace can be made here")
    build = tmp_path / "build"
    argv = ["unshare", "-rn", *plain.command("build", "--directory", build)]
    plain.configure(build=str(build), AOT_TUNE_CACHE_DIR=str(tmp_path / "cache"))
    said = run(argv, env=plain.environment(AOT_TUNE_CACHE_DIR=str(tmp_path / "cache")))
    assert "measurements made" in said
    assert plain.winners(str(build)) == plain.winners()


def test_one_core_and_few_descriptors(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project")
    limited = ["prlimit", "--nofile=64:64", "taskset", "-c", str(min(os.sched_getaffinity(0)))]
    names = ["--name", "tiny", "--prefix", "tiny", "--header", "tiny.h", "--templates", project.templates]
    folder = ["--directory", project.folder / "build"]
    run([*limited, *project.command("configure", *names, *folder)], env=project.environment())
    said = run([*limited, *project.command("build", *folder)], env=project.environment())
    assert "measurements made" in said
    assert project.manifest()["operators"]


def test_a_temporary_folder_from_which_nothing_is_loaded(tmp_path: Path) -> None:
    """One clear error, and nothing that a build with another folder would take for a fault of the candidates."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700,noexec", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        project = Project.make(tmp_path / "project", AOT_TUNE_TARGETS="cpu-x86-64")
        project.configure(TMPDIR=str(folder))
        said = project.build(status=1, TMPDIR=str(folder))
        assert f"nothing in '{folder}" in said
        assert "set TMPDIR to a folder on another file system" in said
        assert "no candidate survived" not in said
        project.build()
    finally:
        subprocess.run(["umount", str(folder)], check=True)
