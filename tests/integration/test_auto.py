"""Mode auto beside a committed record: only what the record does not know is compiled and measured."""

import re
from pathlib import Path

import pytest
from environments import Compiler
from project import Project


@pytest.fixture
def project(tuned: Project, tmp_path: Path) -> Project:
    """A project whose first build was recorded below `tuning/`; nothing of its cache is left."""
    tuned.env["AOT_TUNE_CACHE_DIR"] = str(tmp_path / "another cache")
    return tuned


def built(project: Project, compiler: Compiler) -> tuple[int, int, int]:
    """Measurements made, measurements known from before, and candidates compiled."""
    compiler.clear()
    project.configure("--database", project.folder / "tuning")
    said = project.build()
    counts = re.search(r": (\d+) measurements made, (\d+) known from before \((\d+) from the records\)", said)
    assert counts is not None, said
    assert counts[2] == counts[3]
    return int(counts[1]), int(counts[2]), compiler.candidates()


def test_what_is_recorded_is_not_measured_again(project: Project) -> None:
    measured, known, compiled = built(project, project.compiler)
    assert (measured, known) == (0, 2 * 6)  # two problems, five configs and the generic variant
    assert compiled == len(project.winners()) == 2


def test_a_new_config_that_is_slow_is_screened_alone(project: Project) -> None:
    before = project.winners()
    project.change("(1, 4, 16, 64, 256)", "(1, 4, 16, 64, 128, 256)")
    measured, known, compiled = built(project, project.compiler)
    assert (measured, known) == (2, 2 * 6)  # no race: it is not among the best
    assert compiled == len(before) + 1
    assert project.winners() == before


def test_a_new_config_that_is_fast_races_with_the_best_of_the_record(project: Project) -> None:
    project.change(
        'constraints=(parameter("UNROLL") == 1,)',
        'constraints=((parameter("UNROLL") == 1) | (parameter("TIMES") == 1),)',
    )
    measured, known, compiled = built(project, project.compiler)
    assert known == 2 * 6
    assert measured > 2  # screens on two problems, then races
    assert compiled < 6  # itself, the generic variant, and of the record those that it raced with
