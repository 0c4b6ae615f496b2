"""Whose records decide for a target that is not measured: AOT_TUNE_DEVICE, what is here, else the first by name."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from bundled import OPERATORS
from databases import DEVICE, a_database

from aot_tune.compile import target_by_name
from aot_tune.database import OperatorDatabase, operator_digest
from aot_tune.pipeline.records.lookup import most_fitting, recorded_evidence
from aot_tune.plan.preflight import check_devices
from aot_tune.spec import Target
from aot_tune.support.errors import DatabaseError, OptionError

GEMM = OPERATORS["gemm"]


def recorded(name: str, family: str = "cpu", operator: str = "gemm") -> OperatorDatabase:
    slug = name.lower().replace(" ", "-")
    device = msgspec.structs.replace(DEVICE, name=name, slug=slug, family=family, identity={"n": name})
    return msgspec.structs.replace(a_database(), contract=operator_digest(GEMM), device=device, operator=operator)


BIG, SMALL = recorded("Big One"), recorded("Small One")
TARGET = Target(name=next(iter(BIG.targets)), family="cpu", level=1)


@pytest.mark.parametrize(
    ("wanted", "here", "found"),
    [
        ((), None, BIG),
        ((), SMALL, SMALL),
        (("Small One",), None, SMALL),
        (("small-*",), None, SMALL),
        (("SMALL one",), None, SMALL),
        (("Small*",), BIG, SMALL),
        (("* One",), SMALL, SMALL),
        (("A card",), None, BIG),  # of another family: nothing is said of this one
        (("A card", "Small*"), None, SMALL),
        (("Other",), None, None),  # it has records, but none of the operator
    ],
)
def test_the_devices_that_are_named_decide(
    wanted: tuple[str, ...], here: OperatorDatabase | None, found: OperatorDatabase | None
) -> None:
    databases = [SMALL, recorded("A card", "cuda", "softmax"), BIG, recorded("Other", operator="softmax")]
    session = filtered(databases=tuple(databases))
    session.devices, session.options.device = [here.device] if here else [], wanted
    assert most_fitting(session, GEMM, TARGET) == found


def test_a_record_that_lacks_problems_decides_only_where_no_other_has_them_all() -> None:
    """Though it is of this very device: a replay has no times there."""
    target = target_by_name("cpu-x86-64-v4")
    few = tuple(m for m in BIG.measurements if m.problem == BIG.measurements[0].problem)
    lacking = msgspec.structs.replace(BIG, measurements=few)
    of_target = {c.id for c in SMALL.candidates if c.candidate.target == target.name}
    known = {m.problem.id: m.problem for m in SMALL.measurements if m.status == "ok" and m.candidate in of_target}
    operator = dataclasses.replace(GEMM, workload={"cpu": tuple(known.values())})
    for databases, found in (((lacking, SMALL), SMALL), ((lacking,), lacking), ((BIG, SMALL), BIG)):
        session = filtered(databases=databases)
        session.kernels_for = lambda operator, _target: [k for k in operator.kernels if k.backend == "cxx"]
        session.is_named = lambda *_: True
        for session.devices in ([], [BIG.device]):
            assert most_fitting(session, operator, target) == found


def filtered(*named: str, databases: tuple[OperatorDatabase, ...] = ()) -> Any:
    """A session whose filter names some kernels."""
    return SimpleNamespace(
        databases=databases,
        devices=[],
        older=None,
        options=SimpleNamespace(device=(), effort="thorough"),
        answers=lambda *_: True,
        tunes=lambda *_: bool(named),
        is_named=lambda _operator, kernel: kernel.name in named,
        kernels_for=lambda operator, _target: [k for k in operator.kernels if k.backend == "nvcc" and not k.generic],
        generic_entries=lambda *_: [],
    )


def test_a_record_of_a_changed_operator_is_named() -> None:
    """With its file, and nothing of this machine in the first line: a report repeats that."""
    stale = msgspec.structs.replace(BIG, contract="ab" * 32)
    session = filtered("loop", databases=(stale,))
    session.kernels_for = lambda operator, _target: [k for k in operator.kernels if k.backend == "cxx"]
    session.is_named = lambda *_: True
    session.plan = SimpleNamespace(name="ops")
    session.place_of = lambda database: f"/records/{database.device.slug}/gemm.jsonl"
    with pytest.raises(DatabaseError) as caught:
        recorded_evidence(session, GEMM, target_by_name("cpu-x86-64-v4"))
    error = caught.value
    assert error.what.startswith("big-one/gemm.jsonl:1: the record is of another version of operator 'gemm'")
    assert "/records/big-one/gemm.jsonl:1 is of digest abababababab" in error.why
    assert operator_digest(GEMM)[:12] in error.why
    assert "M=1 N=4096 K=4096" in error.why
    assert "`aot-tune record --library ops tuning`" in error.fix
    assert "declare the operator as it was recorded" in error.fix


def test_a_device_without_a_record_is_refused_with_those_that_have_some() -> None:
    check_devices(("Big Two",), [])  # a library without records beside one that has some
    check_devices(("Big*", "small-one"), [BIG, SMALL])
    with pytest.raises(OptionError, match="has 'Big 1ne', and there is no record of it") as refused:
        check_devices(("Small One", "Big 1ne"), [BIG, SMALL])
    assert refused.value.fix == "did you mean 'Big One'?"
