"""CUDA without a card: rendering, compiling for two architectures, linking, replay, import, the error at the call.

Where nothing is called, the two commands that CMake would run are all there is. `-k h200` replays the part of that
GPU's committed record that CI does.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cuda_project import FAKE, TARGETS, Made, author_templates, build, record
from environments import ROOT
from record_texts import rewrite

from aot_tune.compile import toolchain_for
from aot_tune.compile.triton_toolchain import TritonToolchain
from aot_tune.database import OperatorDatabase, load_databases
from aot_tune.spec.load_operators import load_operator
from aot_tune.triton.installed import find_triton

pytestmark = pytest.mark.usefixtures("needs_nvcc")

TUNING = Path(os.environ.get("AOT_TUNE_TEST_TUNING", ROOT / "tuning"))
"""The committed records; the variable names others to try."""
SUBSET = ("silu_mul",)
"""What CI replays of the record; all of it is `AOT_TUNE_MODE=replay AOT_TUNE_TARGETS=cuda-sm_90a pip wheel .`"""


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The author's own template root."""
    return author_templates(tmp_path_factory.mktemp("author") / "templates")


@pytest.fixture(scope="module")
def generic(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Made:
    """The author's operator where there is neither a device nor a record."""
    folder = tmp_path_factory.mktemp("generic")
    return build(folder, templates=[templates], operators=["twice"], TARGETS=";".join(TARGETS))


def test_without_device_and_record_the_generic_variants_serve_and_that_is_said(generic: Made) -> None:
    """The library imports without a driver."""
    for name in generic.needed():
        assert not name.startswith(("libcuda", "libcudart", "libcublas")), name
    assert "twice" in generic.run("import ops; print(ops.operators)")
    kept = generic.variants("twice")
    assert sorted(v["dtypes"]["T"] for v in kept.values()) == ["bf16", "f32"]
    assert all(v["generic"] and v["device"] and not v["rebuilt"] for v in kept.values())
    assert re.search("twice: NOT TUNED for cuda-sm_90a, the generic variant serves", generic.log), generic.log
    assert {note.split(" for ")[0] for note in generic.report.notes} == {"twice: NOT TUNED"}


def test_a_call_on_a_gpu_says_what_to_do(generic: Made) -> None:
    said = generic.run(FAKE + "fails(lambda: ops.twice(OnDevice(x), y=OnDevice(x.copy())))")
    assert said.startswith("CallError")
    assert "cuda:0: there is no CUDA driver here" in said
    assert "install NVIDIA's driver" in said


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Path:
    """A record of the author's operator on two cards that nobody has."""
    folder = tmp_path_factory.mktemp("author") / "tuning"
    record(templates, folder, cache=folder.with_name("cache"))
    return folder


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, templates: Path, tuning: Path) -> Made:
    return _replay(tmp_path_factory.mktemp("replayed"), templates, tuning, CACHE_DIR=str(tuning.with_name("cache")))


def _replay(folder: Path, templates: Path, tuning: Path, **options: Any) -> Made:
    return build(
        folder,
        templates=[templates],
        operators=["twice"],
        database=tuning,
        link=False,
        **{"MODE": "replay", "TARGETS": ";".join(TARGETS), "STRICT": "1", **options},
    )


def test_a_record_gives_variants_for_each_architecture(replayed: Made, tuning: Path) -> None:
    databases = load_databases(tuning)
    for target in TARGETS:
        (database,) = (d for d in databases if target in d.targets)
        kept = {n: v for n, v in replayed.variants("twice", target).items() if not v["generic"]}
        assert [v["config"]["THREADS"] for v in kept.values()] == [256]
        _same_code(kept, database, _alike(database))
    assert {t["target"] for t in replayed.manifest["operators"][0]["tables"]} >= set(TARGETS)


def test_a_replay_is_the_same_bit_for_bit(replayed: Made, tmp_path: Path, templates: Path, tuning: Path) -> None:
    """In another folder, with another cache, from a copy of the record: what CMake's glue makes of it is the same."""
    copy = tmp_path / "elsewhere" / "tuning"
    shutil.copytree(tuning, copy)
    again = _replay(tmp_path / "project", templates, copy)
    for name in ("variants.a", "dispatch.cpp", "manifest.json", "my_ops.h"):
        one, other = (made.folder / "aot_tune" / "my_ops" / name for made in (replayed, again))
        assert one.read_bytes() == other.read_bytes(), name


def test_another_host_compiler_gives_the_recorded_device_code(
    replayed: Made, tmp_path: Path, templates: Path, tuning: Path
) -> None:
    """Strict replay takes it: what was measured is what the device runs."""
    other = tmp_path / "g++"
    other.write_text('#!/bin/sh\nexec g++ "$@" -fno-schedule-insns2 -fcf-protection=none -fno-inline\n')
    other.chmod(0o755)
    made = _replay(tmp_path / "project", templates, tuning, CXX=str(other), TARGETS="cuda-sm_90a")
    ours, theirs = (m.variants("twice", "cuda-sm_90a") for m in (made, replayed))
    assert {n: v["device"] for n, v in ours.items()} == {n: v["device"] for n, v in theirs.items()}
    assert all(v["object"] != theirs[n]["object"] and not v["rebuilt"] for n, v in ours.items())


