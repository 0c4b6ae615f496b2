"""Headers that were looked for in vain, or that failed: what was compiled without them is compiled again with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from nvcc_sources import MISSING

from aot_tune.compile import ObjectCache, Toolchain, target_by_name, toolchain_for
from aot_tune.compile.cache.entry import file_digest
from aot_tune.compile.cuda.nvcc import NvccToolchain
from aot_tune.compile.headers import headers_tested, search_folders, sought
from aot_tune.render import Rendered

LAUNCH = '\nextern "C" __attribute__((visibility("default"))) int SYMBOL_launch() { return SIZE; }\n'
TWO, ERROR = "#define SIZE 2\n", "#error not yet\n"
EITHER = f"{TWO}#else\n#define SIZE 1\n#endif\n"
MORE = '#include "more.h"\n'
Files = dict[str, str | None]
Make = Callable[..., Rendered]
OTHER: Files = {"a/other.h": ""}

CASES: dict[str, tuple[str, Files, Files]] = {
    "an error in a header": ('#include "{0}/b/size.h"', {"b/size.h": ERROR}, {"b/size.h": TWO}),
    "an error in a header of a header": (
        '#include "{0}/b/size.h"',
        {"b/size.h": MORE, "b/more.h": ERROR},
        {"b/more.h": TWO},
    ),
    "a header that is missing": ("#include <size.h>", OTHER, {"a/size.h": TWO}),
    "a header that a header misses": ('#include "{0}/b/size.h"', {"b/size.h": MORE}, {"b/more.h": TWO}),
    "a header that may be missing": (
        f"#if __has_include(<size.h>)\n#include <size.h>\n{EITHER.removeprefix(TWO)}",
        OTHER,
        {"a/size.h": TWO},
    ),
    "a header that a header may miss": (
        "#include <first.h>",
        {"b/first.h": f'#if __has_include("size.h")\n{EITHER}'},
        {"b/size.h": ""},
    ),
    "a header that was there": (f"#if !__has_include(<size.h>)\n{EITHER}", {"a/size.h": ""}, {"a/size.h": None}),
    "a header before the one that was found": (
        "#include <below/size.h>",
        {"b/below/size.h": "#define SIZE 1\n", **OTHER},
        {"a/below/size.h": TWO},
    ),
    "a folder before that of the header": ("#include <size.h>", {"b/size.h": "#define SIZE 1\n"}, {"a/size.h": TWO}),
}
"""A source, files below the folders `a` and `b` of CPATH, and what becomes of them (None for one that goes)."""


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)


def later() -> None:
    """What a later process has forgotten."""
    file_digest.cache_clear()
    headers_tested.cache_clear()
    search_folders.cache_clear()


def changed(tmp_path: Path, chain: Callable[[dict[str, str]], Toolchain], name: str, make: Make) -> None:
    text, before, after = CASES[name]
    write(tmp_path, before)
    rendered = make(text.format(tmp_path) + LAUNCH)
    target = target_by_name(rendered.candidate.target)
    found = []
    for step in range(4):
        if step == 2:
            write(tmp_path, after)
        later()
        toolchain = chain({**os.environ, "CPATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}"})
        found.append(ObjectCache(tmp_path / "cache", toolchain).get(rendered, target))
    assert [f.cached for f in found] == [False, True, False, True], [f.error for f in found]
    assert found[0].digest != found[2].digest
    assert found[2].status == "ok", found[2].error


@pytest.mark.parametrize("name", CASES)
def test_what_a_source_saw_of_headers(tmp_path: Path, make_rendered: Make, name: str) -> None:
    changed(tmp_path, lambda e: toolchain_for("cxx", e), name, lambda text: make_rendered(0, text, "cpu-x86-64"))


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_what_nvcc_saw_of_headers(tmp_path: Path, make_cuda: Make) -> None:
    changed(tmp_path, NvccToolchain, "a header that may be missing", make_cuda)


def test_other_files_that_come_and_go_change_nothing(tmp_path: Path, make_rendered: Make) -> None:
    (tmp_path / "size.h").write_text("#define SIZE 1\n")
    cached = []
    for step in range(2):
        later()
        toolchain = toolchain_for("cxx", {**os.environ, "CPATH": str(tmp_path)})
        rendered = make_rendered(0, f"#include <size.h>\n#include <vector>{LAUNCH}", "cpu-x86-64")
        cached.append(ObjectCache(tmp_path / "cache", toolchain).get(rendered, target_by_name("cpu-x86-64")).cached)
        (tmp_path / f"other{step}.h").write_text("")
    assert cached == [False, True]


def test_a_test_ends_at_the_first_header_that_is_there(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in "abc"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.h").write_text("")
    found = sought("#if __has_include ( <x.h> )\n#endif", (), folders)
    assert found == [str(tmp_path / "a/x.h"), str(tmp_path / "b/x.h")]


def test_a_header_that_changes_while_it_is_compiled(tmp_path: Path, make_rendered: Make) -> None:
    """The object is of what the header holds at the end, under which digest it is kept."""
    header, edit = tmp_path / "size.h", tmp_path / "edit"
    header.write_text("#define SIZE 1\n")
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\ng++ "$@"\ncase "$*" in *" -c "*) test -e {edit} && mv {edit} {header};; esac\nexit 0\n'
    )
    compiler.chmod(0o755)
    rendered = make_rendered(0, f'#include "{header}"{LAUNCH}', "cpu-x86-64")
    target, made = target_by_name("cpu-x86-64"), []
    for name, text in (("a", TWO), ("a", ""), ("b", "")):
        if text:
            edit.write_text(text)
        later()
        toolchain = toolchain_for("cxx", {**os.environ, "CXX": str(compiler)})
        made.append(ObjectCache(tmp_path / name, toolchain).get(rendered, target))
    assert header.read_text() == TWO
    assert [m.cached for m in made] == [False, True, False]
    assert made[0].digest == made[2].digest


def test_a_header_that_could_not_be_opened(tmp_path: Path, make_rendered) -> None:
    header = tmp_path / "a" / "size.h"
    header.parent.mkdir()
    header.symlink_to("size.h")  # a link to itself, since root may read everything
    rendered = make_rendered(1, "#include <size.h>" + LAUNCH)
    found = []
    for step in range(3):
        if step == 2:
            write(tmp_path, {"a/size.h": TWO})
        later()
        cache = ObjectCache(tmp_path / "cache", toolchain_for("cxx", {**os.environ, "CPATH": str(header.parent)}))
        found.append(cache.get(rendered, target_by_name("cpu-x86-64")))
    assert [(f.status, f.cached) for f in found] == [("compile-failed", False), ("compile-failed", True), ("ok", False)]


def test_folders_that_nobody_lets_in_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_file(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", is_file)
    assert sought('#if __has_include("x.h")\n#endif\n', [], ["/closed"]) == ["/closed/x.h"]
