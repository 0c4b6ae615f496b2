"""How the code is written: formatters, linters, types, sizes, and words that may not occur."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aot_tune.plan.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
PYTHON = ["aot_tune", "benchmarks", "examples", "templates", "tests"]
CXX_FOLDERS = (
    "aot_tune/runtime",
    "aot_tune/link/binding",
    "aot_tune/link/xla",
    "aot_tune/torch/csrc",
    "examples",
    "benchmarks",
)
FETCHED = ROOT / "examples" / "cuda_packages" / "packages"  # other people's sources, which git ignores
CXX = [
    path
    for folder in CXX_FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".cpp", ".hpp", ".h", ".c") and not path.is_relative_to(FETCHED)
]
MODULES = sorted((ROOT / "aot_tune").rglob("*.py"))


def check(*argv: object) -> None:
    done = subprocess.run([str(a) for a in argv], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def test_ruff_check() -> None:
    check(TOOLS / "ruff", "check", "--no-cache", "--quiet", *(p for p in PYTHON if (ROOT / p).is_dir()))


def test_ruff_format() -> None:
    check(TOOLS / "ruff", "format", "--no-cache", "--check", "--quiet", *(p for p in PYTHON if (ROOT / p).is_dir()))


def test_mypy(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kept = getattr(request.config, "cache", None)  # there is none with `-p no:cacheprovider`
    folder = tmp_path if kept is None else kept.mkdir("mypy")
    check(TOOLS / "mypy", "--strict", "--cache-dir", folder, "--python-executable", sys.executable, "aot_tune")


def test_clang_format() -> None:
    assert len(CXX) > 10
    check(TOOLS / "clang-format", "--dry-run", "-Werror", *CXX)


FORBIDDEN = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
"""Modules that run data as code."""


def unsafe(node: ast.AST) -> bool:
    """Whether a piece of code may run data as code, or text as a command."""
    if isinstance(node, ast.Import):
        return bool(FORBIDDEN & {a.name.split(".")[0] for a in node.names})
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in FORBIDDEN
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        return called in ("eval", "exec", "compile", "os.system", "os.popen") or any(
            k.arg == "shell" for k in node.keywords
        )
    return False


def test_modules_run_no_data_as_code_and_no_text_as_a_command() -> None:
    for line in ("import pickle", "from dill import x", "eval(x)", "os.system(x)", "run(x, shell=True)"):
        assert any(map(unsafe, ast.walk(ast.parse(line)))), line
    for path in MODULES:
        found = [ast.unparse(n) for n in ast.walk(ast.parse(path.read_text())) if unsafe(n)]
        assert not found, f"{path.relative_to(ROOT)}: {found}"


def test_files_are_short() -> None:
    lines = {p.relative_to(ROOT): p.read_text().count("\n") for p in (*MODULES, *CXX) if "examples" not in p.parts}
    assert not {p: n for p, n in lines.items() if n > 700}


def test_the_readme_quotes_the_example_as_it_is() -> None:
    text = (ROOT / "README.md").read_text()
    kinds = (".toml", ".txt", ".py", ".j2")
    paths = [p for p in sorted((ROOT / "examples" / "kernel_author").rglob("*")) if p.is_file() and p.suffix in kinds]
    assert {p.suffix for p in paths} == set(kinds)
    for path in paths:
        assert path.read_text().strip() in text, f"{path.relative_to(ROOT)} differs from the README"


def test_cmake_finds_every_option(tmp_path: Path) -> None:
    """It reads their names from the source."""
    (tmp_path / "say.cmake").write_text(
        f'include("{ROOT}/cmake/aot_tune_add_library.cmake")\nmessage("${{_AOT_TUNE_OPTIONS}}")\n'
    )
    said = subprocess.run(
        ["cmake", "-P", tmp_path / "say.cmake"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stderr
    assert said.strip().split(";") == [o.name.removeprefix("AOT_TUNE_") for o in OPTIONS]


def test_no_path_or_address_of_a_machine_is_written_down() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = listed.stdout.split("\n") if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    forbidden = re.compile(r"/(?:root|work)/\w|\bfile:///\w|--(?:extra-)?index-url")
    assert len(names) > 100
    for name in filter(None, names):
        path = ROOT / name
        if path.is_file() and path.suffix in (
            ".py",
            ".md",
            ".toml",
            ".txt",
            ".cmake",
            ".in",
            ".cpp",
            ".h",
            ".j2",
            ".yaml",
        ):
            found = forbidden.search(path.read_text(errors="replace"))
            assert found is None or path == Path(__file__), f"{name}: {found and found.group()}"


def test_the_hooks_run_the_same_tools() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    for tool in ("ruff check", "ruff format", "mypy", "clang-format"):
        assert tool in text
    assert f"files: ^({'|'.join(CXX_FOLDERS)})/\n" in text  # what is generated for tests is nobody's to format
    assert "repo: local" in text
    assert "http" not in text
