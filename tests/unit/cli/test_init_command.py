"""`aot-tune init`: what it writes, and what it refuses to write over or under which names."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from aot_tune.cli.init_command import project_files
from aot_tune.cli.main import main
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import OptionError

TOOLS = Path(sys.executable).parent


FILES = {
    *(".github/workflows/ci.yml", ".gitignore", "CMakeLists.txt", "README.md", "cpp/CMakeLists.txt", "cpp/axpy.cpp"),
    *("pyproject.toml", "src/my_kernels/__init__.py", "templates/axpy/axpy.cpp.j2", "templates/axpy/operator.py"),
    *("tests/test_axpy.py", "tuning/README.md"),
}


@pytest.mark.parametrize(("options", "more", "kernels"), [
    ((), set(), ["generic", "lanes"]),
    (("--cuda",), {"csrc/axpy.cu"}, ["generic", "lanes", "cuda_generic", "blocks"]),
    (("--triton",), {"templates/kernels.py"}, ["generic", "lanes", "triton_generic", "blocks"]),
], ids=str)  # fmt: skip
def test_projects_are_of_a_few_files_that_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], more: set[str], kernels: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my_kernels", *options]) == 0
    project = tmp_path / "my_kernels"
    files = [p for p in project.rglob("*") if p.is_file()]
    assert {str(p.relative_to(project)) for p in files} == FILES | more
    assert [p.name for p in tmp_path.iterdir()] == ["my_kernels"]
    said = capsys.readouterr().out
    assert all(str(p.relative_to(tmp_path)) in said for p in files)
    operator = load_operator(project / "templates" / "axpy")
    assert [k.name for k in operator.kernels] == kernels
    stated = (project / "pyproject.toml").read_text()
    assert 'name = "my_kernels"\n' in stated
    assert ('requires = ["aot_tune", "triton' in stated) == ("--triton" in options)
    whole = "".join(p.read_text() for p in files)
    assert "[[" not in whole
    assert "[%" not in whole
    lists = (project / "CMakeLists.txt").read_text()
    assert "aot_tune_add_library(my_kernels TEMPLATES templates DATABASE tuning MODULE ops)" in lists
    for step in said.partition("\ncd my_kernels\n")[2].splitlines():
        assert step in (project / "README.md").read_text()
    ruff = [TOOLS / "ruff", "format", "--check", "--no-cache", "--config", ROOT / "pyproject.toml", project]
    subprocess.run(list(map(str, ruff)), check=True, capture_output=True)
    for path in files:
        if path.suffix in (".cu", ".cpp"):
            formatted = subprocess.run(
                [str(TOOLS / "clang-format"), f"--style=file:{ROOT / '.clang-format'}", str(path)],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            assert formatted.stdout == path.read_text()


@pytest.mark.parametrize("name", ["", "7up", "my-kernels", "my.kernels", "my kernels", "class", "für", "../up", "_x"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(OptionError, match="cannot be the name of a package") as caught:
        project_files(name)
    assert "such as my_kernels" in caught.value.fix


@pytest.mark.parametrize("name", ["aot_tune", "test", "numpy", "json", "install"])
def test_names_that_are_taken(name: str) -> None:
    with pytest.raises(OptionError, match="is taken"):
        project_files(name)


def test_nothing_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "nowhere").symlink_to("gone")
    for name in ("full", "file", "nowhere"):
        assert main(["init", name]) == 1
        said = capsys.readouterr().err
        assert f"{name} exists and is not an empty folder" in said
        assert "fix: take another name" in said
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert (tmp_path / "file").read_text() == "mine"
    for name, within in (("empty/", ()), ("cloned", (".git",))):
        Path(tmp_path, name, *within).mkdir(parents=True)
        assert main(["init", name]) == 0
        assert (tmp_path / name / "pyproject.toml").is_file()


def test_nothing_is_left_of_a_project_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, written = Path.write_text, list[Path]()

    def write(path: Path, text: str, encoding: str) -> int:
        written.append(path)
        if len(written) == 5:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return whole(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", write)
    assert main(["init", "my_kernels"]) == 1
    assert "my_kernels cannot be made\n  why: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
