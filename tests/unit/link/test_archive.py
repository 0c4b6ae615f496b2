"""The archive of variants: read by the linker's tools, the same bytes for the same members."""

from __future__ import annotations

import subprocess
from pathlib import Path

import linked
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_tune.link.archive import Member, read_archive, write_archive
from aot_tune.support.errors import ManifestError

names = st.lists(st.text("az09_", min_size=1, max_size=40).map("{}.o".format), unique=True, max_size=6)


@settings(max_examples=20)
@given(names, st.binary(max_size=99))
def test_members_come_back(labels: list[str], data: bytes) -> None:
    members = [Member(name, data[number:]) for number, name in enumerate(labels)]
    assert read_archive(write_archive(members)) == members


def test_tools_read_it(tmp_path: Path) -> None:
    _, path, _ = linked.compile_object(tmp_path, linked.GEMM, "x" * 40)
    symbols = (f"aot_tune_{'x' * 40}_launch", f"aot_tune_{'x' * 40}_workspace")
    archive = tmp_path / "variants.a"
    archive.write_bytes(write_archive([Member("a_long_name_of_an_object.o", Path(path).read_bytes(), symbols)]))
    index = subprocess.run(["nm", "-s", str(archive)], check=True, capture_output=True, text=True).stdout
    for symbol in symbols:
        assert f"{symbol} in a_long_name_of_an_object.o" in index
    member = subprocess.run(["ar", "p", str(archive)], check=True, capture_output=True).stdout
    assert member == Path(path).read_bytes()


@pytest.mark.parametrize("data", [b"", b"ELF", b"!<arch>\n" + b"x" * 60, b"!<arch>\nshort"])
def test_what_is_no_archive(data: bytes) -> None:
    with pytest.raises(ManifestError, match="archive of variants"):
        read_archive(data)
