"""Headers that were looked for in vain, or that failed: what was compiled without them is compiled again with them."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from nvcc_sources import MISSING
from processes import program

from aot_tune.compile import Object, ObjectCache, Toolchain, target_by_name, toolchain_for
from aot_tune.compile.cache_entry import file_digest
from aot_tune.compile.headers import search_folders, seen_in_file
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.compile.programs import option_files
from aot_tune.render import Rendered

LAUNCH = '\nextern "C" __attribute__((visibility("default"))) int SYMBOL_launch() { return SIZE; }\n'
TWO, ERROR = "#define SIZE 2\n", "#error not yet\n"
EITHER = f"{TWO}#else\n#define SIZE 1\n#endif\n"
MORE = '#include "NAME_more.h"\n'
Files = dict[str, str | None]
Make = Callable[..., Rendered]

CASES: dict[str, tuple[str, Files, Files]] = {
    "an error in a header": ('#include "{0}/b/NAME.h"', {"b/NAME.h": ERROR}, {"b/NAME.h": TWO}),
    "an error in a header of a header": (
        '#include "{0}/b/NAME.h"',
        {"b/NAME.h": MORE, "b/NAME_more.h": ERROR},
        {"b/NAME_more.h": TWO},
    ),
    "a header that is missing": ("#include <NAME.h>", {}, {"a/NAME.h": TWO}),
    "a header that a header misses": ('#include "{0}/b/NAME.h"', {"b/NAME.h": MORE}, {"b/NAME_more.h": TWO}),
    "a header that may be missing": (
        f"#if __has_include(<NAME.h>)\n#include <NAME.h>\n{EITHER.removeprefix(TWO)}",
        {},
        {"a/NAME.h": TWO},
    ),
    "a header that a header may miss": (
        "#include <NAME_first.h>",
        {"b/NAME_first.h": f'#if __has_include("NAME.h")\n{EITHER}'},
        {"b/NAME.h": ""},
    ),
    "a header that was there": (f"#if !__has_include(<NAME.h>)\n{EITHER}", {"a/NAME.h": ""}, {"a/NAME.h": None}),
    "a header before the one that was found": (
        "#include <below/NAME.h>",
        {"b/below/NAME.h": "#define SIZE 1\n"},
        {"a/below/NAME.h": TWO},
    ),
    "a name behind a macro": (
        "#define NAME_H <NAME.h>\n#define SEARCHED NAME_H\n#if __has_include(SEARCHED)\n" + EITHER,
        {},
        {"b/NAME.h": ""},
    ),
    "a macro that tests": (
        '#define HAS(x) __has_include(x)\n#include "{0}/b/NAME_first.h"',
        {"b/NAME_first.h": f'#define HAS_TOO(x) HAS(x)  // HAS(more)\n#if HAS_TOO("NAME.h")\n{EITHER}'},
        {"b/NAME.h": ""},
    ),
    "what the assembler reads": (
        'asm(".pushsection .rodata\\n.inc" "bin \\"{0}/a/NAME.bin\\"\\n.popsection"); // incbin\n#define SIZE 1\n',
        {"a/NAME.bin": "before"},
        {"a/NAME.bin": "after"},
    ),
    "what the assembler includes": (
        '#include "{0}/b/NAME.h"\n#define SIZE 1\n',
        {"b/NAME.h": 'asm(".include \\"{0}/a/NAME.s\\"");\n', "a/NAME.s": ".pushsection .a\n.byte 1\n.popsection\n"},
        {"a/NAME.s": ".pushsection .a\n.byte 2\n.popsection\n"},
    ),
    "a folder before that of the header": ("#include <NAME.h>", {"b/NAME.h": "#define SIZE 1\n"}, {"a/NAME.h": TWO}),
}
"""A source, files below the folders `a` and `b` of CPATH, and what becomes of them (None for one that goes)."""


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)


def _placed(text: str, name: str, folder: str) -> str:
    return text.replace("NAME", name).replace("{0}", folder)


def later() -> None:
    """What a later process has forgotten."""
    file_digest.cache_clear()
    seen_in_file.cache_clear()
    search_folders.cache_clear()


def changed(tmp_path: Path, chain: Callable[[dict[str, str]], Toolchain], cases: list[str], make: Make) -> None:
    """Compile twice, change the headers, and compile twice again."""
    write(tmp_path, {"a/other.h": "", "b/other.h": ""})
    wanted: dict[str, tuple[Rendered, Files]] = {}
    for number, case in enumerate(cases):
        name = f"size{number}"
        text, *files = CASES[case]
        placed = partial(_placed, name=name, folder=str(tmp_path))
        before, after = ({placed(k): v and placed(v) for k, v in f.items()} for f in files)
        write(tmp_path, before)
        wanted[case] = make(placed(text) + LAUNCH), after
    found: dict[str, list[Object]] = {case: [] for case in cases}
    for step in range(4):
        later()
        toolchain = chain({**os.environ, "CPATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}"})
        for case, (rendered, after) in wanted.items():
            if step == 2:
                write(tmp_path, after)
            else:
                (tmp_path / "a" / f"other{step}{case}.h").write_text("")  # what comes and goes changes nothing
            target = target_by_name(rendered.candidate.target)
            found[case].append(ObjectCache(tmp_path / "cache", toolchain).get(rendered, target))
    for case, made in found.items():
        assert [f.cached for f in made] == [False, True, False, True], (case, [f.error for f in made])
        assert made[0].digest != made[2].digest, case
        assert made[2].status == "ok", (case, made[2].error)


def test_row_91_what_a_source_saw_of_headers(tmp_path: Path, make_rendered: Make) -> None:
    changed(tmp_path, lambda e: toolchain_for("cxx", e), [*CASES], lambda text: make_rendered(0, text, "cpu-x86-64"))


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_what_nvcc_saw_of_headers(tmp_path: Path, make_cuda: Make) -> None:
    changed(tmp_path, NvccToolchain, ["a header that may be missing"], make_cuda)


def test_a_header_that_changes_while_it_is_compiled(tmp_path: Path, make_rendered: Make) -> None:
    """The object is of what the header holds at the end, under which digest it is kept."""
    header, edit = tmp_path / "size.h", tmp_path / "edit"
    header.write_text("#define SIZE 1\n")
    script = f'g++ "$@"\ncase "$*" in *" -c "*) test -e {edit} && mv {edit} {header};; esac\nexit 0'
    compiler = program(tmp_path / "compiler", script)
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


def test_row_91_options_that_let_a_compiler_read_files(tmp_path: Path, make_rendered: Make) -> None:
    """What is named counts by its contents; with files that nobody names, each build compiles for itself."""
    specs, kept, source = tmp_path / "own.specs", [], LAUNCH.replace("SIZE", "KIND")
    named = tmp_path / "named.h"
    cases = {
        f"-include {named}": ("#define KIND 1\n", "#define KIND 2\n", True),
        f"-specs={specs}": ("*cc1plus:\n+ -DKIND=1\n\n", "*cc1plus:\n+ -DKIND=2\n\n", False),
        "-fprofile-use -DKIND=1": ("", "", False),
    }
    for option, (before, after, lasts) in cases.items():
        made = []
        for text in (before, before, after):
            (specs if "specs" in option else named).write_text(text)
            later()
            toolchain = toolchain_for("cxx", {**os.environ, "CXX": f"g++ {option}"})
            cache = ObjectCache(tmp_path / "cache", toolchain)
            kept.append(cache)  # what is not cached lives as long
            made.append(cache.get(make_rendered(0, source), target_by_name("cpu-x86-64")))
            assert cache.get(make_rendered(0, source), target_by_name("cpu-x86-64")).cached
        assert [(m.status, m.cached) for m in made] == [("ok", False), ("ok", lasts), ("ok", False)], option
        assert all(Path(m.path).is_file() for m in made)
        assert (made[0].digest == made[2].digest) == (before == after)


@pytest.mark.parametrize(
    ("options", "files", "whole"),
    [
        ("-O2 -fno-math-errno -Xcompiler=-fno-strict-aliasing -isystem /usr/include -std=c++20", 0, True),
        ("-fprofile-use={0} -fplugin={0} -fauto-profile={0}", 3, True),
        ("-Xcompiler=-fplugin={0},-O1", 1, True),
        ("-specs={0}", 1, False),
        ("-fprofile-use=/nowhere -O2", 0, False),
        ("-fplugin=name", 0, False),
        ("-Xclang -load -Xclang {0}", 1, False),
        ("-B/usr/bin", 0, False),
        ("-wrapper {0},x", 1, False),
        ("--options-file {0}", 1, False),
    ],
)
def test_row_91_files_that_options_name(tmp_path: Path, options: str, files: int, whole: bool) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert option_files(options.format(path).split()) == ([str(path)] * files, whole)


def test_row_91_what_no_one_can_name_is_not_cached(tmp_path: Path, make_rendered: Make) -> None:
    """A name that the preprocessor puts together, an assembler that does not tell what it reads."""
    silent = program(tmp_path / "silent-g++", 'case "$*" in *--MD*) exit 1;; esac\nexec g++ "$@"')
    together = "#define JOIN(a) <a.h>\n#if __has_include(JOIN(size))\n#endif"
    for text, compiler in ((together, "g++"), ('asm(".include \\"/dev/null\\"");', str(silent))):
        for _ in range(2):
            later()
            cache = ObjectCache(tmp_path / "cache", toolchain_for("cxx", {**os.environ, "CXX": compiler}))
            made = cache.get(make_rendered(0, f"{text}{LAUNCH.replace('SIZE', '1')}"), target_by_name("cpu-x86-64"))
            assert (made.status, made.cached, Path(made.path).is_file()) == ("ok", False, True)
