"""Flags of the project that a library is built in: what it is, is the same with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments import ROOT, environment, run
from project import Project


@pytest.fixture(scope="module")
def project(tuned_once: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = tuned_once.copied(tmp_path_factory.mktemp("flags") / "project")
    made.cmake(build="plain")
    made.make_all("plain")
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        (
            *("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-g3 -gdwarf-4 -fsanitize=address,undefined"),
            "-DCMAKE_INSTALL_RPATH=/opt/lib",
        ),
        ("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=ON", "-DCMAKE_CXX_STANDARD=20"),
        ("-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_CXX_FLAGS=-march=native -Werror -Wall -Wextra -Wpedantic -Wconversion"),
    ],
)
def test_a_library_is_the_same_under_a_projects_flags(
    project: Project, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    build = tmp_path / "build"
    project.cmake(*arguments, build=str(build))
    project.make_all(str(build))
    library = (build / "libtiny.so").read_bytes()
    assert manifest_of(build) == manifest_of(project.folder / "plain")
    if "-march=native" in arguments[-1]:  # glue runs on every CPU
        assert library == (project.folder / "plain" / "libtiny.so").read_bytes()


def test_flags_that_put_paths_into_a_library_are_told(project: Project, tmp_path: Path) -> None:
    project.cmake("-DCMAKE_CXX_FLAGS=--coverage", build=str(tmp_path))
    said = " ".join(project.make_all(str(tmp_path), status=1).split())
    assert "libtiny.so.1 holds the path" in said
    assert "without flags that keep paths, such as --coverage" in said


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
