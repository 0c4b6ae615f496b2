"""`AOT_TUNE_MODE=replay-or-generic`: a CI builds what its records are behind of, the same files every time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from environments import run
from project import Project

FILES = ("variants.a", "manifest.json", "report.json", "dispatch.cpp")


@pytest.mark.slow
def test_records_that_lag_behind_cost_variants_and_no_build(tmp_path: Path) -> None:
    made = Project.make(tmp_path / "project", AOT_TUNE_TARGETS="cpu-x86-64-v2")
    made.change("(1, 4, 16, 64, 256)", "(1, 64)")
    made.add("thrice", ("2 * call.x", "3 * call.x", "operator.py"), ("2 *", "3 *", "generic.cpp.j2"),
             ("2 *", "3 *", "loop.cpp.j2"))  # fmt: skip
    made.configure()
    made.build()
    run(made.command("record", made.folder / "tuning", "--library", "tiny"), env=made.environment())
    given = ("--database", made.folder / "tuning")
    tuned = made.winners()

    made.configure(*given, AOT_TUNE_MODE="replay-or-generic")
    assert "NOTE" not in made.build()
    assert made.winners() == tuned

    made.change("t < {{ TIMES }}; ++t", "t < {{ TIMES }}; t += 1", "loop.cpp.j2")
    made.configure(*given, AOT_TUNE_MODE="replay")
    assert "the source of loop" in made.build(status=1)
    built = []
    for i in range(2):  # as on another machine
        made.configure(*given, build=f"build{i}", AOT_TUNE_MODE="replay-or-generic")
        said = made.build(f"build{i}")
        assert "NOTE twice: NOT TUNED for cpu-x86-64-v2, the generic variant serves: " in said
        assert "measurements made" not in said
        built.append([(made.folder / f"build{i}" / name).read_bytes() for name in FILES])
        shutil.rmtree(made.folder / "cache")
    assert built[0] == built[1]
    kinds = {o["name"]: {v["kernel"] for v in o["variants"]} for o in made.manifest("build0")["operators"]}
    assert kinds == {"twice": {"generic"}, "thrice": {"generic", "loop"}}
    report = json.loads((made.folder / "build0" / "report.json").read_bytes())
    assert report["mode"] == "replay-or-generic"
    assert "NOT TUNED" in next(o["note"] for o in report["operators"] if o["operator"] == "twice" and o["note"])
