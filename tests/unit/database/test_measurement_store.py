"""The measurement store: keys, races, modes, speed."""

import random
import time
from pathlib import Path

import msgspec
import pytest
from bundled import OPERATORS
from databases import DEVICE, POLICY, SEEN, a_database, in_store, variants_of

from aot_tune.bench.protocol.measurement_records import Measurement, Policy
from aot_tune.database import MeasurementStore, compact_store, load_database, operator_digest
from aot_tune.spec import Operator, problem
from aot_tune.support.storage import CacheLocation


def measured(candidate: str = "c1", digest: str = "o1", *, m: int = 16, **fields: object) -> Measurement:
    values: dict[str, object] = {
        "device": DEVICE.digest,
        "policy": POLICY.digest,
        "status": "ok",
        "screen": (10.5, 11.25),
    }
    return Measurement(candidate=candidate, code=digest, problem=problem(M=m, N=64), **(values | fields))


def shelf(root: Path | None, mode: str = "rw", **changes: object):
    parts = {"name": "gemm", "contract": "con", "device": DEVICE, "policy": POLICY} | changes
    return MeasurementStore(root, mode=mode).operator(**parts, baselines={"numpy": "2.4"})


def test_what_is_put_is_found_by_another_process(tmp_path: Path) -> None:
    kept = measured(phases={"load": 0.5}, bitwise=True, error=0.125, reason="é", leak=3, overhead=1.5)
    shelf(tmp_path).put(kept)
    assert shelf(tmp_path).find("c1", "o1", kept.problem) == kept


OTHERS = {
    "name": "other",
    "contract": "other",
    "device": msgspec.structs.replace(DEVICE, identity={"model": "other"}),
    "policy": Policy(seed=1),
    "kind": "survey",
}


@pytest.mark.parametrize("change", OTHERS)
def test_every_part_of_the_identity_counts(tmp_path: Path, change: str) -> None:
    shelf(tmp_path).put(measured())
    assert shelf(tmp_path).find("c1", "o1", problem(M=16, N=64)) is not None
    assert shelf(tmp_path, **{change: OTHERS[change]}).find("c1", "o1", problem(M=16, N=64)) is None


def test_baselines_count_by_version(tmp_path: Path) -> None:
    shelf(tmp_path).put(measured("baseline:numpy", ""))
    assert shelf(tmp_path).find("baseline:numpy", "", problem(M=16, N=64)) is not None
    newer = MeasurementStore(tmp_path).operator("gemm", "con", DEVICE, POLICY, baselines={"numpy": "2.5"})
    assert newer.find("baseline:numpy", "", problem(M=16, N=64)) is None
    assert shelf(tmp_path).find("baseline:torch", "", problem(M=16, N=64)) is None


def test_races_are_found_whole_or_not_at_all(tmp_path: Path) -> None:
    """With the device's UUID, its clocks and what else was seen."""
    race = [
        measured("c1", "o1", final=(1.0, 2.0), race="r", seen=SEEN),
        measured("c2", "o2", final=(3.0, 4.0), race="r"),
    ]
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


def test_a_candidate_is_in_a_text_once_and_again_after_damage(tmp_path: Path) -> None:
    """What was measured of it does not depend on its line."""
    made = a_database()
    path, count = in_store(tmp_path, made), len({m.candidate for m in made.measurements if m.code})
    whole = path.read_bytes()
    assert whole.count(b'{"candidate":') == count
    in_store(tmp_path, made)
    assert path.read_bytes().count(b'{"candidate":') == count
    compact_store(CacheLocation(root=tmp_path, mode="rw"))
    assert len(path.read_bytes()) == len(whole)
    first = made.measurements[0]
    path.write_bytes(whole.replace(b'"source":"source4"', b'"source":"source5"', 1))
    store = MeasurementStore(tmp_path)
    mine = store.operator("gemm", made.contract, DEVICE, POLICY)
    kept = [m for m in made.measurements if m.code and mine.find(m.candidate, m.code, m.problem) is not None]
    assert store.damaged == 1
    assert kept == [m for m in made.measurements[1:] if m.code]
    assert first.candidate in {m.candidate for m in kept}
    in_store(tmp_path, made)
    assert path.read_bytes().count(b'"source":"source5"') == 0
    compact_store(CacheLocation(root=tmp_path, mode="rw"))
    assert path.read_bytes().count(b'{"candidate":') == count


def test_a_text_that_replaces_a_refused_one_has_the_candidate(tmp_path: Path) -> None:
    made = a_database()
    first = msgspec.structs.replace(made, problems=(), measurements=made.measurements[:1])
    path = in_store(tmp_path, first)
    whole = path.read_bytes()
    path.write_bytes(b"")
    path.chmod(0o666)
    assert in_store(tmp_path, first).read_bytes().count(b'{"candidate":') == whole.count(b'{"candidate":') == 1
    assert path.with_name(f"{path.name}.refused").exists()


