"""Records joined: the order in which they are named says nothing, and what one side alone changed is taken from it."""

from __future__ import annotations

import msgspec
import pytest
from databases import DEVICE, a_database, related
from hypothesis import given, settings

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.database import OperatorDatabase, decode, encode, without
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
