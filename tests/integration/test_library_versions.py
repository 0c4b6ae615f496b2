"""The version in a library's name: by default, where a project sets its own, and in a wheel, which holds no links."""

import shutil
from pathlib import Path

import pytest
from environments import ROOT, environment, run
from project import Project

from aot_tune.link.elf import SharedLibrary

LISTS = """
cmake_minimum_required(VERSION 3.25)
project(tiny VERSION 7.8 LANGUAGES C CXX)
include("{cmake}/aot_tune_add_library.cmake")
add_subdirectory(kernels)
{properties}
target_include_directories(tiny INTERFACE $<INSTALL_INTERFACE:include>)
install(TARGETS tiny EXPORT tiny DESTINATION lib)
install(EXPORT tiny NAMESPACE tiny:: FILE tinyConfig.cmake DESTINATION lib/cmake/tiny)
set(built "${{CMAKE_CURRENT_BINARY_DIR}}/kernels/aot_tune/tiny")
install(FILES "${{built}}/tiny.h" DESTINATION include)
install(DIRECTORY "${{AOT_TUNE_PACKAGE_DIR}}/runtime/include/" DESTINATION include)
install(FILES "${{built}}/tiny.pc" DESTINATION lib/pkgconfig)
"""

PROGRAM = """
#include <tiny.h>
#include <aot_tune/tensor.h>
int main(void) {
  float x[3] = {1, 2, 3}, y[3];
  int64_t shape[1] = {3};
  DLTensor in = aot_tune_tensor(x, AOT_TUNE_F32, aot_tune_cpu(), 1, shape, NULL);
  DLTensor out = aot_tune_tensor(y, AOT_TUNE_F32, aot_tune_cpu(), 1, shape, NULL);
  return tiny_twice(&in, &out, NULL) == AOT_TUNE_OK && y[2] == 6 ? 0 : 1;
}
"""

CONSUMER = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(tiny REQUIRED)
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE tiny::tiny)
"""

SET = "set_target_properties(tiny PROPERTIES {})"

CASES = (
    (
        SET.format("VERSION 2.3.4 SOVERSION 2"),
        "-DCMAKE_DEBUG_POSTFIX=_d",
        ["_d.so", "_d.so.2", "_d.so.2.3.4"],
        "_d.so.2",
    ),
    (SET.format("SOVERSION 5"), "-DSKBUILD=2", [".so.5"], ".so.5"),
)
"""What the project says, an option, how the installed files end, and the SONAME: links, and a wheel, which has none."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Its library is made in a folder of its own, its properties are set from outside of that."""
    made = Project.make(tmp_path_factory.mktemp("versions") / "project", AOT_TUNE_MODE="generic")
    kernels = made.folder / "kernels"
    kernels.mkdir()
    shutil.move(made.templates, kernels)
    (kernels / "CMakeLists.txt").write_text("aot_tune_add_library(tiny TEMPLATES templates)\n")
    return made


@pytest.mark.slow
def test_names(project: Project, tmp_path: Path) -> None:
    """A program that finds the package needs the library by its SONAME."""
    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER)
    for properties, option, files, soname in CASES:
        (project.folder / "CMakeLists.txt").write_text(LISTS.format(cmake=ROOT / "cmake", properties=properties))
        prefix = tmp_path / "prefix" / soname
        project.cmake("-DCMAKE_BUILD_TYPE=Debug", "-UCMAKE_DEBUG_POSTFIX", option, f"-DCMAKE_INSTALL_PREFIX={prefix}")
        project.make_all()  # what is new is linked
        run(["cmake", "--install", project.folder / "cmake"], env=project.environment())
        found = sorted((prefix / "lib").glob("lib*"))
        assert [p.name for p in found] == [f"libtiny{end}" for end in files]
        assert len([p for p in found if not p.is_symlink()]) == 1
        assert SharedLibrary(found[-1].read_bytes()).dynamic("DT_SONAME") == [f"libtiny{soname}"]
        build = tmp_path / f"build{soname}"
        run(["cmake", "-G", "Ninja", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"], env=environment())
        run(["cmake", "--build", build], env=environment())
        run([build / "consumer"], env={})
        assert f"libtiny{soname}" in SharedLibrary((build / "consumer").read_bytes()).dynamic("DT_NEEDED")


def test_a_project_without_a_version(project: Project, tmp_path: Path) -> None:
    lists = LISTS.format(cmake=ROOT / "cmake", properties="")
    (project.folder / "CMakeLists.txt").write_text(lists.replace(" VERSION 7.8", ""))
    for option, version in (("-DSKBUILD_PROJECT_VERSION=3.1", "3.1"), ("-USKBUILD_PROJECT_VERSION", "0")):
        project.cmake(option, build=str(tmp_path))
        assert f"\nVersion: {version}\n" in (tmp_path / "kernels" / "aot_tune" / "tiny" / "tiny.pc").read_text()