@pytest.mark.parametrize("as_before", [False, True])
def test_a_text_that_others_write_anew_gets_the_candidates_of_what_is_added(tmp_path: Path, as_before: bool) -> None:
    """The new file may have the inode of the one before."""
    made = a_database()
    first, *others = made.measurements
    second = next(m for m in others if m.candidate == first.candidate)
    store = MeasurementStore(tmp_path).operator("gemm", made.contract, DEVICE, POLICY, baselines=made.baselines)
    store.put(first, variants_of(made))
    (path,) = (tmp_path / "measurements").glob("*.jsonl")
    if as_before:
        path.write_bytes(b"")
    else:
        path.rename(tmp_path / "before")
    store.put(second, variants_of(made))
    assert [m.candidate for m in load_database(path, stores=True).measurements] == [first.candidate]
    assert store.find(first.candidate, first.code, first.problem) is not None


def test_a_text_says_nothing_of_races_that_a_later_one_replaced_in_part(tmp_path: Path) -> None:
    """Its other entrants have their screens, if they have any. The same race twice is one."""
    made = a_database()
    store = MeasurementStore(tmp_path).operator("gemm", made.contract, DEVICE, POLICY, baselines=made.baselines)
    variants = variants_of(made)
    where = next(p for p in made.problems if sum(m.problem == p and m.final is not None for m in made.measurements) > 2)
    first, second, *rest = (m for m in made.measurements if m.problem == where and m.final)
    for again in (first, second):
        store.put(msgspec.structs.replace(again, final=None, race=None), variants)
    for _ in range(2):
        store.put_race([first, second, *rest], variants)
    (path,) = (tmp_path / "measurements").glob("*.jsonl")
    told = load_database(path, stores=True).measurements
    assert {m.candidate: m.final for m in told} == {m.candidate: m.final for m in (first, second, *rest)}
    store.put_race([msgspec.structs.replace(m, race="later") for m in (first, *rest)], variants)
    told = load_database(path, stores=True).measurements
    assert {m.candidate: (m.race, m.final) for m in told if m.final or m.candidate == second.candidate} == {
        second.candidate: (None, None),
        **{m.candidate: ("later", m.final) for m in (first, *rest)},
    }


def test_cuts_and_flipped_bytes_among_races_and_candidates_cost_their_group(tmp_path: Path) -> None:
    """Two groups if the byte was the end of the first. What is found is as it was measured."""
    made, rng = a_database(), random.Random(7)
    path = in_store(tmp_path, made)

    def found() -> list[list[Measurement] | None]:
        mine = MeasurementStore(tmp_path).operator("gemm", made.contract, DEVICE, POLICY, baselines=made.baselines)
        screens = [mine.find(m.candidate, m.code, m.problem) for m in made.measurements]
        raced = [[m for m in made.measurements if m.problem == p and m.final] for p in made.problems]
        races = [mine.find_race([(m.candidate, m.code) for m in race], race[0].problem) for race in raced]
        return [*([m] if m else None for m in screens), *races]

    whole, before = path.read_bytes(), found()
    assert None not in before
    end = b'{"end":{}}\n'
    ends = [at + len(end) for at in range(len(whole)) if whole.startswith(end, at)][1:]
    assert len(ends) == len(before)
    for length in [*ends, *(end - 1 for end in ends), *rng.sample(range(len(whole)), 100)]:
        path.write_bytes(whole[:length])
        count = sum(end <= length for end in ends)
        assert found() == before[:count] + [None] * (len(ends) - count)
    for at in rng.sample(range(len(whole)), 300):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ rng.randrange(1, 256)]) + whole[at + 1 :])
        now = found()
        assert now.count(None) <= 2
        assert all(a in (None, b) for a, b in zip(now, before, strict=True))


def test_old_times_of_other_code_go_when_a_text_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, day = time.time_ns(), 24 * 3600 * 10**9
    for age, candidate, code in (
        (40, "c1", "o1"),
        (40, "c2", "o2"),
        (20, "c3", "o3"),
        (1, "c1", "o4"),
        (1, "c3", "o5"),
    ):
        monkeypatch.setattr(time, "time_ns", lambda age=age: now - age * day)
        shelf(tmp_path).put(measured(candidate, code))
    monkeypatch.undo()
    compact_store(CacheLocation(root=tmp_path, mode="rw"))
    where = problem(M=16, N=64)
    left = [code for code in ("o1", "o2", "o3", "o4", "o5") if shelf(tmp_path).find("c", code, where) is not None]
    assert left == ["o2", "o3", "o4", "o5"]


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
