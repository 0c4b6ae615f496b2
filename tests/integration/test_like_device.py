"""A build on a device without a record of its own begins with what won on a like device."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from project import Project

from aot_tune.bench.devices.family import make_device
from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.database import OperatorDatabase, load_databases, save_database

Change = Callable[[OperatorDatabase], OperatorDatabase]


@pytest.fixture
def project(tuned: Project, tmp_path: Path) -> Project:
    """A project whose first build was recorded below `tuning`; nothing of its cache is left."""
    tuned.env["AOT_TUNE_CACHE_DIR"] = str(tmp_path / "another cache")
    return tuned


def recorded_elsewhere(project: Project, change: Change = lambda d: d) -> None:
    """Write the record as another model of CPU would have it."""
    (database,) = load_databases(project.folder / "tuning")
    shutil.rmtree(project.folder / "tuning")
    other = make_device("cpu", "Another CPU", "2t", {**database.device.identity, "model": "99"})
    measurements = tuple(msgspec.structs.replace(m, device=other.digest) for m in database.measurements)
    changed = change(msgspec.structs.replace(database, device=other, measurements=measurements))
    save_database(project.folder / "tuning", changed)


def built(project: Project, **given: str) -> tuple[str, int]:
    """What the build said, and how many candidates it compiled."""
    project.compiler.clear()
    project.configure("--database", project.folder / "tuning", **given)
    return project.build(**given), project.compiler.candidates()


def with_another_winner(database: OperatorDatabase) -> OperatorDatabase:
    """The record as if TIMES=256, which is slow, had been a bit faster there than TIMES=1."""
    configs = {c.id: c.candidate.config.get("TIMES") for c in database.candidates}
    best = {m.problem.id: m for m in database.measurements if configs.get(m.candidate) == 1}
    changed = tuple(
        msgspec.structs.replace(m, **_faster(best[m.problem.id])) if configs.get(m.candidate) == 256 else m
        for m in database.measurements
    )
    return msgspec.structs.replace(database, measurements=changed)


def _faster(m: Measurement) -> dict[str, Any]:
    final = m.final and tuple(0.99 * t for t in m.final)
    return {"screen": tuple(0.99 * t for t in m.screen), "final": final, "race": m.race}


def test_its_winners_race_and_nothing_else_is_tried(project: Project) -> None:
    recorded_elsewhere(project)
    said, compiled = built(project)
    assert "twice: begins with the record of cpu-another-cpu-" in said
    assert "names winners of 2 of 2 problems, the races here agree on 2; 0 are searched" in said
    assert compiled == 2  # the winner and the generic variant; the other four configs are not made
    assert any("loop" in name for name, _ in project.winners())
    assert "began with the record of cpu-another-cpu-" in project.report()
    later = 'Kernel("later", "twice/loop.cpp.j2", parameters=(Parameter("TIMES", (2,)), Parameter("UNROLL", (1,)))),'
    project.change('        Kernel("generic"', f'        {later}\n        Kernel("generic"')
    said, compiled = built(project)
    assert "twice: kernels that it does not know are tried on all problems: later" in said
    assert "the races here agree on 2; 0 are searched" in said
    assert compiled == 1


def test_nothing_is_tried_again_beside_a_record_of_such_a_build(project: Project) -> None:
    recorded_elsewhere(project)
    built(project)
    project.record()
    project.env["AOT_TUNE_CACHE_DIR"] += " that is new"
    said, compiled = built(project)
    assert "twice: begins with the record of cpu-" in said
    assert "0 measurements made" in said
    assert compiled == 2


def test_where_the_race_disagrees_the_search_goes_on_but_not_in_a_quick_build(project: Project) -> None:
    recorded_elsewhere(project, with_another_winner)
    said, compiled = built(project, AOT_TUNE_EFFORT="quick")
    assert "the races here agree on 0; 0 are searched" in said
    assert compiled == 3  # both that it names, and the generic variant
    said, compiled = built(project)
    assert "names winners of 2 of 2 problems, the races here agree on 0; 2 are searched" in said
    assert re.search(r"the record does not hold here on 'N=20000': its winner is \d+% behind another", said)
    assert compiled == 3  # the other configs
    assert "began with the record of cpu-another-cpu-" in project.report()


def test_a_winner_that_does_not_compile_or_is_wrong_here_is_told_and_replaced(project: Project) -> None:
    recorded_elsewhere(project)
    loop = project.templates / "twice" / "loop.cpp.j2"
    whole = loop.read_text()
    loop.write_text("{% if TIMES == 1 %}#error no such instruction\n{% endif %}" + whole)
    said, _ = built(project)
    assert re.search(r"twice: \d of them are of another version of their kernel, and race as they are now", said)
    assert "the record does not hold here on 'N=20000': its winner does not compile" in said
    assert "TIMES=4" in project.report()
    loop.write_text(whole.replace('"2 * "', '("3 * " if TIMES == 1 else "2 * ")'))
    said, _ = built(project)
    assert "the record does not hold here on 'N=20000': its winner is wrong-result" in said
    assert "TIMES=4" in project.report()


def test_a_winner_of_another_version_of_its_kernel_is_told(project: Project) -> None:
    recorded_elsewhere(project)
    project.change("(1, 4, 16, 64, 256)", "(2, 4, 16, 64, 256)")
    said, _ = built(project)
    assert "twice: 1 recorded candidates are not raced: kernel loop no longer has this config" in said
    assert "names winners of 0 of 2 problems" in said


def test_what_the_record_does_not_name_is_searched_and_a_thorough_build_searches_everywhere(project: Project) -> None:
    recorded_elsewhere(project)
    project.change("problem(N=60000))", "problem(N=60000), problem(N=90000))")
    said, compiled = built(project)
    assert "names winners of 2 of 3 problems, the races here agree on 2; 1 are searched" in said
    assert compiled == 6
    searched = re.findall(r"began with no record, then a search: (\d+) problems", project.report())
    assert searched == ["1"]
    assert "begins with" not in built(project, AOT_TUNE_EFFORT="exhaustive")[0]
