"""examples/cuda_packages on a GPU: kernels of packages, unmodified, are tuned, shipped and right in the library."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from building import BUDGET, Library, build_project
from environments import ROOT

EXAMPLE = ROOT / "examples" / "cuda_packages"
WANTED = re.findall(
    r"^fetch_package\(\n  (\S+)\n  \S+\n  ([0-9a-f]{64})", (EXAMPLE / "packages.cmake").read_text(), re.M
)
ABSENT = [name for name, digest in WANTED if not (EXAMPLE / "packages" / f"{name}.{digest}").is_file()]
pytestmark = pytest.mark.skipif(
    bool(ABSENT), reason=f"{', '.join(ABSENT)} not here: cmake -P examples/cuda_packages/packages.cmake"
)
OPERATORS = sorted(folder.parent.name for folder in (EXAMPLE / "templates").glob("*/operator.py"))
TUNED = {"causal_conv", "embedding", "hadamard", "quantize_rows", "rope_in_place", "selective_scan", "silu_and_mul"}
WRONG = {"wrong-result", "crashed", "no-result", "timeout", "suspicious", "compile-failed"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Library:
    folder = tmp_path_factory.mktemp("cuda_packages")
    return build_project(folder, EXAMPLE / "templates", import_path, AOT_TUNE_BUDGET=BUDGET)


@pytest.fixture(scope="module")
def measured(library: Library) -> dict[str, list[Any]]:
    """What was measured of each operator."""
    (found,) = library.folder.rglob("report.json")
    rows = json.loads(found.read_bytes())["operators"]
    return {name: [row for row in rows if row["operator"] == name] for name in OPERATORS}


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_kernel_is_right_on_the_card_and_shipped(
    library: Library, measured: dict[str, list[Any]], operator: str
) -> None:
    """The build holds each candidate, and each variant in the linked library, against float64."""
    members = library.variants()[operator]
    assert any(v["generic"] for v in members)
    assert operator not in TUNED or any(not v["generic"] for v in members), library.log[-3000:]
    statuses = {status for row in measured[operator] for status in row["statuses"]}
    assert not WRONG & statuses, [row["failures"] for row in measured[operator]]
