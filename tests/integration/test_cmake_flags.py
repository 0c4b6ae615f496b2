"""Flags of the project that a library is built in: what it is, is the same with all of them."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from environments import ROOT, environment, run
from project import Project, shadow_modules

from aot_tune.link.elf import SharedLibrary


@pytest.fixture(scope="module")
def project(tuned_once: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = tuned_once.copied(tmp_path_factory.mktemp("flags") / "project")
    made.cmake(build="plain")
    made.make_all("plain")
    return made


FOLDERS = f"""
cmake_minimum_required(VERSION 3.25)
project(tiny LANGUAGES CXX)
file(WRITE one/CMakeLists.txt [=[include("{ROOT}/cmake/aot_tune_add_library.cmake")]=])
file(WRITE two/CMakeLists.txt [=[aot_tune_add_library(tiny TEMPLATES ../templates)]=])
add_subdirectory(one)
add_subdirectory(two)
"""


def test_a_debug_build_in_folders_beside_each_other(project: Project, tmp_path: Path) -> None:
    """FAULTS 86, 87 and 89. Debugging information has the folder that a compiler runs in, which Ninja does not change.

    No flag has the library set the floating-point unit of who loads it. Distributions have `-flto` with `-g`, conda and
    Spack run paths. In the folder that a build runs in, every module of Python's library is another.
    """
    made = project.copied(tmp_path / "project")
    (made.folder / "CMakeLists.txt").write_text(FOLDERS)
    shadow_modules(made.folder / "cmake")
    flags = "-ffast-math -funsafe-math-optimizations -Ofast -flto=auto -ffat-lto-objects"
    given = {"CXXFLAGS": f"-g3 -gdwarf-4 -frecord-gcc-switches {flags} -D_GLIBCXX_DEBUG"}
    given |= {"LDFLAGS": f"{flags} -Wl,-rpath,/opt/x", "PYTHONPATH": f":{made.env['PYTHONPATH']}"}
    arguments = ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_CXX_STANDARD=20", "-DCMAKE_BUILD_TYPE=Debug"]
    arguments += ["-DCMAKE_DEBUG_POSTFIX=_debug", "-DCMAKE_INSTALL_RPATH=/opt/lib"]
    arguments += ["-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=ON", "-DCMAKE_POLICY_DEFAULT_CMP0069=NEW"]
    made.cmake(*arguments, cwd=made.folder / "cmake", **given)
    made.make_all(**given)
    built = made.folder / "cmake" / "two"
    assert manifest_of(built) == manifest_of(project.folder / "plain")
    code = (
        "import ctypes, sys; least = 5e-324; before = least * 1.0 != 0; ctypes.CDLL(sys.argv[1]);"
        "print(before, least * 1.0 != 0)"
    )
    library = built / "libtiny_debug.so"
    assert run([sys.executable, "-c", code, library]).split() == ["True", "True"]
    assert str(made.folder).encode() not in library.read_bytes()
    assert SharedLibrary(library.read_bytes()).dynamic("DT_RUNPATH") == ["$ORIGIN:$ORIGIN/lib:/opt/x"]


def test_what_flags_would_do_to_a_library_is_told_at_configure(project: Project) -> None:
    """FAULTS 86. Nothing is compiled for nothing."""
    for flags, words in (
        (
            ["-DCMAKE_CXX_FLAGS=--coverage"],
            ["a library holds the path", "--coverage and -fprofile-generate keep paths"],
        ),
        (
            ["-DCMAKE_CXX_FLAGS=", "-DCMAKE_SHARED_LINKER_FLAGS=-lnowhere"],
            ["no shared library", "cannot find -lnowhere"],
        ),
        (["-DCMAKE_SHARED_LINKER_FLAGS=-static"], ["no exception is caught in a library", "remove -static from"]),
    ):
        said = " ".join(project.cmake(*flags, build="tried", status=1).split())
        assert all(word in said for word in [*words, "fix: ", "LDFLAGS"]), said


def test_a_library_runs_on_every_cpu_whatever_a_projects_flags(project: Project, tmp_path: Path) -> None:
    build = tmp_path / "build"
    flags = "-DCMAKE_CXX_FLAGS=-march=native -Werror -Wall -Wextra -Wpedantic -Wconversion"
    project.cmake("-DBUILD_SHARED_LIBS=OFF", flags, build=str(build))
    project.make_all(str(build))
    assert (build / "libtiny.so").read_bytes() == (project.folder / "plain" / "libtiny.so").read_bytes()


CLANG = shutil.which(os.environ.get("AOT_TUNE_TEST_CLANG", "clang++-19"))
CALLS = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, ops
x = np.arange(60000, dtype="f4")
assert (ops.twice(x) == 2 * x).all() and (ops.twice(x[::-3]) == 2 * x[::-3]).all()
y = np.zeros_like(x)
assert ops.twice(x, y=y) is y and (y == 2 * x).all()
try:
    ops.twice(x.astype("f8"))
except ops.Error as error:
    print(ops.explain("twice", N=60000)["variant"], error)
"""


@pytest.mark.skipif(CLANG is None, reason="no clang++-19: install Debian's clang-19, lld-19 and libomp-19-dev")
def test_a_library_is_compiled_by_clang_and_linked_by_lld(tmp_path: Path) -> None:
    """It is tuned, verified inside the library, and called."""
    made = Project.make(tmp_path / "project", arguments="MODULE ops", CXX=str(CLANG), LDFLAGS="-fuse-ld=lld")
    made.cmake()
    said = made.make_all()
    assert re.search(r"\d measurements made", said)
    assert re.search(r"libtiny\.so\.1: \d variants verified inside the library", said)
    folder = made.folder / "cmake"
    assert run([sys.executable, "-c", CALLS, folder], env=made.environment()).startswith("loop_")
    whole = (folder / "libtiny.so.1").read_bytes()
    assert b"clang version" in whole
    assert b"LLD" in whole


LISTS = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES NONE)
foreach(time 1 2)
  find_package(aot_tune QUIET)
  message(STATUS "found ${aot_tune_FOUND}, ${aot_tune_NOT_FOUND_MESSAGE}")
endforeach()
"""


def test_a_package_without_its_library_is_never_found(tmp_path: Path) -> None:
    text = (ROOT / "cmake" / "aot_tuneConfig.cmake.in").read_text()
    text = text.replace("@PROJECT_VERSION@", "1.0").replace("@editable_sources@", "")
    package = tmp_path / "prefix" / "share" / "cmake" / "aot_tune"
    package.mkdir(parents=True)
    (package / "aot_tuneConfig.cmake").write_text(text)
    (package / "aot_tune_add_library.cmake").write_text("")
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    said = run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Daot_tune_DIR={package}"], env=environment())
    assert said.count("found 0, libaot_tune_ops.so is not below") == 2, said


def manifest_of(build: Path) -> bytes:
    return (build / "aot_tune" / "tiny" / "manifest.json").read_bytes()
