"""benchmarks/models.py: its table, and that results which differ end it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import models


def test_the_table_has_medians_and_spread() -> None:
    us = {1: [1.0, 2.0, 3.0, 4.0, 5.0], 16: [10.0] * 5, 512: [100.0, 200.0, 300.0, 400.0, 500.0]}
    lines = models.table({"eager": {"us": us, "first": [3.14, 2.71], "imported": [2.5, 2.44]}}).splitlines()
    assert (
        lines[0]
        == "| way | 1 token, us | 16 tokens, us | 512 tokens, us | first result, s | again, s | of that imports |"
    )
    assert lines[2] == "| eager | 3 ± 1 | 10 ± 0 | 300 ± 1e+02 | 3.1 | 2.7 | 2.4 |"


def test_results_that_differ_end_it() -> None:
    def way(name: str, *values: float) -> Any:
        return SimpleNamespace(way=name, ask=lambda line: {"result": values})

    models.check([way("eager", 1.0, -2.0), way("compile", 1.0, -2.0001)], "float32")
    with pytest.raises(SystemExit, match=r"compile: 1 tokens: results are 0\.005 of the largest value apart"):
        models.check([way("eager", 1.0, -2.0), way("compile", 1.0, -2.01)], "float32")
    with pytest.raises(SystemExit, match="patched: 1 tokens"):
        models.check([way("eager", 1.0, -2.0), way("patched", float("nan"), -2.0)], "float32")
