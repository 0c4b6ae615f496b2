"""The measurement store: keys, races, modes, speed."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundled import OPERATORS

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.database import MeasurementStore, operator_digest
from aot_tune.spec import Operator, problem


def measured(candidate: str = "c1", digest: str = "o1", *, m: int = 16, **fields: object) -> Measurement:
    values: dict[str, object] = {"device": "dev", "policy": "pol", "status": "ok", "screen": (10.5, 11.25)}
    return Measurement(candidate=candidate, code=digest, problem=problem(M=m, N=64), **(values | fields))


def shelf(root: Path | None, mode: str = "rw", **changes: str):
    parts = {"name": "gemm", "contract": "con", "device": "dev", "policy": "pol"} | changes
    return MeasurementStore(root, mode=mode).operator(**parts, baselines={"numpy": "2.4"})


def test_what_is_put_is_found_by_another_process(tmp_path: Path) -> None:
    kept = measured(phases={"load": 0.5}, bitwise=True, error=0.125, reason="é", leak=3, overhead=1.5)
    shelf(tmp_path).put(kept)
    assert shelf(tmp_path).find("c1", "o1", kept.problem) == kept


@pytest.mark.parametrize("change", ["name", "contract", "device", "policy"])
def test_every_part_of_the_identity_counts(tmp_path: Path, change: str) -> None:
    shelf(tmp_path).put(measured())
    assert shelf(tmp_path).find("c1", "o1", problem(M=16, N=64)) is not None
    assert shelf(tmp_path, **{change: "other"}).find("c1", "o1", problem(M=16, N=64)) is None


def test_baselines_count_by_version(tmp_path: Path) -> None:
    shelf(tmp_path).put(measured("baseline:numpy", ""))
    assert shelf(tmp_path).find("baseline:numpy", "", problem(M=16, N=64)) is not None
    newer = MeasurementStore(tmp_path).operator("gemm", "con", "dev", "pol", baselines={"numpy": "2.5"})
    assert newer.find("baseline:numpy", "", problem(M=16, N=64)) is None
    assert shelf(tmp_path).find("baseline:torch", "", problem(M=16, N=64)) is None


def test_races_are_found_whole_or_not_at_all(tmp_path: Path) -> None:
    race = [measured("c1", "o1", final=(1.0, 2.0), race="r"), measured("c2", "o2", final=(3.0, 4.0), race="r")]
    race.append(measured("baseline:numpy", "", final=(5.0, 6.0), race="r"))
    shelf(tmp_path).put_race(race)
    names = [(m.candidate, m.code) for m in race]
    where = problem(M=16, N=64)
    assert shelf(tmp_path).find_race(names, where) == race
    assert shelf(tmp_path).find_race(names[::-1], where) == race[::-1]
    assert shelf(tmp_path).find_race(names[:2], where) is None
    assert shelf(tmp_path).find_race([*names, ("c3", "o3")], where) is None
    assert shelf(tmp_path).find_race(names, problem(M=1, N=64)) is None
    assert shelf(tmp_path).find("c1", "o1", where) is None  # a race is not a screen


def test_modes(tmp_path: Path) -> None:
    where = problem(M=16, N=64)
    shelf(tmp_path).put(measured())
    files = sorted(tmp_path.rglob("*"))
    reading = shelf(tmp_path, "ro")
    reading.put(measured("c2", "o2"))
    assert reading.find("c1", "o1", where) is not None
    assert reading.find("c2", "o2", where) is not None
    assert sorted(tmp_path.rglob("*")) == files
    fresh = shelf(tmp_path, "fresh")
    assert fresh.find("c1", "o1", where) is None
    fresh.put(measured(screen=(99.0,)))
    assert fresh.find("c1", "o1", where) == measured(screen=(99.0,))
    assert shelf(tmp_path).find("c1", "o1", where) == measured(screen=(99.0,))
    off = shelf(tmp_path / "none", "off")
    off.put(measured())
    assert off.find("c1", "o1", where) is not None
    assert not (tmp_path / "none").exists()


def replaced(operator: Operator, **changes: object) -> Operator:
    fields = {n: getattr(operator, n) for n in Operator.__dataclass_fields__ if not n.startswith("_")}
    return Operator(**(fields | changes))  # type: ignore[arg-type]


def test_a_contract_is_what_results_are_checked_against() -> None:
    operator = OPERATORS["softmax"]
    before = operator_digest(operator)
    assert operator_digest(replaced(operator, workload=operator.workload_for("cpu")[:1])) == before
    assert operator_digest(replaced(operator, documentation="other", baselines=())) == before
    kept = tuple(k for k in operator.kernels if k.generic)
    assert operator_digest(replaced(operator, kernels=kept)) == before
    assert operator_digest(replaced(operator, tolerance=8.0)) != before
    assert operator_digest(replaced(operator, reference=lambda xp, call: {})) != before
    assert operator_digest(replaced(operator, name="another")) != before
