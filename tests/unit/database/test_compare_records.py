"""What a record says of choices, and what another says otherwise."""

from __future__ import annotations

import msgspec
from databases import a_database

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.database import OperatorDatabase, without
from aot_tune.database.compare_records import changes, fastest
from aot_tune.spec import problem

V4 = "cpu-x86-64-v4"


def changed(database: OperatorDatabase, wanted, **fields: object) -> OperatorDatabase:
    """The record with these fields of the measurements that are wanted."""
    return msgspec.structs.replace(
        database,
        measurements=tuple(msgspec.structs.replace(m, **fields) if wanted(m) else m for m in database.measurements),
    )


def test_what_failed_anywhere_and_what_was_not_raced_comes_behind() -> None:
    database = a_database()
    first = database.candidates[0].id
    slow = changed(database, lambda m: m.candidate == first and m.problem.dims["M"] == 1, status="crashed", reason="x")
    assert {one.label for (target, _), one in fastest(slow).items() if target.endswith("v3")} == {"packed MR=6 PACK=1"}
    screened = changed(database, lambda m: m.candidate == first, final=None, race=None, screen=(1.0, 1.0))
    assert {one.ns for (target, _), one in fastest(screened).items() if target.endswith("v3")} == {3 * 1240.5}


def test_a_generic_variant_counts_for_all_targets() -> None:
    database = a_database()
    generic = msgspec.structs.replace(
        database.candidates[0],
        candidate=msgspec.structs.replace(database.candidates[0].candidate, generic=True, target="cpu-x86-64-v2"),
    )
    more = msgspec.structs.replace(database.measurements[0], candidate=generic.id, final=(1.0,))
    with_it = msgspec.structs.replace(
        database, candidates=(*database.candidates, generic), measurements=(*database.measurements, more)
    )
    assert {t for (t, _), one in fastest(with_it).items() if one.ns == 1.0} == {"cpu-x86-64-v3", V4}


def test_changes() -> None:
    before = a_database()
    gone, first = before.candidates[0].id, before.candidates[1].id
    faster = changed(before, lambda m: m.candidate == first and m.problem.dims["M"] == 16, final=(1240.5,))
    new = Measurement(
        **{**msgspec.structs.asdict(before.measurements[1]), "problem": problem(M=2, N=2, K=2), "final": (1.0,)}
    )
    after = msgspec.structs.replace(faster, measurements=(*faster.measurements, new))
    after = without(msgspec.structs.replace(after, problems=(*after.problems, new.problem)), {gone})
    after = msgspec.structs.replace(after, toolchains={"cxx": {"version": "13.1.0"}}, baselines={"numpy": "3"})
    change = changes(before, after)
    assert {at[0] for at in change.winners} == {"cpu-x86-64-v3"}
    assert [(old.label, new.label) for old, new in change.winners.values()] == [
        ("packed MR=4 PACK=1", "packed MR=6 PACK=1")
    ] * 2
    assert {round(ratio, 3) for at, ratio in change.times.items() if at not in change.winners} == {0.5, 1.0}
    assert (change.came, change.went) == (("M=2 N=2 K=2",), ())
    assert (change.candidates_came, change.candidates_went, change.code) == ({}, {"packed": 1}, {})
    assert change.head == ("toolchain cxx: 12.2.0, then 13.1.0", "baseline numpy: 2.4.6, then 3")
    assert changes(before, a_database(objects="new")).code == {"packed": 4}
