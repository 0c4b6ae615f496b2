"""The reference is what the code says, and has every option, variable, command, function and class."""

import importlib.util
import os
import re

import pytest
from places import ROOT

SPEC = importlib.util.spec_from_file_location("generate_reference", ROOT / "docs" / "generate_reference.py")
assert SPEC is not None
assert SPEC.loader is not None
generate_reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate_reference)
FOLDER = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    made: dict[str, str] = generate_reference.pages()
    return made


def test_the_pages_are_as_the_code_is(pages: dict[str, str]) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        generate_reference.main()
    for name in generate_reference.KEPT:
        assert (FOLDER / name).read_text() == pages[name], f"{name} differs: run `python docs/generate_reference.py`"


def test_every_variable_that_a_library_reads_is_there(pages: dict[str, str]) -> None:
    read: set[str] = set()
    for path in (ROOT / "aot_tune" / "runtime").rglob("*"):
        if path.suffix in (".cpp", ".h"):
            text = path.read_text()
            read |= set(re.findall(r'"(AOT_TUNE_[A-Z_]+)"', text))
    assert len(read) >= 7
    for name in read:
        assert f"\n| `{name}` |" in pages["options.md"]


def test_every_command_is_there(pages: dict[str, str]) -> None:
    text = (ROOT / "README.md").read_text() + "".join(p.read_text() for p in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"\baot-tune ([a-z][a-z-]+)\b", text)) - {"configure", "build", "check-library", "ended"}
    assert len(named) >= 7
    for name in named:
        assert f"\n## aot-tune {name}\n" in pages["commands.md"], name


def test_every_argument_of_the_cmake_function_is_there(pages: dict[str, str]) -> None:
    text = (ROOT / "cmake" / "aot_tune_add_library.cmake").read_text()
    lists = re.findall(r'^    "([A-Z_;]+)"$', text, re.MULTILINE)
    names = ";".join(lists).split(";")
    assert "TEMPLATES" in names
    for name in names:
        assert re.search(rf"\[{name} <", pages["cmake.md"]), name


def test_every_function_of_c_is_there(pages: dict[str, str]) -> None:
    golden = (ROOT / "tests" / "unit" / "golden" / "link" / "ops.h").read_text()
    shared = set(re.findall(r"\baot_tune_(?!gemm|rms_norm)(\w+)\(", golden))
    assert shared >= {"last_error", "preload", "set_num_threads"}
    for name in shared:
        assert f"aot_tune_{name}(" in pages["c.md"]
    for path in (ROOT / "templates").glob("*/operator.py"):
        assert f"int32_t aot_tune_{path.parent.name}(" in pages["c.md"]
