"""When a build began, and how long its links took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aot_tune.support import wall_clock as clock

LINK = """
import sys, time
from pathlib import Path
from aot_tune.support.wall_clock import note_linked, note_tuned
folder, memory, granted, seconds, checks = Path(sys.argv[1]), Path(sys.argv[2]), *map(float, sys.argv[3:])
note_tuned(folder, memory, granted=granted)
for _ in range(int(checks)):
    time.sleep(seconds)
    note_linked(folder)
"""


def link(folder: Path, memory: Path, *, seconds: float, granted: float = 1.0, checks: int = 1) -> None:
    """What a build and the checks of its linked files say, one process in the place of all."""
    argv = [sys.executable, "-c", LINK, str(folder), str(memory), str(granted), str(seconds), str(checks)]
    subprocess.run(argv, check=True)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "links" / "ops.json"


def test_the_configure_that_went_right_before_counts_and_no_other(tmp_path: Path) -> None:
    own = clock.began_at(clock.os.getpid())
    for planned, counted in ((own - 0.5, 30.0), (own - 60.0, 0.0), (own + 60.0, 0.0)):
        clock.write_wall(tmp_path, clock.Wall(began=own - 30.0, planned=planned))
        assert clock.spent_before(tmp_path) == pytest.approx(clock.since_boot() - own + counted, abs=0.1)


def test_the_longest_of_the_last_three_links_counts(tmp_path: Path, memory: Path) -> None:
    for seconds in (0.6, 0.1, 0.2, 0.1):
        link(tmp_path, memory, seconds=seconds)
    assert clock.link_seconds(memory) == pytest.approx(0.2, abs=0.09)
    assert len(clock.link_times(memory)) == 3


def test_a_link_by_a_later_command_says_nothing(tmp_path: Path, memory: Path) -> None:
    clock.write_wall(tmp_path, clock.Wall(tuned=clock.began_at(clock.os.getpid()) - 3600.0, memory=str(memory)))
    clock.note_linked(tmp_path)
    assert clock.link_seconds(memory) is None


def test_without_a_cache_and_with_damaged_files_nothing_is_known(tmp_path: Path, memory: Path) -> None:
    clock.note_tuned(tmp_path, None)
    clock.note_linked(tmp_path)
    assert clock.link_seconds(None) is None
    memory.parent.mkdir(parents=True)
    memory.write_text("{}")
    (tmp_path / "clock.json").write_text("nonsense")
    assert clock.link_seconds(memory) is None
    assert clock.spent_before(tmp_path) >= 0
