"""Where XLA's headers are found, and what is told where they are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aot_tune.plan.options import resolve
from aot_tune.plan.xla_headers import xla_include_folder
from aot_tune.support.errors import BuildError

HEADER = "xla/ffi/api/c_api.h"


def put_header(folder: Path, text: str = "XLA_FFI_DeviceOrdinal_Get") -> Path:
    (folder / HEADER).parent.mkdir(parents=True)
    (folder / HEADER).write_text(text)
    return folder


def test_a_folder_of_the_users(tmp_path: Path) -> None:
    assert resolve({"AOT_TUNE_XLA_FFI": str(tmp_path)}, {}).xla_ffi == str(tmp_path)
    with pytest.raises(BuildError, match=r"there is no .*c_api\.h"):
        xla_include_folder(str(tmp_path))
    assert xla_include_folder(str(put_header(tmp_path))) == str(tmp_path)


def test_that_of_the_builds_jaxlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "jaxlib", raising=False)
    with pytest.raises(BuildError, match="the Python of the build has no jaxlib"):
        xla_include_folder("1")
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").write_text("raise ImportError('not to be imported')")
    put_header(tmp_path / "jaxlib" / "include")
    assert xla_include_folder("1") == str(tmp_path / "jaxlib" / "include")
