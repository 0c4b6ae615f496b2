"""Projects of other shapes than one folder: subdirectories, policies, languages, names of files and of options."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import ROOT, Compiler, run
from project import Project

INCLUDE = f'include("{ROOT}/cmake/aot_tune_add_library.cmake")\n'
ADD = "aot_tune_add_library(tiny TEMPLATES {templates} MODE generic {more})\n"
HEAD = "cmake_minimum_required(VERSION {version})\nproject(tiny LANGUAGES {languages})\n"


def write(
    project: Project, *lines: str, folder: str = "", version: str = "3.25", languages: str = "CXX", more: str = ""
) -> None:
    """Write the lists of a folder; those of the project have its head."""
    place = project.folder / folder
    place.mkdir(exist_ok=True)
    head = "" if folder else HEAD.format(version=version, languages=languages)
    add = ADD.format(templates=f'"{project.templates}"', more=more)
    (place / "CMakeLists.txt").write_text(head + "".join(lines).replace("ADD\n", add))


@pytest.fixture
def project(forks: Callable[..., str], tmp_path: Path) -> Project:
    made = Project.make(tmp_path / "project")
    made.runs = forks
    return made


def test_variables_count_whatever_the_projects_policies(project: Project) -> None:
    write(project, "set(AOT_TUNE_FILTER nothing/like/this)\n", INCLUDE, "ADD\n", version="3.16")
    assert "AOT_TUNE_FILTER='nothing/like/this' matches no kernel" in project.cmake(status=1)


def test_a_project_without_cxx_is_told(project: Project) -> None:
    write(project, INCLUDE, "ADD\n", languages="NONE")
    said = project.cmake(status=1)
    assert "the project has no C++" in said
    assert "CMake can not determine" not in said


def test_an_editable_install_is_compiled_from_its_sources(project: Project, tmp_path: Path) -> None:
    """Of an editable install, site-packages have what was built, and not the sources that a library needs."""
    package = tmp_path / "site-packages" / "aot_tune"
    config = package / "share" / "cmake" / "aot_tune"
    config.mkdir(parents=True)
    (package / "lib").mkdir()
    (package / "lib" / "libaot_tune_ops.so").touch()
    for name in ("aot_tune_add_library.cmake", "aot_tune_install_library.cmake", "aot_tune_run.cmake.in"):
        shutil.copy(ROOT / "cmake" / name, config)
    text = (ROOT / "cmake" / "aot_tuneConfig.cmake.in").read_text().replace("@PROJECT_VERSION@", "1.0")
    installed = config / "aot_tuneConfig.cmake"
    write(project, "find_package(aot_tune REQUIRED)\nmessage(NOTICE at:${AOT_TUNE_PACKAGE_DIR})\n", "ADD\n")
    installed.write_text(text.replace("@editable_sources@", str(tmp_path / "gone")))
    assert f"aot_tune is an editable install of {tmp_path}/gone, which is gone" in " ".join(
        project.cmake(f"-Daot_tune_DIR={config}", status=1).split()
    )
    installed.write_text(text.replace("@editable_sources@", str(ROOT / "aot_tune")))
    assert f"at:{package}\n" in project.cmake(f"-Daot_tune_DIR={config}")  # include/ is there


def test_a_misspelt_option_that_holds_a_list_is_told(project: Project) -> None:
    said = " ".join(project.cmake("-DAOT_TUNE_TARGET=cpu;cuda", status=1).split())
    assert "unknown option AOT_TUNE_TARGET fix: did you mean 'AOT_TUNE_TARGETS'" in said


def test_a_python_without_our_requirements_is_told(project: Project, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    said = " ".join(project.cmake(f"-DPython_EXECUTABLE={bare}", status=1).split())
    assert f"{bare} lacks what aot_tune is written with why: ModuleNotFoundError: No module named" in said
    assert f"`{bare} -m pip install scikit-build-core " in said
    assert "set Python_EXECUTABLE to" in said


def test_a_compiler_for_another_machine_is_told(project: Project, tmp_path: Path) -> None:
    cross = tmp_path / "cross-g++"
    cross.write_text('#!/bin/sh\n[ "$1" = -dumpmachine ] && exec echo aarch64-linux-gnu\nexec g++ "$@"\n')
    cross.chmod(0o755)
    assert "the C++ compiler is for aarch64-linux-gnu" in project.configure(status=1, CXX=str(cross))


def test_a_projects_own_folder_as_a_root_and_a_compiler_behind_a_launcher(tmp_path: Path) -> None:
    """What a build makes below it is not read by the next configure: Ninja would find rules that make each other.

    CMake takes the first word of CXX for the compiler and keeps the others.
    """
    launcher, compiler = tmp_path / "launch er", tmp_path / "g++"
    launcher.write_text('#!/bin/sh\nexec "$@"\n')
    launcher.chmod(0o755)
    env = {"AOT_TUNE_CACHE_DIR": str(tmp_path / "cache"), "AOT_TUNE_MODE": "generic"}
    project = Project.make(tmp_path / "pro ject", **env, CXX=f"'{launcher}' {compiler}")
    project.compiler.path.rename(compiler)
    (project.templates / "twice").rename(project.folder / "twice")
    lists = project.folder / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("TEMPLATES templates", "TEMPLATES ."))
    (project.folder / "twice" / ".git").mkdir()
    (project.folder / "twice" / ".git" / "index").write_text("")
    plan = project.folder / "cmake" / "aot_tune" / "tiny" / "plan.cmake"
    project.cmake()
    read = plan.read_text()
    assert str(project.folder / "twice" / "operator.py") in read
    assert ".git" not in read
    tuned = ("cmake", "--target", "aot_tune/tiny/tuned")
    project.make_all(*tuned)
    assert Compiler(compiler, tmp_path / "runs.log").candidates() == 1  # it writes beside itself
    project.cmake()
    assert plan.read_text() == read
    assert "no work to do" in project.make_all(*tuned)


def test_what_only_one_library_can_have_is_told_at_configure(project: Project) -> None:
    """FAULTS 90. A file of one would replace a file of the other."""
    one = f'aot_tune_add_library(one TEMPLATES "{project.templates}" MODE generic '
    two, installed = one.replace("(one", "(two"), "aot_tune_install_library({} DESTINATION {})\n"
    for lines, clash in (
        ([one, "OUTPUT_NAME ops)\n", two, "OUTPUT_NAME ops)\n"], "OUTPUT_NAME ops"),
        ([one, "MODULE ops)\n", two, "MODULE ops)\n"], f"MODULE ops in {project.folder}/cmake"),
        ([one, ")\n", two, ")\n", installed.format("one", "x"), installed.format("two", "x/")], "DESTINATION x"),
    ):
        write(project, INCLUDE, *lines)
        said = " ".join(project.cmake(status=1).split())
        assert f"aot_tune library two: {clash} is that of one too why:" in said, said


def test_configurations_with_libraries_and_definitions_of_their_own(project: Project) -> None:
    """FAULTS 90: the same folder makes both, one after the other. Each is installed with its own manifest."""
    helper = 'file(WRITE helper.c "int helper(void) { return 1; }")\nadd_library(helper STATIC helper.c)\n'
    defined = "target_compile_definitions(tiny PRIVATE ONLY_$<CONFIG>)\naot_tune_install_library(tiny)\n"
    write(project, INCLUDE, helper, "ADD\n", defined, languages="C CXX", more="LINK_LIBRARIES helper")
    project.change("return 0;", '#ifdef ONLY_Two\n  asm volatile("nop");\n#endif\n  return 0;', "generic.cpp.j2")
    project.cmake("-G", "Ninja Multi-Config", "-DCMAKE_CONFIGURATION_TYPES=One;Two")
    build, env = project.folder / "cmake", project.environment()
    for configuration in ("One", "Two"):
        run(["cmake", "--build", build, "--config", configuration], env=env)
        of_target = (build / "aot_tune" / "tiny" / "target.txt").read_text()
        assert f"definitions=ONLY_{configuration}\n" in of_target
        assert f"libraries={build}/{configuration}/libhelper.a\n" in of_target
    for configuration in ("One", "Two"):
        installed = project.folder / configuration / "tiny"
        run(["cmake", "--install", build, "--config", configuration, "--prefix", installed.parent], env=env)
        assert (installed / "manifest.json").read_bytes() in (installed / "lib" / "libtiny.so").read_bytes()
    assert len({(project.folder / c / "tiny" / "manifest.json").read_bytes() for c in ("One", "Two")}) == 2


def test_an_error_is_not_followed_by_a_wall_of_names(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project", AOT_TUNE_MODE="generic", AOT_TUNE_CACHE_DIR=str(tmp_path / "cache"))
    project.cmake()
    project.change("{{ kernel_signature", "not C++; {{ kernel_signature", "generic.cpp.j2")
    said = project.make_all(status=None)
    told, _, rest = said.partition("FAILED: ")
    assert "its generic kernel cannot be compiled" in told
    listed = rest.partition("\n")[0].removeprefix("[code=1] ").split()
    assert [Path(name).name for name in listed] == ["tuned", "tuned"]  # as Ninja writes it, and from the root
