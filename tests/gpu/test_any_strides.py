"""Products of matrices that lie in any way, on a GPU: slices that begin anywhere, no unit strides, all epilogues."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from building import ROOT, Library, build_project
from environments import environment, run

FILLS_IN = "cublaslt_any"

# Beside the generic kernels what a vendor's library does. No problem of these is for what fills in.
_CUT = """
import dataclasses

from aot_tune.spec import problem

_VENDORS = ("cublaslt", "cublaslt_then_epilogue", "cublaslt_any")
operator = dataclasses.replace(
    operator,
    kernels=tuple(k for k in operator.kernels if k.generic or k.name in _VENDORS),
    workload={
        "cpu": tuple(operator.workload_for("cpu")[:1]),
        "cuda": tuple(PROBLEMS),
    },
)
"""
_PROBLEMS = {
    "gemm": 'problem(M=256, N=1024, K=1024, present=p, dtypes={"T": t}) for t in ("f32", "bf16", "f16") '
    'for p in ((), ("bias",))',
    "batched_gemm": 'problem(B=4, M=256, N=128, K=128, dtypes={"T": t}) for t in ("f32", "bf16", "f16")',
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Library:
    folder = tmp_path_factory.mktemp("strided")
    templates = folder / "templates"
    for name in ("common", "gemm", "batched_gemm"):
        shutil.copytree(ROOT / "templates" / name, templates / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, problems in _PROBLEMS.items():
        path = templates / name / "operator.py"
        path.write_text(path.read_text() + _CUT.replace("PROBLEMS", problems))
    return build_project(folder, templates, import_path)


def said(library: Library, scenario: str, *arguments: object, **env: str) -> Any:
    """What a scenario prints as its result; it fails where the scenario does."""
    script = Path(__file__).with_name("strided_scenarios.py")
    argv = [sys.executable, "-B", script, scenario, library.module, library.templates, *arguments]
    text = run(argv, env=environment(PYTHONPATH=library.import_path, **env), status=0, timeout=600)
    return json.loads(text.rpartition("RESULT ")[2]) if "RESULT " in text else text


def test_what_fills_in_is_there_though_it_was_not_measured(package: Library) -> None:
    for name, members in package.variants().items():
        assert {v["dtypes"]["T"] for v in members if v["kernel"] == FILLS_IN} == {"f32", "bf16", "f16"}, name
    assert "not verified inside the library" not in package.log


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_product_is_right_and_made_by_the_vendors_library(package: Library, dtype: str) -> None:
    """By copies of either factor, of both, and of the result, and by none where the library takes what there is."""
    told = "; ".join(said(package, "strided", dtype))
    for how in ("of a copy of a", "of a copy of b", "of copies of a and b", "then a copy of its result"):
        assert how in told, told
    assert "then the epilogue in a kernel of its own" in told


@pytest.mark.parametrize("scenario", [("capture", "cold"), ("two_streams",), ("workspaces",)], ids="-".join)
def test_copies_of_calls_at_once_are_apart_and_captured(package: Library, scenario: tuple[str, ...]) -> None:
    said(package, *scenario)
