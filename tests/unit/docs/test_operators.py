"""docs/operators.md declares an operator that is one, and names all values that there are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from places import ROOT

import aot_tune.spec as spec
from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.worker.reference_results import read_truth, write_truth
from aot_tune.spec import generators
from aot_tune.spec.load_operators import load_operator

TEXT = (ROOT / "docs" / "operators.md").read_text()


def test_the_operator_that_it_shows_is_one(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    folder = tmp_path / "route"
    folder.mkdir()
    (folder / "operator.py").write_text(code)
    operator = load_operator(folder)
    (check,) = (c for c in derived_checks(operator) if c.integers)
    write_truth(operator, check, tmp_path / "truth", 1)
    (_, values) = read_truth(tmp_path / "truth")["out"]
    assert values.any()
    assert np.array_equal(values, np.rint(values))


def test_all_values_are_in_its_table() -> None:
    functions = {n for n in generators.__all__ if n.islower() and n not in ("check_values", "largest_integer")}
    assert functions == set(re.findall(r"^\| `(\w+)\(", TEXT, re.MULTILINE))
    assert functions <= set(spec.__all__)
