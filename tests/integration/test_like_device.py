"""A build on a device without a record of its own begins with what won on a like device."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest
from project import Project

from aot_tune.bench.devices.family import make_device
from aot_tune.database import load_databases, save_database


@pytest.fixture
def project(tuned: Project, tmp_path: Path) -> Project:
    """A project whose first build was recorded below `tuning`; nothing of its cache is left."""
    tuned.env["AOT_TUNE_CACHE_DIR"] = str(tmp_path / "another cache")
    return tuned


def recorded_elsewhere(project: Project) -> None:
    """Write the record as another model of CPU would have it."""
    (database,) = load_databases(project.folder / "tuning")
    shutil.rmtree(project.folder / "tuning")
    other = make_device("cpu", "Another CPU", "2t", {**database.device.identity, "model": "99"})
    measurements = tuple(msgspec.structs.replace(m, device=other.digest) for m in database.measurements)
    changed = msgspec.structs.replace(database, device=other, measurements=measurements)
    save_database(project.folder / "tuning", changed)


def built(project: Project, **given: str) -> tuple[str, int]:
    """What the build said, and how many candidates it compiled."""
    project.compiler.clear()
    project.configure("--database", project.folder / "tuning", **given)
    return project.build(**given), project.compiler.candidates()


def test_its_winners_race_and_nothing_else_is_tried(project: Project) -> None:
    recorded_elsewhere(project)
    said, compiled = built(project)
    assert "twice: begins with the record of cpu-another-cpu-" in said
    assert "names winners of 2 of 2 problems, the races here agree on 2; 0 are searched" in said
    assert compiled == 2  # the winner and the generic variant; the other four configs are not made
    assert any("loop" in name for name, _ in project.winners())
    assert "began with the record of cpu-another-cpu-" in said


def test_a_winner_that_does_not_compile_or_is_wrong_here_is_told_and_replaced(project: Project) -> None:
    recorded_elsewhere(project)
    loop = project.templates / "twice" / "loop.cpp.j2"
    whole = loop.read_text()
    loop.write_text("{% if TIMES == 1 %}#error no such instruction\n{% endif %}" + whole)
    said, _ = built(project)
    assert re.search(r"twice: \d of them are of another version of their kernel, and race as they are now", said)
    assert "the record does not hold here on 'N=20000': its winner does not compile" in said
    assert "TIMES=4" in said
    loop.write_text(whole.replace('"2 * "', '("3 * " if TIMES == 1 else "2 * ")'))
    said, _ = built(project)
    assert "the record does not hold here on 'N=20000': its winner is wrong-result" in said
    assert "TIMES=4" in said
