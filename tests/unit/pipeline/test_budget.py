"""A budget that is too short for tuning: the library is whole all the same, and what was left out is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from project import Project


@pytest.mark.slow
def test_generic_variants_are_built_whatever_the_budget(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project")
    project.add("thrice")
    project.configure(AOT_TUNE_BUDGET="1")
    said = project.build()
    assert "TOO LITTLE for the generic variants and the link" in said
    kept = {o["name"]: [v["kernel"] for v in o["variants"]] for o in project.manifest()["operators"]}
    assert kept == {"thrice": ["generic"], "twice": ["generic"]}
    told = "the budget ended before 2 of 2 problems were measured"
    assert f"NOTE      twice: {told}" in said
    report = json.loads((project.folder / "build" / "report.json").read_bytes())
    assert [o["note"] for o in report["operators"]] == [told, told]
