"""A project as `aot-tune tune` finds it: by its folder, configured as pip would."""

from pathlib import Path

import pytest

from aot_tune.plan.configure_project import configure_project, source_folder
from aot_tune.support.errors import BuildError

LISTS = "cmake_minimum_required(VERSION 3.25)\nproject(any LANGUAGES NONE)\n"
TELLS = """
message(FATAL_ERROR "\\n<${SKBUILD_PROJECT_NAME} ${SKBUILD_PROJECT_VERSION} ${AOT_TUNE_EFFORT} ${FAST} ${SLOW}>")
"""


def project(folder: Path, *more: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CMakeLists.txt").write_text(LISTS + "".join(more))
    return folder


def test_a_project_is_its_folder_or_its_lists(tmp_path: Path) -> None:
    folder = project(tmp_path / "one")
    assert source_folder(folder) == source_folder(folder / "CMakeLists.txt") == folder
    (tmp_path / "pyproject.toml").write_text('[tool.scikit-build.cmake]\nsource-dir = "one"\n')
    assert source_folder(tmp_path) == folder


def test_what_is_no_project_is_told_with_the_one_that_is_meant(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is not a folder"):
        source_folder(tmp_path / "nowhere")
    with pytest.raises(BuildError, match="is not a project") as caught:
        source_folder(tmp_path)
    assert "no CMakeLists.txt" in caught.value.why
    folder = project(tmp_path / "one")
    (folder / "templates").mkdir()
    with pytest.raises(BuildError, match="is not a project") as caught:
        source_folder(folder / "templates")
    assert str(folder) in caught.value.fix
    build = tmp_path / "build"
    build.mkdir()
    (build / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/the/project\n")
    with pytest.raises(BuildError, match="is not a project") as caught:
        source_folder(build)
    assert "build folder of /the/project" in caught.value.why
    assert "/the/project" in caught.value.fix


def test_cmake_is_given_what_pip_gives_it_and_then_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path / "one", TELLS)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1.2"\n'
        '[tool.scikit-build.cmake.define]\nAOT_TUNE_EFFORT = "quick"\nFAST = "no"\nSLOW = "table"\n'
    )
    monkeypatch.setenv("CMAKE_ARGS", "-DFAST=args")
    with pytest.raises(BuildError, match="CMake cannot configure") as caught:
        configure_project(folder, folder, tmp_path / "build", {"AOT_TUNE_EFFORT": "thorough"}, ["SLOW=line"])
    assert "<mine 1.2 thorough args line>" in caught.value.why
    with pytest.raises(BuildError) as caught:
        configure_project(folder, folder, tmp_path / "again", {"AOT_TUNE_EFFORT": ""})
    assert "<mine 1.2 quick args table>" in caught.value.why


def test_a_project_without_a_library_is_told(tmp_path: Path) -> None:
    folder = project(tmp_path / "one")
    with pytest.raises(BuildError, match="has no library") as caught:
        configure_project(folder, folder, tmp_path / "build", {})
    assert "aot_tune_add_library" in caught.value.why
