"""What building and loading the shim says when something is missing; that it works is tested with libraries."""

from pathlib import Path

import pytest
from processes import program

from aot_tune.support.errors import CacheError
from aot_tune.torch import ShimError, build_shim
from aot_tune.torch.shim import find_shim, load_shim


def compiler(folder: Path, script: str) -> str:
    return str(program(folder / "a-compiler", script))


def test_no_shim_is_looked_for_elsewhere(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_shim() is None
    assert not list(cache.iterdir())
    monkeypatch.setenv("AOT_TUNE_CACHE", "off")
    assert find_shim() is None
    with pytest.raises(ShimError, match="there is no cache folder"):
        build_shim()


def test_it_is_compiled_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    script = f'echo "$@" >> {log}\nwhile [ "$1" != -o ]; do shift; done; echo made > "$2"'
    monkeypatch.setenv("CXX", f"{compiler(tmp_path, script)} --more")
    path = build_shim()
    assert path.is_relative_to(cache)
    assert find_shim() == build_shim() == path
    (line,) = log.read_text().splitlines()
    assert line.startswith("--more -O2 ")
    build_shim(rebuild=True)
    other = build_shim(tmp_path / "other")
    assert other.read_text() == "made\n"
    assert len(log.read_text().splitlines()) == 3
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with pytest.raises(ShimError, match=r"(?s)cannot be loaded.*built for another torch or Python"):
        load_shim(path)


def test_compilers_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "echo 'shim.cpp:1: error: no such thing' >&2; exit 1"))
    with pytest.raises(ShimError, match=r"(?s)cannot be compiled against torch .*no such thing"):
        build_shim()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ShimError, match="CXX='no-such-compiler' is not a program"):
        build_shim()
    assert find_shim() is None


OLDER = """
#include <torch/csrc/stable/library.h>
#undef TORCH_VERSION_2_13_0
#pragma GCC poison torch_delete_stable_ivalue torch_new_stable_ivalue
"""


def test_torch_2_11_has_all_that_it_is_compiled_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came with a later torch, made unknown: its version and what the stable ABI got with it."""
    header = tmp_path / "older.h"
    header.write_text(OLDER)
    script = f'set -e; g++ -include {header} -fsyntax-only "$@"\nwhile [ "$1" != -o ]; do shift; done; echo made > "$2"'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    assert build_shim(tmp_path / "made").is_file()


def test_folders_that_others_write_to(cache: Path) -> None:
    cache.chmod(0o777)
    with pytest.raises(CacheError, match="may be written by others"):
        build_shim()
    with pytest.raises(CacheError, match="may be written by others"):
        find_shim()
