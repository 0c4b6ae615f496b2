"""Composed variants of gemm on a GPU: a vendor's product, then the epilogue in a kernel of ours, inside a library."""

import json
import shutil
from typing import Any

import pytest
from building import ROOT, build_project

IN_PLACE, F32 = "cublaslt_then_epilogue", "cublaslt_f32_then_epilogue"

# Beside the generic kernels one of them, which is then kept wherever it serves. What has its output by columns is for
# scratch memory alone.
_CUT = """
import dataclasses

from aot_tune.spec import problem

_GELU = {"activation": "gelu"}


def _layer(dtype, m, n, k, *present, **given):
    return problem(M=m, N=n, K=k, present=present, dtypes={"T": dtype}, **given)


operator = dataclasses.replace(
    operator,
    kernels=tuple(k for k in operator.kernels if k.generic or k.name == "NAME"),
    workload={
        "cpu": (problem(M=8, N=8, K=8),),
        "cuda": (
            _layer("bf16", 200, 22016, 4096, "bias", order={"b": (1, 0)}, attributes=_GELU),
            _layer("bf16", 16, 4096, 1024, "residual", order={"b": (1, 0)}),
            _layer("bf16", 200, 1000, 520, "bias", order={"out": (1, 0)}, attributes=_GELU),
            _layer("f16", 64, 1030, 1024, "bias", "residual", attributes=_GELU),
            _layer("f16", 64, 1030, 1024, "bias", order={"out": (1, 0)}, attributes=_GELU),
            _layer("f32", 64, 1024, 1024, "bias", "residual", attributes=_GELU),
        ),
    },
)
"""


@pytest.fixture(scope="module", params=[IN_PLACE, F32])
def composed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Any:
    """gemm with one composed kernel beside the generic ones, tuned for a few problems with an epilogue."""
    folder = tmp_path_factory.mktemp("composed")
    templates = folder / "templates"
    for name in ("common", "gemm"):
        shutil.copytree(ROOT / "templates" / name, templates / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = templates / "gemm" / "operator.py"
    path.write_text(path.read_text() + _CUT.replace("NAME", request.param))
    return build_project(folder, templates, import_path)


def members(library: Any) -> list[Any]:
    return [v for v in library.variants()["gemm"] if not v["generic"]]


def test_no_composed_candidate_failed(composed: Any) -> None:
    """Each was verified on odd problems of its own before it was timed."""
    (found,) = composed.folder.rglob("report.json")
    failures = [f for report in json.loads(found.read_text())["operators"] for f in report["failures"]]
    assert not failures
    served = {v["dtypes"]["T"] for v in members(composed)}
    assert served == ({"f32", "bf16", "f16"} if members(composed)[0]["kernel"] == IN_PLACE else {"bf16", "f16"})


def test_every_composed_variant_is_right(composed: Any) -> None:
    """On calls drawn for its guards, forced, and in chains of calls in a graph that feed each other."""
    for variant in members(composed):
        wanted = [("gemm", variant["name"], variant["dtypes"], variant["requires"])]
        said = composed.run("variants", json.dumps(wanted), AOT_TUNE_FORCE=f"gemm:{variant['name']}", timeout=600)
        (told,) = json.loads(said.rpartition("RESULT ")[2]).values()
        assert not told["faults"], f"{variant['name']}:\n" + "\n".join(told["faults"][:10])
        assert told["chained"], variant["name"]
