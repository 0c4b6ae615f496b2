"""Records as people read them: short, whole words, 80 columns."""

from __future__ import annotations

import msgspec
from databases import a_database

from aot_tune.database import OperatorDatabase
from aot_tune.database.compare_records import changes
from aot_tune.report.format_records import format_change, format_record, format_tree
from aot_tune.spec import problem


def with_problems(count: int) -> OperatorDatabase:
    """The record with so many more problems, the first kernel timed on each."""
    base = a_database()
    more = [problem(M=m, N=1, K=1) for m in range(100, 100 + count)]
    again = tuple(msgspec.structs.replace(base.measurements[0], problem=p) for p in more)
    return msgspec.structs.replace(base, problems=(*base.problems, *more), measurements=(*base.measurements, *again))


def test_a_few_of_many_are_listed() -> None:
    change = changes(a_database(), with_problems(12))
    assert format_change("gemm.jsonl", change).splitlines() == [
        "gemm.jsonl",
        "  problems that were added: 12",
        *(f"    M={m} N=1 K=1" for m in range(100, 105)),
        "    and 7 more",
    ]
    assert "and " not in format_change("gemm.jsonl", change, whole=True)
    assert "problems that were removed: 12" in format_change("x", changes(with_problems(12), a_database()))


def test_times_of_the_same_winner() -> None:
    base = a_database()
    faster = msgspec.structs.replace(
        base,
        measurements=tuple(
            msgspec.structs.replace(m, final=m.final and tuple(t / 2 for t in m.final)) for m in base.measurements
        ),
    )
    said = format_change("gemm.jsonl", changes(base, faster))
    assert "the fastest is the same, timed anew, on 4; 4 by more than 1 %; all times together -50.0 %" in said
    assert "  -50.0 %  cpu-x86-64-v3 M=1 N=4096" in said


def test_a_record_and_a_folder() -> None:
    lines = format_record(a_database()).splitlines()
    assert lines[:2] == ["gemm on Test CPU", "  folder      test-cpu"]
    assert "  toolchains  cxx 12.2.0" in lines
    assert "    packed                                 2       2       0           2" in lines
    assert "    small                                  1       0       1           0" in lines
    told = format_tree([a_database()]).splitlines()
    assert told[:2] == ["Test CPU", "  test-cpu"]
    assert told[3].split() == ["gemm", "2", "5", "9", "0", a_database().policy_digest[:8]]
