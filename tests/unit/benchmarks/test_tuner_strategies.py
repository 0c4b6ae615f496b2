"""The benchmarks of the tuning itself: what they tune, how they judge choices, what they read from a build's output."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import BENCHMARKS

from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import WorkerError

sys.path.insert(0, str(BENCHMARKS))
import repeated
from devices import rate
from projects import forget_measurements, spread_out, write_templates
from repeated import judge, table
from stats import Timing

LOG = """\
aot_tune: cuda-sm_90a: compiled 7 of 7, took 4 s
aot_tune: cuda-sm_90a: compiling took 0 s, measuring 20 s, both together 21 s
aot_tune: cuda-sm_90a: 300 measurements made, 0 known from before
"""


def test_a_project_has_so_many_problems_of_each_operator(tmp_path: Path) -> None:
    kept = write_templates(tmp_path / "templates", "cpu", 5, ["softmax", "gemm"])
    assert {name: len(ids) for name, ids in kept.items()} == {"gemm": 3, "softmax": 2}
    assert sorted(p.parent.name for p in tmp_path.glob("templates/*/operator.py")) == ["gemm", "softmax"]
    for name, ids in kept.items():
        operator = load_operator(tmp_path / "templates" / name)
        assert {p.id for p in operator.workload_for("cpu")} == set(ids)


def test_problems_are_taken_from_the_smallest_to_the_largest(tmp_path: Path) -> None:
    write_templates(tmp_path / "templates", "cpu", 1000, ["gemm"])
    operator = load_operator(tmp_path / "templates" / "gemm")
    taken = spread_out(operator, "cpu", 4)
    flops = [operator.flops.evaluate(operator.facts(p)) for p in taken]
    every = [operator.flops.evaluate(operator.facts(p)) for p in operator.workload_for("cpu")]
    assert flops == sorted(flops)
    assert (flops[0], flops[-1], len(flops)) == (min(every), max(every), 4)
    assert len(spread_out(operator, "cpu", 10_000)) == len(every)


def test_an_unknown_operator_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="softmaxx"):
        write_templates(tmp_path / "templates", "cpu", 3, ["softmaxx"])


def test_choices_are_as_good_within_noise_only() -> None:
    steady = Timing("a", tuple(100.0 + 0.01 * i for i in range(20)))
    near = Timing("b", tuple(100.5 + 0.01 * i for i in range(20)))
    far = Timing("c", tuple(103.0 + 0.01 * i for i in range(20)))
    noisy = Timing("d", tuple(103.0 + (40.0 if i % 2 else -40.0) for i in range(20)))
    row = judge("op", "N=1", ["a", "b", "a"], [{"a": steady, "b": near}])
    assert row.steady
    assert row.over_best["b"] == pytest.approx(0.005, abs=1e-4)
    one = {"a": steady, "c": far}
    assert not judge("op", "N=1", ["a", "c"], [one]).steady
    assert not judge("op", "N=1", ["a", "c"], [one, one, one]).steady
    turned = {"a": Timing("a", tuple(2.0 + t for t in steady.rounds)), "c": Timing("c", steady.rounds)}
    assert judge("op", "N=1", ["a", "c"], [one, turned, one]).steady, "one process has one ahead, another the other"
    assert judge("op", "N=1", ["a", "d"], [{"a": steady, "d": noisy}]).steady
    text = "\n".join(table([row], [], 60.0))
    assert "2 x a, 1 x b" in text
    assert "1 of 1 problems" in text


def test_the_rate_of_a_build_is_read_from_what_it_prints() -> None:
    assert rate(LOG) == 900.0
    with pytest.raises(SystemExit, match="measured nothing"):
        rate("aot_tune: cpu-x86-64-v3: 4 measurements made, 0 known from before\n")


def test_objects_are_kept_when_measurements_go(tmp_path: Path) -> None:
    for name in ("objects", "measurements"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one").write_text("")
    (tmp_path / "pruned").write_text("")
    forget_measurements(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["objects"]
    forget_measurements(tmp_path / "nowhere")


def test_a_problem_that_cannot_be_raced_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tunes before the races take many minutes."""

    class Long:
        target = SimpleNamespace(name="cuda-sm_90a")

        def __init__(self, *_given: object) -> None:
            pass

        def __enter__(self) -> Long:
            return self

        def __exit__(self, *_failure: object) -> None:
            pass

        def race(self, operator: str, _problem: str, names: list[str]) -> dict[str, Timing]:
            if operator == "bad":
                raise WorkerError("no worker can hold problem 'N=1'")
            return {name: Timing(name, (1.0, 1.0, 1.0)) for name in names}

    def report(operator: str) -> SimpleNamespace:
        return SimpleNamespace(
            operator=operator, target="cuda-sm_90a", problems=[SimpleNamespace(problem="N=1", picked="a")]
        )

    monkeypatch.setattr(repeated, "LongRace", Long)
    tuned = SimpleNamespace(folder=Path(), report=SimpleNamespace(operators=[report("bad"), report("good")]))
    rows, left_out = repeated.race_chosen([tuned], "cuda", 3, io.StringIO())
    assert [row.operator for row in rows] == ["good"]
    assert left_out == ["bad: no worker can hold problem 'N=1'"]
