"""Whose records decide for a target that is not measured: AOT_TUNE_DEVICE, what is here, else the first by name."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from databases import DEVICE, a_database

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.compile import target_by_name
from aot_tune.database import OperatorDatabase, deciding, operator_digest
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.records.lookup import Known, most_fitting, others_fix, recorded_evidence, with_a_choice
from aot_tune.plan.options import resolve
from aot_tune.plan.preflight import check_devices
from aot_tune.plan.wanted_targets import targets_for
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import Target
from aot_tune.spec.load_operators import bundled_templates, load_operator
from aot_tune.support.errors import DatabaseError, OptionError

GEMM = load_operator(bundled_templates() / "gemm")


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


def test_targets_are_those_of_the_devices_that_decide() -> None:
    big, small = (
        msgspec.structs.replace(d, candidates=tuple(c for c in d.candidates if c.candidate.target == t))
        for d, t in ((BIG, "cpu-x86-64-v4"), (SMALL, "cpu-x86-64-v3"))
    )
    for wanted, found in (("", ["cpu-x86-64-v3", "cpu-x86-64-v4"]), ("Big*", ["cpu-x86-64-v4"])):
        options = resolve({"AOT_TUNE_MODE": "replay", "AOT_TUNE_DEVICE": wanted}, {})
        assert [t.name for t in targets_for(options, deciding([big, small], options.device))] == found


def test_what_the_named_devices_lack_is_said_to_be_known_of_others() -> None:
    session: Any = SimpleNamespace(databases=[BIG, SMALL], options=SimpleNamespace(device=("Big*",), effort="thorough"))
    assert others_fix(session, GEMM, TARGET) == "or let AOT_TUNE_DEVICE name 'Small One'; "
    session.options.device = ()
    assert others_fix(session, GEMM, TARGET) == ""


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


def test_an_operator_that_the_filter_leaves_out_needs_no_record_and_takes_none() -> None:
    evidence, database = recorded_evidence(filtered(databases=(BIG, SMALL)), GEMM, TARGET)
    assert database is None
    assert evidence.left_out
    assert evidence.note.endswith("the generic variant serves: AOT_TUNE_FILTER names no kernel there")


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


def test_a_record_need_not_have_what_no_named_kernel_serves() -> None:
    target = target_by_name("cuda-sm_90a")

    def rows(*named: str) -> set[int]:
        return {p.dims["M"] for p in with_a_choice(filtered(*named), GEMM, target)}

    assert rows("cuda_thin") == {16}
    assert max(rows("cuda_thin", "cuda_simt")) == 4096
    assert rows() == set()


def test_measurements_are_of_the_workloads_problem_whatever_the_order_of_dims_in_the_record() -> None:
    softmax = load_operator(bundled_templates() / "softmax")
    one = softmax.workload_for("cpu")[0]
    candidate = Candidate(
        operator="softmax", kernel="generic", backend="cxx", target=TARGET.name, generic=True, dtypes={"T": "f32"}
    )
    rendered = Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[])
    entry = Entry(candidate=candidate, rendered=rendered, requires=(), recorded="code")
    turned = msgspec.structs.replace(one, dims=dict(reversed(one.dims.items())))
    assert turned.id != one.id
    measured = Measurement(
        candidate=candidate.id, code="code", problem=turned, device="d", policy="p", status="ok", screen=(9.0,) * 4
    )
    evidence = Evidence(softmax, TARGET, {candidate.id: entry})
    assert Known((measured,)).give(evidence) == 1
    assert list(evidence.times()) == [one.id]


def test_a_device_without_a_record_is_refused_with_those_that_have_some() -> None:
    check_devices(("Big Two",), [])  # a library without records beside one that has some
    check_devices(("Big*", "small-one"), [BIG, SMALL])
    with pytest.raises(OptionError, match="has 'Big 1ne', and there is no record of it") as refused:
        check_devices(("Small One", "Big 1ne"), [BIG, SMALL])
    assert refused.value.fix == "did you mean 'Big One'?"
