"""Merge, and what of a record holds on this machine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from databases import DEVICE, POLICY, a_database

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.database import (
    OperatorDatabase,
    match_measurements,
    missing_problems,
    nearest_databases,
    told_ties,
    update,
)
from aot_tune.database.format import decode, encode
from aot_tune.database.records import canonical_database
from aot_tune.spec import problem


def keep(database: OperatorDatabase, wanted) -> OperatorDatabase:
    return msgspec.structs.replace(database, measurements=tuple(m for m in database.measurements if wanted(m)))


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
    match = here(database, codes=codes | {changed: "rebuilt"})
    assert {m.candidate for m in match.refused} == {"baseline:numpy", changed}  # the baseline was in the race alone
    assert len(match.refused) == 3
    assert all(m.candidate != changed for m in match.usable)
    timed = [m for m in match.usable if m.status == "ok"]
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
    """The record of a device."""
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
