"""The benchmarks of the search: reading spaces, scoring, and the regret of the final choice."""

from __future__ import annotations

import gzip
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import search
import selection
from spaces import best_so_far, find_spaces, read_space
from tuner_strategies import TunerSearch, available

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.protocol.measurement_records import Policy


def written(path: Path, tail: str = "}\n}") -> Path:
    """A space of 240 configs: the best takes 1 ms, all with Y=4 failed; `tail` is how its file ends."""
    names = ["X", "Y", "layout"]
    records = []
    for x in range(20):
        for y in (1, 2, 3, 4):
            for layout in ("row", "col", "tiled"):
                time: Any = 1.0 + 0.1 * abs(x - 7) + 0.05 * abs(y - 2) + 0.3 * (layout != "tiled")
                record = {"X": x, "Y": y, "layout": layout, "time": "CompilationFailedConfig" if y == 4 else time}
                if y < 4:
                    record["times"] = [time - 0.001, time + 0.001] * 4
                records.append(f'"{x},{y},{layout}": {json.dumps(record)}')
    values = {"X": list(range(20)), "Y": [1, 2, 3, 4], "layout": ["row", "col", "tiled"]}
    head = {
        "device_name": "d",
        "kernel_name": "k",
        "tune_params_keys": names,
        "tune_params": values,
        "objective": "time",
    }
    text = json.dumps(head)[:-1] + ', "cache": {\n' + ",\n".join(records) + tail
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("tail", ["}\n}", "", ",", ",\n"])
@pytest.mark.parametrize("name", ["space.json", "space.json.gz"])
def test_files_are_read_finished_or_not(tmp_path: Path, name: str, tail: str) -> None:
    space = read_space(written(tmp_path / name, tail))
    assert (space.name, len(space.costs), space.best) == ("space", 240, 1.0)
    assert space.cost({"layout": "tiled", "X": 7, "Y": 2}) == 1.0
    assert sum(math.isinf(c) for c in space.costs.values()) == 60
    assert len(space.times) == 180


@pytest.mark.parametrize("text", ["[]", "{", '{"cache": {}}', '{"tune_params_keys": ["X"], "cache": {"1": {"X": 1}}}'])
def test_what_is_not_a_space_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(ValueError, match=r"s\.json"):
        read_space(tmp_path / "s.json")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        find_spaces([tmp_path / "nowhere.json"])


def test_a_score_is_the_share_of_the_best_so_far(tmp_path: Path) -> None:
    space = read_space(written(tmp_path / "s.json"))
    assert best_so_far(space, [math.inf, 4.0, 8.0, 2.0, math.inf]) == [0.0, 0.25, 0.25, 0.5, 0.5]
    assert [search.percentile([1.0, 2.0, 4.0], s) for s in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 4.0]


def test_ours_is_better_than_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Than uniform draws: those of Kernel Tuner, where it is installed, find the best of so few configs by luck."""
    monkeypatch.setattr(search, "available", lambda: False)
    space = read_space(written(tmp_path / "s.json"))
    ours, other = (search.score(space, name, 5, (10, 40)) for name in ("ours", "random"))
    assert ours.median[40] > 99.0
    assert ours.median[40] > other.median[40]
    assert ours.tenth[40] <= ours.median[40] <= 100.0
    assert len(search.run_ours(space, 0, 40, step=7)) == 40


def test_the_command_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a.json")
    written(tmp_path / "b.json.gz")
    given = ["--strategies", "ours,random", "--seeds", "2", "--budgets", "5,20"]
    assert search.main([str(tmp_path), *given, "--json", str(tmp_path / "o"), "--markdown", str(tmp_path / "m")]) == 0
    text = (tmp_path / "m").read_text()
    assert text.strip() in capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("###")] == [
        "### a, 2 seeds",
        "### b, 2 seeds",
        "### mean of 2 spaces, 2 seeds",
    ]
    found = json.loads((tmp_path / "o").read_text())
    assert [(s["space"], s["strategy"]) for s in found] == [(s, t) for s in "ab" for t in ("ours", "random")]


def test_the_command_refuses_what_it_cannot_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path / "a.json"))
    for wrong in ([path, "--seeds", "0"], [path, "--budgets", "x"], [str(tmp_path / "b.json")]):
        with pytest.raises(SystemExit) as caught:
            search.main(wrong)
        assert caught.value.code == 2
    assert "no recorded space" in capsys.readouterr().err


@pytest.mark.skipif(not available(), reason="Kernel Tuner is not installed")
@pytest.mark.parametrize("strategy", ["random_sample", "genetic_algorithm", "simulated_annealing"])
def test_strategies_of_kernel_tuner_run_on_recorded_times(tmp_path: Path, strategy: str) -> None:
    space = read_space(written(tmp_path / "s.json"))
    theirs = TunerSearch(space)
    costs = theirs.run(strategy, 1, 30)
    assert 0 < len(costs) <= 30
    assert costs == theirs.run(strategy, 1, 30)
    assert set(costs) <= set(space.costs.values())
    with pytest.raises(ValueError, match="no strategy 'luck'"):
        theirs.run("luck", 1, 30)


def test_the_best_is_chosen_where_there_is_no_noise() -> None:
    times = {str(i): [1e6 * (1.0 + 0.05 * i)] * 8 for i in range(12)}
    found = selection.chosen(times, policy_for("cuda", Policy()), random.Random(3))
    assert found == dict.fromkeys(selection.STAGES, "0")


def test_regret_is_what_the_choice_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "s.json")
    found = selection.regrets(read_space(path), 4, None, "cuda")
    assert [r.choice for r in found] == list(selection.STAGES)
    assert all(r.candidates == 180 and 0 <= r.mean <= r.most < 1.0 for r in found)
    few = selection.regrets(read_space(path), 3, 20, "cuda")
    assert all(r.candidates == 20 for r in few)
    assert selection.main([str(path), "--repetitions", "2"]) == 0
    assert "| s | race | 180 | 2 |" in capsys.readouterr().out


def test_repetitions_that_do_not_fit_the_means_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "s.json")
    data = json.loads(path.read_text())
    for record in data["cache"].values():
        record["times"] = [7.0, 7.0]
    path.write_text(json.dumps(data))
    assert selection.main([str(path), "--repetitions", "2"]) == 1
    assert "s: left out" in capsys.readouterr().err
