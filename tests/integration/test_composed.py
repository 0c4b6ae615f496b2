"""Composed variants in a library that is built by replay, where there is no GPU."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cuda_project import FAKE, Made, build, record
from environments import ROOT

TARGET = "cuda-sm_90a"
IN_PLACE, F32, FILLS_IN = "cublaslt_then_epilogue", "cublaslt_f32_then_epilogue", "cublaslt_any"
_CUT = """
import dataclasses

from aot_tune.spec import problem

_GIVEN = {"present": ["bias"], "attributes": {"activation": "gelu"}, "dtypes": {"T": "bf16"}}
_TWO = ("f32", "bf16")
operator = dataclasses.replace(
    operator,
    dtypes={"T": _TWO},
    kernels=tuple(
        dataclasses.replace(k, dtypes={"T": tuple(t for t in k.dtypes.get("T", _TWO) if t in _TWO)})
        for k in operator.kernels
        if k.generic or k.stages
    ),
    workload={
        "cpu": (problem(M=8, N=8, K=8),),
        "cuda": (problem(M=64, N=512, K=256, **_GIVEN), problem(M=64, N=512, K=256, order={"out": (1, 0)}, **_GIVEN)),
    },
)
"""


pytestmark = pytest.mark.usefixtures("needs_nvcc")


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gemm with nothing but generic and composed kernels, in two of its dtypes."""
    folder = tmp_path_factory.mktemp("templates")
    for name in ("common", "gemm"):
        shutil.copytree(ROOT / "templates" / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "gemm" / "operator.py"
    path.write_text(path.read_text() + _CUT)
    return folder


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Path:
    """A record of a card that nobody has, on which one row per thread was the fastest."""
    folder = tmp_path_factory.mktemp("author") / "tuning"
    cache = folder.with_name("cache")
    record(templates, folder, [TARGET], name="gemm", dtype="bf16", fastest={"VECTORS": 1}, cache=cache)
    return folder


def replay(folder: Path, templates: Path, tuning: Path, **options: Any) -> Made:
    cache = os.fspath(tuning.with_name("cache"))
    given = {"MODE": "replay", "TARGETS": TARGET, "STRICT": "1", "CACHE_DIR": cache, **options}
    return build(folder, templates=[templates], operators=["gemm"], database=tuning, **given)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, templates: Path, tuning: Path) -> Made:
    """The library of that record."""
    return replay(tmp_path_factory.mktemp("replayed"), templates, tuning)


def test_composed_variants_are_linked_as_they_were_recorded(replayed: Made) -> None:
    kept = {v["kernel"]: v for v in replayed.variants("gemm", TARGET).values() if not v["generic"]}
    assert set(kept) == {IN_PLACE, F32, FILLS_IN}
    assert kept[IN_PLACE]["config"] == {"SCRATCH": False, "VECTORS": 1}
    assert not any(v["rebuilt"] for v in kept.values())
    (told,) = (r for r in replayed.report.operators if r.target == TARGET)
    assert {v.name.rpartition("_")[0] for v in told.variants if v.target == TARGET} == set(kept)


def test_what_fills_in_is_linked_without_measurements_and_told_of(replayed: Made) -> None:
    found = [v for v in replayed.variants("gemm", TARGET).values() if v["kernel"] == FILLS_IN]
    assert {v["dtypes"]["T"] for v in found} == {"f32", "bf16"}
    assert all(v["config"] == {"PACK": 128, "WORK": 500, "VECTORS": 2} for v in found)
    told = f"{FILLS_IN} is kept for calls that nobody measured, and cannot be verified here: no {TARGET}"
    assert replayed.log.count(told) == 1


def test_the_vendors_library_is_not_needed_to_load(replayed: Made) -> None:
    assert not [n for n in replayed.needed() if n.startswith(("libcublas", "libcuda"))]
    said = replayed.run(
        FAKE + "fails(lambda: ops.gemm(OnDevice(x), OnDevice(x.T.copy()), out=OnDevice(np.zeros((4, 4), 'f4'))))"
    )
    assert "there is no CUDA driver here" in said


def test_a_library_without_the_vendors_backend_takes_the_same_record(
    templates: Path, tuning: Path, tmp_path: Path
) -> None:
    made = replay(tmp_path, templates, tuning, EXCLUDE_BACKENDS="cublaslt", link=False)
    assert all(v["generic"] for v in made.variants("gemm").values())
