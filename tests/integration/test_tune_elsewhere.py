"""`aot-tune tune`: a project tuned for its records alone, interrupted and gone on with, and then built from them."""

import os
import re
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from environments import ROOT, run
from project import Project, descendants, read_until, shadow_modules, start, wait_until_gone

from aot_tune.cli.tune_command import Tuned


def measured(said: str) -> tuple[int, int]:
    """Measurements made, and those known from before."""
    counts = re.search(r": (\d+) measurements made, (\d+) known from before", said)
    assert counts is not None, said
    return int(counts[1]), int(counts[2])


@pytest.mark.slow
def test_records_are_made_without_a_build_which_then_measures_nothing(tmp_path: Path) -> None:
    """FAULTS 89: nor does a process import from the current folder."""
    made = Project.make(tmp_path / "project")
    before = descendants(os.getpid())
    with start(made.command("tune", made.folder), env=made.environment()) as process:
        read_until(process, "tried 1 of 14")
        os.kill(process.pid, signal.SIGKILL)
    wait_until_gone(before, 20.0)
    assert not [p for p in made.folder.rglob("*.jsonl") if "cache" not in p.parts]

    out = tmp_path / "records"
    shadow_modules(tmp_path / "shadow")
    script = [sys.executable, "-B", ROOT / "aot_tune" / "support" / "start.py", "aot_tune.cli.main"]  # as `aot-tune` is
    tune = [*script, "tune", made.folder, "-o", out, "--target", "cpu", "--json"]
    said = run(tune, env=made.environment(), cwd=tmp_path / "shadow")
    new, known = measured(said)
    assert new + known == 14
    assert 1 <= known < 14
    (record,) = out.rglob("*.jsonl")
    (library,) = msgspec.json.decode(said[said.rindex("\n{\n") :], type=Tuned).libraries
    assert (library.library, library.error, library.notes) == ("tiny", "", ())
    assert [(r.path, r.operator, r.problems) for r in library.records] == [(str(record), "twice", 2)]
    assert {p.name for p in made.folder.iterdir()} == {"CMakeLists.txt", "templates", "cache", "compiler"}

    made.configure()
    assert measured(made.build()) == (0, 14)
    made.ask("records", "export", tmp_path / "exported", "--library", "tiny")
    assert (tmp_path / "exported" / record.relative_to(out)).read_bytes() == record.read_bytes()
