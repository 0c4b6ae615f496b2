"""examples/from_packages on a GPU: functions of packages, unmodified, are tuned, shipped and right in the library."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from building import BUDGET, Library, build_project
from environments import ROOT

PACKAGES = {"triton": "triton", "liger_kernel": "liger-kernel==0.8.5", "einops": "einops",
            "fla": "flash-linear-attention==0.6.0 fla-core==0.6.0",
            "torchao": "torchao==0.18.0", "xformers": "xformers==0.0.35"}  # fmt: skip
MISSING = [text for name, text in PACKAGES.items() if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"for examples/from_packages: pip install {' '.join(MISSING)}")

TEMPLATES = ROOT / "examples" / "from_packages" / "templates"
FUNCTIONS = {
    "causal_conv": "fla",
    "chunk_cumsum": "fla",
    "chunk_output": "fla",
    "cross_entropy": "liger",
    "layer_norm": "liger",
    "gather_rows": "xformers",
    "rms_norm": "liger xformers",  # either may win
    "scaled_int8_mm": "torchao",
    "rope": "liger",
    "swiglu": "liger",
    "swiglu_mlp": "liger",
}

WRONG = {"wrong-result", "crashed", "no-result", "timeout", "suspicious"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Library:
    folder = tmp_path_factory.mktemp("from_packages")
    return build_project(folder, TEMPLATES, import_path, AOT_TUNE_BUDGET=BUDGET)


@pytest.fixture(scope="module")
def measured(library: Library) -> dict[str, list[Any]]:
    """What was measured of each operator, for each target."""
    (found,) = library.folder.rglob("report.json")
    rows = json.loads(found.read_bytes())["operators"]
    return {name: [row for row in rows if row["operator"] == name] for name in FUNCTIONS}


@pytest.mark.parametrize(("operator", "kernel"), FUNCTIONS.items())
def test_a_function_is_right_on_the_card_and_shipped(
    library: Library, measured: dict[str, list[Any]], operator: str, kernel: str
) -> None:
    """The build holds each candidate, and each variant in the linked library, against float64."""
    members = library.variants()[operator]
    names = tuple(f"{name}_" for name in kernel.split())
    assert any(v["name"].startswith(names) and not v["generic"] for v in members), library.log[-3000:]
    assert any(v["generic"] for v in members)
    statuses = {status for row in measured[operator] for status in row["statuses"]}
    assert "ok" in statuses
    assert not WRONG & statuses, [row["failures"] for row in measured[operator]]
