"""Budgets: all of one is used where there is work; if it is too short, the library is whole all the same."""

import io
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from project import Project

from aot_tune.cli.main import main
from aot_tune.compile import target_by_name
from aot_tune.pipeline.build_time import BuildTime, CompilerLoad
from aot_tune.pipeline.scheduling import tune_targets
from aot_tune.pipeline.scheduling.time_to_link import TO_CHECK, seconds_of_kept
from aot_tune.search.budget import Budget
from aot_tune.support.progress import Progress


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
    assert f"NOTE thrice, twice: {told}" in said
    report = json.loads((project.folder / "build" / "report.json").read_bytes())
    assert [o["note"] for o in report["operators"]] == [told, told]


@pytest.mark.alone
@pytest.mark.slow
def test_a_budget_is_used_and_kept_where_there_is_work(tmp_path: Path) -> None:
    """To tune and link, and to make records alone."""
    project = Project.make(tmp_path / "project", AOT_TUNE_EFFORT="exhaustive")
    project.change("problem(N=20000),", "*(problem(N=20000 + 40 * i) for i in range(400)),")
    project.configure(AOT_TUNE_BUDGET="24")
    said = project.build()
    assert "the budget ended before" in said
    done, link = map(int, re.findall(r"done in (\d+) s, about (\d+) s more to link", said)[0])
    assert 0.9 * 24 <= done + link <= 24 + 1.5, said
    project.add("thrice")
    said = project.ask("tune", project.folder, "--output", project.folder / "tuning", "--budget", 16)
    (budget,), (done,) = re.findall(r"budget ([\d.]+) s, effort", said), re.findall(r"done in (\d+) s", said)
    assert float(budget) <= 16, said  # configuring took the rest
    assert 0.9 * float(budget) <= int(done) <= float(budget) + 1, said


def test_another_estimate_of_the_link_takes_nothing_from_what_is_tuned_next() -> None:
    """Such as variants for older CPUs."""
    now = [0.0]

    def clock() -> float:
        return now[0]

    turn = BuildTime(Budget(100.0, clock), 2).turn(Progress(io.StringIO(), clock), "cpu", kept=20.0, more=16.0)
    lefts = [turn.left]
    for link in (30.0, 10.0):
        turn.keep(link)
        lefts.append(turn.left)
    assert lefts == [64.0, 54.0, 74.0]
    now[0] = 74.0
    assert turn.over
    assert turn.spent == 74.0


def test_a_neighbour_that_has_the_device_costs_a_part_of_the_budget_nothing_but_the_build_its_time() -> None:
    """Else the stated time for older CPUs would run out while another build measures, and end this one."""
    now = [0.0]
    whole = Budget(100.0, lambda: now[0])
    part = whole.part(1, kept=10.0, most=30.0)
    assert part.patience == 90.0
    with part.waiting():
        now[0] = 50.0
        assert (part.left, part.spent, whole.left) == (30.0, 0.0, 50.0)
        with part.waiting():  # another device of it
            now[0] = 55.0
    now[0] = 60.0
    assert (part.left, part.spent, part.patience) == (25.0, 5.0, 30.0)
    with part.waiting():
        now[0] = 80.0
        assert (part.left, part.patience) == (10.0, 10.0)
    endless = Budget(None, lambda: now[0])
    with endless.waiting():
        assert endless.part(2, most=7.0).patience == float("inf")


def test_the_link_s_time_does_not_count_what_is_done_before_it_but_after_tuning() -> None:
    """Such as the survey. `tuned` moves on by its seconds; the time to choose stays the link's."""
    now = [5.0]
    time = BuildTime(Budget(None), 2)
    for survey in (10.0, 3.0):
        with time.not_after_tuning(lambda: now[0]):
            now[0] += survey
        now[0] += 2.0  # choosing
    assert now[0] - (time.tuned or 0.0) == 4.0


