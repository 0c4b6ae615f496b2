"""Two records together: what both say, what a newer one says; and what of a record holds on this machine."""

from typing import Any

import msgspec
import pytest
from databases import DEVICE, POLICY, a_database, related
from hypothesis import given, settings

from aot_tune.bench.protocol.measurement_records import Device, Measurement
from aot_tune.database import (
    OperatorDatabase,
    decode,
    encode,
    match_measurements,
    missing_problems,
    nearest_databases,
    told_ties,
    update,
    without,
)
from aot_tune.database.checks import check_sanitized
from aot_tune.database.merge import join, join_from
from aot_tune.database.records import canonical_database
from aot_tune.spec import problem
from aot_tune.support.errors import DatabaseError


def holds_laws(one: OperatorDatabase, two: OperatorDatabase, three: OperatorDatabase) -> None:
    both = join(one, two)
    assert join(one, one) == one
    assert join(two, one) == both
    assert encode(join(both, three)) == encode(join(one, join(two, three)))
    assert join(both, one) == both
    assert decode(encode(both)) == both


@given(related())
@settings(max_examples=10, deadline=None)
def test_joining_is_associative_commutative_and_idempotent(records: list[OperatorDatabase]) -> None:
    holds_laws(*records)


@given(related())
@settings(max_examples=10, deadline=None)
def test_from_a_common_record_either_side_may_be_ours(records: list[OperatorDatabase]) -> None:
    base, ours, theirs = records
    merged = join_from(base, ours, theirs)
    assert encode(merged) == encode(join_from(base, theirs, ours))
    assert join_from(base, base, theirs) == theirs
    assert join_from(base, theirs, theirs) == theirs
    assert join_from(None, ours, theirs) == join(ours, theirs)
    assert decode(encode(merged)) == merged


def keep(database: OperatorDatabase, wanted) -> OperatorDatabase:
    return msgspec.structs.replace(database, measurements=tuple(m for m in database.measurements if wanted(m)))


def with_one(database: OperatorDatabase, **fields: object) -> OperatorDatabase:
    """The record with its first measurement changed."""
    first, *rest = database.measurements
    return msgspec.structs.replace(database, measurements=(msgspec.structs.replace(first, **fields), *rest))


def joined_first(*fields: dict[str, object]) -> Measurement:
    """What is joined of several measurements of one candidate on a problem."""
    base = canonical_database(a_database())
    found = with_one(base, **fields[0])
    for one in fields[1:]:
        found = join(found, with_one(base, **one))
    return found.measurements[0]


RACE = {"final": (5.0, 6.0, 7.0), "race": "r"}


@pytest.mark.parametrize(
    ("one", "two", "held"),
    [
        ({"status": "crashed", "reason": "SIGSEGV"}, RACE, {"status": "crashed"}),
        ({"status": "timeout"}, RACE, RACE),
        ({"status": "crashed", "reason": "killed by SIGKILL, by whom?"}, RACE, RACE),
        ({"status": "skipped", "reason": "too large"}, RACE, RACE),
        ({"final": (9.0,) * 5, "race": "a"}, RACE, {"race": "a"}),
        ({"final": (9.0,) * 3, "race": "s"}, RACE, {"race": "s"}),
        ({"final": None, "race": None, "screen": (1.0, 1.0)}, RACE, RACE),
        (
            {"final": None, "race": None, "screen": (3.0, 3.0, 3.0)},
            {"final": None, "race": None, "screen": (1.0, 1.0)},
            {"screen": (3.0, 3.0, 3.0)},
        ),
        (
            {"final": None, "race": None, "screen": (3.0, 3.0)},
            {"final": None, "race": None, "screen": (1.0, 1.0)},
            {"screen": (1.0, 1.0)},
        ),
    ],
)
def test_what_holds_of_two_measurements(
    one: dict[str, object], two: dict[str, object], held: dict[str, object]
) -> None:
    for order in ((one, two), (two, one)):
        found = joined_first(*order)
        assert {name: getattr(found, name) for name in held} == held


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"operator": "other", "candidates": (), "measurements": ()}, "operator: "),
        ({"contract": "changed"}, "version of the operator"),
        ({"policy_digest": "other", "measurements": ()}, "policy"),
        ({"baselines": {"numpy": "1.0"}}, "versions of the baselines"),
        ({"device": msgspec.structs.replace(DEVICE, identity={"model": "x"}), "measurements": ()}, "device"),
    ],
)
def test_what_cannot_be_compared_is_not_joined(change: dict[str, object], words: str) -> None:
    other = msgspec.structs.replace(a_database(), **change)
    for pair in ((a_database(), other), (other, a_database())):
        with pytest.raises(DatabaseError, match=f"differ in their {words}"):
            join(*pair)


