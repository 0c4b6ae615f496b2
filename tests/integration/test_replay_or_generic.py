"""`AOT_TUNE_MODE=replay-or-generic`: a CI builds what its records are behind of, the same files every time."""

from __future__ import annotations

import json
import shutil

import pytest
from project import Project

FILES = ("variants.a", "manifest.json", "report.json", "dispatch.cpp")


@pytest.mark.slow
def test_records_that_lag_behind_cost_variants_and_no_build(tuned: Project) -> None:
    made = tuned
    made.add("thrice", ("2 * call.x", "3 * call.x", "operator.py"), ("2 *", "3 *", "generic.cpp.j2"),
             ("2 *", "3 *", "loop.cpp.j2"))  # fmt: skip
    made.configure()
    made.build()
    made.record()
    given = ("--database", made.folder / "tuning")
    winners, target = made.winners(), made.manifest()["operators"][0]["variants"][-1]["target"]

    made.configure(*given, AOT_TUNE_MODE="replay-or-generic")
    assert "NOTE" not in made.build()
    assert made.winners() == winners

    made.change("t < {{ TIMES }}; ++t", "t < {{ TIMES }}; t += 1", "loop.cpp.j2")
    made.configure(*given, AOT_TUNE_MODE="replay")
    assert "the source of loop" in made.build(status=1)
    built = []
    for i in range(2):  # as on another machine
        made.configure(*given, build=f"build{i}", AOT_TUNE_MODE="replay-or-generic")
        said = made.build(f"build{i}")
        assert f"NOTE twice: NOT TUNED for {target}, the generic variant serves: " in said
        assert "measurements made" not in said
        built.append([(made.folder / f"build{i}" / name).read_bytes() for name in FILES])
        shutil.rmtree(made.folder / "cache")
    assert built[0] == built[1]
    kinds = {o["name"]: {v["kernel"] for v in o["variants"]} for o in made.manifest("build0")["operators"]}
    assert kinds == {"twice": {"generic"}, "thrice": {"generic", "loop"}}
    report = json.loads((made.folder / "build0" / "report.json").read_bytes())
    assert report["mode"] == "replay-or-generic"
    assert "NOT TUNED" in next(o["note"] for o in report["operators"] if o["operator"] == "twice" and o["note"])