def test_other_device_code_is_rebuilt_and_strict_replay_fails(tmp_path: Path, templates: Path, tuning: Path) -> None:
    """The record of another CUDA compiler: its digests are not those of this one."""
    other = tmp_path / "tuning"
    shutil.copytree(tuning, other)
    for path in other.rglob("*.jsonl"):
        rewrite(path, lambda text: re.sub(r'"device":"[0-9a-f]{64}"', f'"device":"{"0" * 64}"', text))
    cache = str(tuning.with_name("cache"))  # what is compiled is the same
    strict = _replay(tmp_path / "strict", templates, other, status=None, CACHE_DIR=cache)
    assert "compiles to another device code than the recorded one" in strict.log
    loose = _replay(tmp_path / "loose", templates, other, STRICT="0", CACHE_DIR=cache)
    assert "variants are rebuilt" in loose.log
    assert all(v["rebuilt"] for v in loose.variants("twice", "cuda-sm_").values())


def test_a_changed_template_is_named(tmp_path: Path, templates: Path, tuning: Path) -> None:
    """Times of another kernel decide nothing."""
    changed = tmp_path / "templates"
    shutil.copytree(templates, changed)
    path = changed / "twice" / "kernel.cu.j2"
    path.write_text(path.read_text().replace("float value = 2.0f *", "float value = 2.00f *"))
    cache = str(tuning.with_name("cache"))
    made = _replay(tmp_path / "project", changed, tuning, status=None, CACHE_DIR=cache)
    assert "operator 'twice': the source of good" in made.log
    assert "is not the recorded one" in made.log
    assert "use the templates that the database was recorded with" in made.log


def _devices_of_subset() -> list[str]:
    """Devices that have records of all its operators: some have those of others alone."""
    folders = sorted(TUNING.glob("cuda-*"))
    found = [f.name for f in folders if all((f / f"{operator}.jsonl").is_file() for operator in SUBSET)]
    assert found, "no device has a record of rows"
    return found


@pytest.fixture(scope="module", params=_devices_of_subset())
def device(request: pytest.FixtureRequest) -> str:
    """The folder of each GPU that there is a committed record of."""
    return str(request.param)


@pytest.fixture(scope="module")
def subset(tmp_path_factory: pytest.TempPathFactory, device: str) -> Made:
    """The subset of a committed record that CI replays, with few of its variants."""
    return build(
        tmp_path_factory.mktemp("subset"),
        templates=["bundled"],
        operators=SUBSET,
        database=TUNING,
        link=False,
        first=_recorded_triton(device),
        MODE="replay",
        TARGETS="cuda-sm_90a",
        DEVICE=device,
        MAX_VARIANTS="2",
    )


def _of_subset(device: str) -> list[OperatorDatabase]:
    return [d for d in load_databases(TUNING) if d.operator in SUBSET and d.device.slug == device]


def _recorded_triton(device: str) -> str:
    """The folder of the Triton that the record was made with; empty where AOT_TUNE_TEST_TRITON has none."""
    wanted = {d.toolchains["triton"]["version"] for d in _of_subset(device) if "triton" in d.toolchains}
    folders = filter(None, os.environ.get("AOT_TUNE_TEST_TRITON", "").split(os.pathsep))
    return next((f for f in folders if {find_triton([f]).version} == wanted), "")


@pytest.mark.parametrize("operator", SUBSET)
def test_a_committed_record_gives_its_own_variants(subset: Made, device: str, operator: str) -> None:
    (database,) = (d for d in _of_subset(device) if d.operator == operator)
    assert f"cuda-sm_90a is chosen by records of {device}" in subset.log
    assert all(c.device for c in database.candidates if c.status == "ok")
    kept = subset.variants(operator, "cuda-sm_90a")
    (told,) = (r for r in subset.report.operators if r.operator == operator and r.target == "cuda-sm_90a")
    measured = {m.candidate[:8] for m in database.measurements if m.status == "ok"}
    assert {name.rpartition("_")[2] for name, v in kept.items() if not v["generic"]} <= measured
    _same_code(kept, database, _alike(database, _recorded_triton(device)))
    assert {v.name for v in told.variants if not v.target.startswith("cuda-ptx")} == set(kept) != set()
    assert len(told.problems) == len(load_operator(ROOT / "templates" / operator).workload_for("cuda"))


def _alike(database: OperatorDatabase, triton: str = "") -> dict[str, bool]:
    """By backend, whether its compiler here is the recorded one, whatever the host compiler; Triton from a folder."""
    search = [f for f in (triton, *sys.path) if f]
    chains = {"nvcc": toolchain_for("nvcc"), "triton": TritonToolchain(dict(os.environ), search)}
    there = {b: chain for b, chain in chains.items() if b in database.toolchains}
    return {b: c.device_identity(database.toolchains[b]) == c.device_identity(c.identity()) for b, c in there.items()}


def _same_code(kept: Mapping[str, Mapping[str, Any]], database: OperatorDatabase, alike: Mapping[str, bool]) -> None:
    """Check that a manifest's variants have the recorded device code, where the compiler here is the recorded one."""
    records = {f"{r.candidate.kernel}_{r.id[:8]}": r for r in database.candidates}
    for name, variant in kept.items():
        recorded = records[name]
        assert recorded.candidate.config == variant["config"]
        assert recorded.candidate.dtypes == variant["dtypes"]
        if alike[recorded.candidate.backend]:
            assert recorded.device == variant["device"]
            assert not variant["rebuilt"]
