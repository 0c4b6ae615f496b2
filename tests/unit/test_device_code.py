"""What a GPU runs tells whether a record holds here; another host compiler changes nothing that was measured."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aot_tune.bench import Measurement
from aot_tune.compile import Object
from aot_tune.compile.cuda_object import device_digest
from aot_tune.database import CandidateRecord, Code
from aot_tune.database.identity import digest
from aot_tune.errors import DatabaseError
from aot_tune.link.archive import Member
from aot_tune.link.elf import device_code_digest
from aot_tune.link.verify import _other_device_code, _Variant
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.keep import _of_object, _other_code
from aot_tune.pipeline.recorded import note_recorded_objects
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import problem

NVCC = {"version": "13.0.88", "ptxas": "p", "host version": "12", "host ld": "l"}


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (Code("a", "d"), Code("a", "d"), True),
        (Code("a", "d"), Code("b", "d"), True),  # another host compiler
        (Code("a", "d"), Code("a", "e"), False),
        (Code("a"), Code("a", "d"), True),  # a record from before there were such digests
        (Code("a"), Code("b", "d"), False),
        (Code("a"), Code("a"), True),
        (Code("", "d"), Code("b", "d"), True),
        (Code(), Code(), False),  # nothing was compiled
    ],
)
def test_code_is_told_by_the_device_where_both_sides_know_it(one: Code, two: Code, same: bool) -> None:
    assert one.same_as(two) is two.same_as(one) is same


def candidate(backend: str = "nvcc") -> Candidate:
    return Candidate(operator="scale", kernel="rows", backend=backend, target="cuda-sm_90a")


def entry(recorded: Code, made: Code | None, backend: str = "nvcc") -> Entry:
    rendered = Rendered(candidate=candidate(backend), source="", digest="source", symbol="s", lines=[])
    found = Entry(candidate=candidate(backend), rendered=rendered, requires=(), recorded=recorded)
    if made is not None:
        found.object = Object(
            key="", path="", digest=made.object, device=made.device, symbol="s", source="source", target="", status="ok"
        )
    return found


def measurement(name: str) -> Measurement:
    return Measurement(
        candidate=candidate().id, object=name, problem=problem(M=1), device="d", policy="p", status="ok", screen=(1.0,)
    )


def test_a_measurement_of_the_same_device_code_is_kept_under_the_object_that_is_here() -> None:
    here = entry(Code("old", "d"), Code("new", "d"))
    found = _of_object(measurement("old"), here)
    assert found is not None
    assert found == msgspec.structs.replace(measurement("old"), object="new")
    assert _of_object(measurement("new"), here) == measurement("new")
    assert _of_object(measurement("third"), here) is None
    assert _of_object(measurement("old"), entry(Code("old", "d"), Code("new", "e"))) is None
    assert _of_object(measurement("old"), None) is None


def noted(record: Code, toolchains: dict[str, dict[str, str]], backend: str = "nvcc", source: str = "source") -> Code:
    """What an entry is told of a record that other toolchains made."""
    here = {"nvcc": NVCC, "cxx": {"version": "12"}, "cublaslt": {"version": "12"}}
    session: Any = SimpleNamespace(plan=SimpleNamespace(toolchains=here), environment={})
    made = CandidateRecord(
        candidate=candidate(backend), source=source, object=record.object, device=record.device, status="ok"
    )
    database: Any = SimpleNamespace(candidates=(made,), toolchains=toolchains)
    one = entry(Code(), None, backend)
    note_recorded_objects(session, database, {one.candidate.id: one})
    return one.recorded


def test_the_host_compiler_of_a_record_does_not_matter_where_device_code_is_known() -> None:
    other_host = {"nvcc": NVCC | {"host version": "13", "host ld": "m"}}
    assert noted(Code("o", "d"), other_host) == Code("o", "d")
    assert noted(Code("o"), other_host) == Code()
    assert noted(Code("o"), {"nvcc": NVCC}) == Code("o")
    assert noted(Code("o", "d"), {"nvcc": NVCC | {"ptxas": "q"}}) == Code()
    assert noted(Code("o", "d"), other_host, source="another") == Code()
    assert noted(Code("o", "d"), {}) == Code()


def test_a_vendor_call_is_its_source_and_a_cpu_kernel_its_whole_object() -> None:
    assert noted(Code("o", "d"), {"cublaslt": {"version": "13"}}, "cublaslt") == Code("o", "d")
    assert noted(Code("o"), {"cxx": {"version": "13"}}, "cxx") == Code()


def test_what_strict_replay_says_names_what_differs() -> None:
    session: Any = SimpleNamespace(databases=[], toolchain_text=lambda _: "13.0.88")
    error = _other_code(session, entry(Code("o", "1" * 64), Code("n", "2" * 64)))
    assert isinstance(error, DatabaseError)
    assert "another device code" in error.what
    assert f"recorded {'1' * 12}, here {'2' * 12}" in error.why
    assert "another object" in _other_code(session, entry(Code("o"), Code("n", "2" * 64))).what


def test_a_manifest_is_held_to_its_device_code(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int f(void) { return 1; }\n")
    (tmp_path / "code").write_bytes(b"device code")
    made, plain = tmp_path / "made.o", tmp_path / "plain.o"
    subprocess.run(["gcc", "-c", "a.c", "-o", plain], cwd=tmp_path, check=True)
    subprocess.run(["objcopy", "--add-section", ".nv_fatbin=code", plain, made], cwd=tmp_path, check=True)
    found = device_code_digest(made.read_bytes())
    assert found == device_digest(made)
    assert device_code_digest(plain.read_bytes()) == device_digest(plain) == ""

    def other(path: Path, device: str) -> bool:
        variant = _Variant(
            name="v", symbol="s", target="cuda-sm_80", level=80, object="", generic=False, rebuilt=False, device=device
        )
        return _other_device_code(variant, Member(name="s.o", data=path.read_bytes()))

    assert [other(made, found), other(made, digest("else")), other(made, ""), other(plain, found)] == [
        False,
        True,
        False,
        False,
    ]
