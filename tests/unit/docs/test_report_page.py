"""docs/report.md against the code: options, records, the versions that it speaks of, and its pictures."""

from __future__ import annotations

import importlib
import re

import pytest
from places import ROOT

from aot_tune.cli.main import main

PAGE = (ROOT / "docs" / "report.md").read_text()


def test_every_option_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    known = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help"}
    assert {"--html", "--wide", "--json"} <= known
    assert known <= set(re.findall(r"--[a-z]+", PAGE))


def test_records_are_where_it_says() -> None:
    rows = re.findall(r"^\| `aot-tune \w+[^`]*--json` \| `(\w+)` \| `([\w/]+)\.py` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for record, path in rows:
        assert "schema" in getattr(importlib.import_module(path.replace("/", ".")), record).__struct_fields__


def test_pictures_are_small() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([\w-]+\.png)\)", PAGE)
    assert len(pictures) == 2
    for name in pictures:
        data = (ROOT / "docs" / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 150_000
    assert "(docs/report.md)" in (ROOT / "README.md").read_text()