def test_one_side_changed_a_kernel_and_the_other_measured_another_problem() -> None:
    """Then what the other measured of that kernel is of code that is no more, and only that goes."""
    base = canonical_database(a_database())
    more = problem(M=64, N=4096, K=4096)
    theirs = canonical_database(
        msgspec.structs.replace(
            base,
            problems=(*base.problems, more),
            measurements=(
                *base.measurements,
                *(msgspec.structs.replace(m, problem=more) for m in base.measurements if m.problem.dims["M"] == 1),
            ),
        )
    )
    ours = canonical_database(a_database(objects="new", scale=0.5))
    merged = join_from(base, ours, theirs)
    assert merged.candidates == ours.candidates
    assert all(m in merged.measurements for m in ours.measurements)
    assert [m.candidate for m in merged.measurements if m.problem == more] == ["baseline:numpy"]


def test_both_changed_a_kernel() -> None:
    base = a_database()
    with pytest.raises(DatabaseError, match="have different code"):
        join_from(base, a_database(objects="ours"), a_database(objects="theirs"))
    same = canonical_database(a_database(objects="new"))
    assert join_from(base, same, same) == same


def test_what_one_side_removed_is_gone_unless_the_other_measured_it_anew() -> None:
    base = canonical_database(a_database())
    gone = base.candidates[0].id
    pruned = canonical_database(without(base, {gone}))
    assert gone not in {c.id for c in join_from(base, pruned, base).candidates}
    assert join(pruned, base) == base  # nothing tells that it was removed
    slower = keep(a_database(scale=2.0), lambda m: m.candidate == gone)
    again = join_from(base, pruned, canonical_database(slower))
    assert gone in {m.candidate for m in join_from(base, base, canonical_database(slower)).measurements}
    assert gone not in {c.id for c in again.candidates}  # its code is as it was, so it stays removed


def test_a_verdict_of_a_sanitizer_stays_until_the_code_is_another() -> None:
    older, newer = a_database(), a_database(scale=0.5)
    clean = msgspec.structs.replace(older.candidates[0], sanitized={"thread": "clean"})
    older = msgspec.structs.replace(older, candidates=(clean, *older.candidates[1:]))
    assert update(older, newer).candidates[0] == clean
    assert not any(c.sanitized for c in update(older, a_database(objects="2")).candidates)
    assert list(check_sanitized(older)) == []
    assert [f.what for f in check_sanitized(newer)] == ["no candidate has a verdict of sanitizers"]


def test_the_newer_measurement_holds() -> None:
    older, newer = a_database(), a_database(scale=2.0)
    assert update(older, newer) == canonical_database(newer)


@pytest.mark.parametrize(
    ("older", "newer", "merged"), [("", "", ""), ("like", "", ""), ("", "like", ""), ("like", "another", "another")]
)
def test_what_one_of_two_searched_everywhere_is_there(older: str, newer: str, merged: str) -> None:
    one, other = (msgspec.structs.replace(a_database(), opening=o) for o in (older, newer))
    assert decode(encode(update(one, other))).opening == merged


def test_races_are_not_mixed() -> None:
    older = a_database()
    again = older.measurements[0]
    newer = keep(
        msgspec.structs.replace(
            a_database(scale=2.0), measurements=(msgspec.structs.replace(again, race="race-2", final=(5.0, 6.0)),)
        ),
        lambda m: True,
    )
    merged = update(older, newer)
    on_that = [m for m in merged.measurements if m.problem.id == again.problem.id]
    assert {m.race for m in on_that} == {"race-2", None}
    assert [m.final for m in on_that if m.race] == [(5.0, 6.0)]
    assert all(m.screen for m in on_that)
    assert not any(m.candidate == "baseline:numpy" for m in on_that)  # its time was of the race alone
    other = [m for m in merged.measurements if m.problem.dims["M"] == 16 and m.status == "ok"]
    assert {m.race for m in other} == {"race-1"}


