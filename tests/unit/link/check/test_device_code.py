"""What a GPU runs tells whether a record holds here; another host compiler changes nothing that was measured."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aot_tune.compile import Object
from aot_tune.compile.cuda.device_objects import device_digest
from aot_tune.database import CandidateRecord
from aot_tune.link.archive import Member
from aot_tune.link.check.against_manifest import ManifestVariant, other_device_code
from aot_tune.link.elf import device_code_digest
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.records.lookup import note_recorded_objects
from aot_tune.render import Candidate, Rendered
from aot_tune.support.digests import canonical_digest as digest

NVCC = {"version": "13.0.88", "ptxas": "p", "host version": "12", "host ld": "l"}


HOST = {"version": "12"}


def made(*, digest: str = "o", device: str = "d", source: str = "source", backend: str = "nvcc") -> Object:
    """An object of a candidate of that backend."""
    return Object(key="", path="", digest=digest, device=device, symbol="s", source=source, target=backend, status="ok")


def test_a_gpu_measures_device_code_and_what_launches_it_and_a_cpu_the_whole_object() -> None:
    assert made(digest="one").code == made(digest="two").code  # another host compiler
    assert made(device="d").code != made(device="e").code
    assert made(source="a grid").code != made(source="another grid").code
    assert made(device="", source="one").code == made(device="", source="commented").code == "o"
    assert made(device="", digest="another").code != made(device="").code


def candidate(backend: str = "nvcc") -> Candidate:
    return Candidate(operator="scale", kernel="rows", backend=backend, target="cuda-sm_90a")


def entry(recorded: str, here: Object | None, backend: str = "nvcc") -> Entry:
    rendered = Rendered(candidate=candidate(backend), source="", digest="source", symbol="s", lines=[])
    return Entry(candidate=candidate(backend), rendered=rendered, requires=(), recorded=recorded, object=here)


def noted(of: Object, toolchains: dict[str, dict[str, str]], backend: str = "nvcc") -> bool:
    """Whether an entry is told that it is what a record of other toolchains has."""
    here = {"nvcc": NVCC, "cxx": HOST, "cublaslt": HOST}
    session: Any = SimpleNamespace(plan=SimpleNamespace(toolchains=here), environment={})
    record = CandidateRecord(
        candidate=candidate(backend),
        source=of.source,
        object="" if of.device else of.digest,
        device=of.device,
        status="ok",
    )
    database: Any = SimpleNamespace(candidates=(record,), toolchains=toolchains)
    one = entry("", None, backend)
    note_recorded_objects(session, database, {one.candidate.id: one})
    assert one.recorded in ("", of.code)
    return bool(one.recorded)


def test_what_of_a_record_of_other_toolchains_holds_here() -> None:
    """The host compiler does not matter to a GPU; a vendor's call is its algorithm, a CPU's kernel its whole object."""
    other_host = {"nvcc": NVCC | {"host version": "13", "host ld": "m"}}
    assert noted(made(), other_host)
    assert not noted(made(), {"nvcc": NVCC | {"ptxas": "q"}})
    assert not noted(made(source="another"), other_host)
    assert not noted(made(), {})
    assert noted(made(), {"cublaslt": HOST | {"version": "13"}}, "cublaslt")
    assert not noted(made(device=""), {"cxx": HOST | {"version": "13"}}, "cxx")
    assert noted(made(device=""), {"cxx": HOST}, "cxx")


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
        variant = ManifestVariant(
            name="v", symbol="s", target="cuda-sm_80", level=80, object="", generic=False, rebuilt=False, device=device
        )
        return other_device_code(variant, Member(name="s.o", data=path.read_bytes()))

    told = [other(made, found), other(made, digest("else")), other(made, ""), other(plain, found)]
    assert told == [False, True, False, False]