@pytest.mark.parametrize(("budget", "left"), [(None, 30.0), (200.0, 20.0)])
def test_what_the_link_takes_shortens_a_turn_only_within_a_budget(
    monkeypatch: pytest.MonkeyPatch, budget: float | None, left: float
) -> None:
    """The time for older CPUs is stated, with or without one."""
    progress = Progress(io.StringIO(), lambda: 0.0)
    session: Any = SimpleNamespace(
        time=BuildTime(Budget(budget, lambda: 0.0), 2), progress=progress, jobs_of=lambda _: SimpleNamespace(count=2)
    )
    turn = session.time.turn(progress, "cpu", kept=10.0, most=30.0)
    monkeypatch.setattr(tune_targets, "seconds_after", lambda _session: 20.0)
    pool: Any = SimpleNamespace(turn=turn, devices=[])
    tune_targets.plan_on(session, pool, [], quiet=True)[1].compiled()
    assert turn.left == left


def test_what_records_choose_is_expected_to_be_compiled_and_checked_after_tuning() -> None:
    here, older = (target_by_name(f"cpu-x86-64-v{level}") for level in (4, 3))
    devices = {here.name: "a CPU", older.name: "a CPU"}
    session: Any = SimpleNamespace(
        options=SimpleNamespace(mode="auto"), links=True, targets=[older, here], older=older, operators={"gemm": None},
        device_for=lambda target: devices[target.name], is_recorded=lambda _device: False,
        databases=[SimpleNamespace(operator=o, targets=[here.name, older.name]) for o in ("gemm", "softmax")],
        time=SimpleNamespace(load=CompilerLoad(2, granted=0.5, each=3.0)),
    )  # fmt: skip
    each = 3.0 / 2 / 0.5 + TO_CHECK
    assert seconds_of_kept(session)() == pytest.approx(8 * each)  # for older CPUs; the others are tuned
    session.is_recorded = lambda _device: True
    assert seconds_of_kept(session)() == pytest.approx(16 * each)
    session.options.mode = "tune"
    assert seconds_of_kept(session)() == 0


def test_the_log_of_a_build_adds_up_and_is_a_trace(
    tuned: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = tuned.folder / "build"
    events = [json.loads(line) for line in (build / "build.jsonl").read_text().splitlines()]
    of: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        of.setdefault(event.get("cat", event["name"]), []).append(event)
    (whole,) = of["build"]
    stages = sum(event["dur"] for event in of["stage"])
    assert 0.8 * whole["dur"] - 3e5 <= stages <= whole["dur"]
    assert {event["args"]["status"] for event in of["compile"]} == {"ok"}
    kernels = {name.partition("_")[0] for event in of["screen"] for name in event["args"]["ns"]}
    assert kernels == {"generic", "loop"}
    (kept,) = (event["args"]["kept"] for event in of["choice"])
    assert {name.partition("_")[0] for name in kept} <= kernels
    assert any(event["name"].startswith("tried ") or "done in" in event["name"] for event in of["line"])
    rows: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] in ("compile", "screen", "race"):
            rows.setdefault(event["tid"], []).append(event)
    for row in rows.values():  # viewers show what overlaps wrongly
        row.sort(key=lambda event: float(event["ts"]))
        assert all(a["ts"] + a["dur"] <= b["ts"] + 3000 for a, b in itertools.pairwise(row))
    assert main(["report", "--build", str(build), "--trace", str(tmp_path / "trace.json")]) == 0
    (tmp_path / "cut.jsonl").write_text((build / "build.jsonl").read_text() + '{"ph": "X", "na\n{"ph": "X"\n')
    assert main(["report", "--build", str(tmp_path / "cut.jsonl"), "--trace", str(tmp_path / "trace.json")]) == 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == events
    assert main(["report", "--trace", str(tmp_path / "trace.json")]) == 1
    assert "--trace needs --build" in capsys.readouterr().err
