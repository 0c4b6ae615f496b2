"""Odd environments, odd paths, read-only sources, no network: the library is the same, or the error is clear."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import make_read_only, obeying_modes, run, tree_digest
from processes import small_disk
from project import Project

pytestmark = pytest.mark.slow


@pytest.fixture
def anew(tuned: Project) -> Project:
    """The project whose candidates are compiled, with a problem that is to be measured."""
    tuned.change("N=60000", "N=60001")
    return tuned


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


def test_odd_environments_change_nothing(tuned: Project, tmp_path: Path) -> None:
    """Nothing is compiled or measured again, and the library is the same to the byte."""
    build = str(tmp_path / "build")
    told = tuned.configure(build=build, **ODD)
    assert "note: TMPDIR='/nowhere' is no folder that can be written to; temporary files go to " in told
    said = tuned.build(build, **ODD)
    assert " 0 measurements made" in said
    assert tuned.compiler.candidates() == 0
    assert (tmp_path / "build" / "variants.a").read_bytes() == (tuned.folder / "build" / "variants.a").read_bytes()
    assert not [p for p in tuned.folder.rglob("*") if p.name == "__pycache__"]


def test_a_home_that_cannot_be_written_to_is_a_warning(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project", AOT_TUNE_MODE="generic")
    project.env.pop("AOT_TUNE_CACHE_DIR")
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    project.configure(wrap=True, HOME=str(home), XDG_CACHE_HOME="")
    said = project.build(wrap=True, HOME=str(home), XDG_CACHE_HOME="")
    assert said.count("cache disabled") == 1
    assert str(home) in said
    assert project.manifest()["operators"]


def test_a_tuned_build_of_a_read_only_source_in_an_odd_path(tuned_once: Any, tmp_path: Path) -> None:
    """CMake, workers, caches and compilers see the path, in a locale that cannot write it.

    FAULTS 88: neither CMake's variables for run paths nor one for file names keep the module from its library.
    """
    folder = tmp_path / "π quote ' and (more)" / ("x" * 120) / ("y" * 120)
    folder.parent.mkdir(parents=True)
    project = tuned_once.copied(folder, arguments="MODULE ops", LC_ALL="C", CXX=shutil.which("g++") or "g++")
    project.change('"2 * " ~', '"2.0f * " ~', "loop.cpp.j2")
    project.change("(1, 4, 16, 64, 256)", "(1, 4)")
    aside = folder.with_name("aside")
    shutil.move(folder / "cache", aside / "cache")
    project.env["AOT_TUNE_CACHE_DIR"] = str(aside / "cache")
    make_read_only(folder)
    before = tree_digest(folder)
    build = aside / "build"
    argv = ["cmake", "-G", "Ninja", "-S", folder, "-B", build, f"-DPython_EXECUTABLE={sys.executable}"]
    argv += ["-DCMAKE_SKIP_RPATH=ON", "-DCMAKE_SKIP_INSTALL_RPATH=ON", "-DCMAKE_BUILD_TYPE=Release"]
    argv += ["-DCMAKE_RELEASE_POSTFIX=_release", "-DCMAKE_CXX_FLAGS_RELEASE="]  # compiled as elsewhere
    run(obeying_modes(argv), env=project.environment())
    assert "measurements made" in run(obeying_modes(["cmake", "--build", build]), env=project.environment())
    assert tree_digest(folder) == before
    code = "import numpy as np, ops; print(ops.twice(np.ones(2, 'f4')))"
    assert run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(build)}) == "[2. 2.]\n"


@pytest.mark.parametrize("name", ["a;b", "a$b"])
def test_what_cmake_cannot_write_down_is_an_error_that_says_so(tmp_path: Path, name: str) -> None:
    """In the source folder; with `;` in the build folder CMake itself stops before any of our code runs."""
    project = Project.make(tmp_path / name, CXX=shutil.which("g++") or "g++")
    said = " ".join(project.cmake(build="../build", status=1).split())
    assert f"'{project.folder}' holds '{name[1]}'" in said
    assert "fix: move the folder" in said


def test_no_network_one_core_and_few_descriptors(anew: Project) -> None:
    without = ["unshare", "-rn"]
    if subprocess.run([*without, "true"], check=False, capture_output=True).returncode != 0:
        without = []  # no network namespace can be made here
    limited = [*without, "prlimit", "--nofile=64:64", "taskset", "-c", str(min(os.sched_getaffinity(0)))]
    names = ["--name", "tiny", "--prefix", "tiny", "--header", "tiny.h", "--templates", anew.templates]
    folder = ["--directory", anew.folder / "build"]
    run([*limited, *anew.command("configure", *names, *folder)], env=anew.environment())
    said = run([*limited, *anew.command("build", *folder)], env=anew.environment())
    assert "measurements made" in said
    assert anew.manifest()["operators"]


def test_a_temporary_folder_from_which_nothing_is_loaded(anew: Project, tmp_path: Path) -> None:
    """One clear error, and nothing that a build with another folder would take for a fault of the candidates."""
    with small_disk(tmp_path / "noexec", "size=64m,mode=700,noexec") as folder:
        anew.configure(TMPDIR=str(folder))
        said = anew.build(status=1, TMPDIR=str(folder))
        assert f"nothing in '{folder}" in said
        assert "set TMPDIR to a folder on another file system" in said
        assert "no candidate survived" not in said
        anew.build()


def test_row_20_a_full_build_folder_is_named_and_the_next_build_heals_it(tuned: Project, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m,mode=700") as disk:
        build = str(disk / "build")
        tuned.configure(build=build)
        rest = disk / "rest"
        with rest.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        said = tuned.build(build, status=1)
        assert f"aot-tune: cannot write {build}/" in said
        assert "No space left on device\n  fix: free disk space" in said
        rest.unlink()
        tuned.build(build)
        assert (disk / "build" / "variants.a").read_bytes() == (tuned.folder / "build" / "variants.a").read_bytes()