def here(database: OperatorDatabase, **changes: Any) -> Any:
    values = {
        "device": DEVICE.digest,
        "policy": POLICY.digest,
        "contract": database.contract,
        "codes": {c.id: c.code for c in database.candidates},
    }
    return match_measurements(database, **(values | changes))


@pytest.mark.parametrize("change", [{"device": "x"}, {"policy": "x"}, {"contract": "x"}])
def test_another_machine_policy_or_operator_gives_nothing(change: dict[str, str]) -> None:
    made = a_database()
    assert here(made, **change) == ([], list(made.measurements))


def test_other_code_is_refused_and_its_race_with_it() -> None:
    database = canonical_database(a_database())
    codes = {c.id: c.code for c in database.candidates}
    changed = next(name for name, code in codes.items() if code)
    usable, refused = here(database, codes=codes | {changed: "rebuilt"})
    assert {m.candidate for m in refused} == {"baseline:numpy", changed}  # the baseline was in the race alone
    assert len(refused) == 3
    assert all(m.candidate != changed for m in usable)
    timed = [m for m in usable if m.status == "ok"]
    assert timed
    assert all(m.final is None and m.race is None and m.screen for m in timed)


def test_missing_problems() -> None:
    database = a_database()
    workload = [*database.problems, problem(M=7, N=1, K=1)]
    assert missing_problems(database, workload, "cpu-x86-64-v4") == [workload[2]]
    assert missing_problems(database, workload, "cpu-x86-64-v2") == workload
    assert missing_problems(None, workload, "cpu-x86-64-v4") == workload
    again = msgspec.structs.replace(workload[0], dims=dict(reversed(workload[0].dims.items())))
    assert missing_problems(database, [again], "cpu-x86-64-v4") == []


_V3 = "abm avx avx2 bmi1 bmi2 cx16 f16c fma lahf_lm movbe popcnt sse4_1 sse4_2 ssse3 xsave"
_V4 = f"{_V3} avx512bw avx512cd avx512dq avx512f avx512vl"


def of(slug: str, name: str = "", *, family: str = "cuda", **identity: str | int) -> OperatorDatabase:
    device = Device(family=family, name=name or slug, slug=slug, identity={**identity, "name": name or slug})
    return msgspec.structs.replace(a_database(), device=device)


def test_of_other_gpus_the_same_name_comes_first_then_the_nearest_sm_count_of_the_same_capability() -> None:
    this = of("this", "H100", capability=90, sm_count=132, driver="580")
    named = of("z-named", "H100", capability=90, sm_count=114, driver="580")
    near, far = (of(s, capability=90, sm_count=n) for s, n in (("near", 140), ("far", 78)))
    other = of("another-capability", capability=100, sm_count=132)
    for listed in ([other, far, near, named, this], [near, this, other, named, far]):
        assert nearest_databases(listed, "gemm", this.device) == [this, named, near, far, other]


def test_of_other_cpus_the_same_level_comes_first_then_the_nearest_cores_then_caches() -> None:
    def cpu(
        slug: str, flags: str, cores: int, caches: str = "L1d=48K L1i=32K L3=32M", name: str = ""
    ) -> OperatorDatabase:
        return of(slug, name, family="cpu", flags=flags, cores=cores, caches=caches)

    this = cpu("this", _V4, 8, name="AMD EPYC")
    wanted = [
        cpu("z-same-name", _V4, 64, name="AMD EPYC"),
        cpu("y-eight", _V4, 8, "L1d=48K L1i=64K L3=32M"),
        cpu("x-larger-cache", _V4, 8, "L1d=48K L1i=32K L3=64M"),
        cpu("w-nine", _V4, 9),
        cpu("v-vague-name", _V3, 8, name="AMD EPYC"),
    ]
    assert nearest_databases(wanted[::-1], "gemm", this.device) == wanted


def test_equally_near_records_are_told_and_the_first_slug_is_taken() -> None:
    this = of("this", capability=90, sm_count=132)
    tied = [of("b", capability=90, sm_count=130), of("a", capability=90, sm_count=134)]
    assert told_ties(tied, ["gemm"], this.device) == [
        "two records are equally near: a and b; a is taken; AOT_TUNE_DEVICE names another"
    ]
    assert nearest_databases(tied, "gemm", this.device)[0].device.slug == "a"
    assert told_ties([*tied, of("c", capability=90, sm_count=132)], ["gemm"], this.device) == []
    assert told_ties([*tied, this], ["gemm"], this.device) == []
