"""The pages about operators: what they declare is one, and they name all values that there are."""

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


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_operator_that_it_shows_is_one(tmp_path: Path) -> None:
    code = blocks("operators.md")[0]
    folder = tmp_path / "route"
    folder.mkdir()
    (folder / "operator.py").write_text(code)
    operator = load_operator(folder)
    (check,) = (c for c in derived_checks(operator) if c.integers)
    write_truth(operator, check, tmp_path / "truth", 1)
    (_, values) = read_truth(tmp_path / "truth")["out"]
    assert values.any()
    assert np.array_equal(values, np.rint(values))


def test_tensors_that_are_written_in_place_are_declared_so() -> None:
    rows, columns = spec.dims("R D")
    written = [block for block in blocks("in-place.md") if "tensors=(" in block]
    for block, outputs in zip(written, (["x", "residual"], ["out"]), strict=True):
        tensors = eval(f"dict({block})", {"Tensor": spec.Tensor, "R": rows, "D": columns})["tensors"]
        assert [t.name for t in tensors if t.output or t.inout] == outputs


def test_all_values_are_in_its_table() -> None:
    functions = {n for n in generators.__all__ if n.islower() and n not in ("check_values", "largest_integer")}
    functions |= {"drawn"}
    assert functions == set(re.findall(r"^\| `(\w+)\(", (ROOT / "docs" / "inputs.md").read_text(), re.MULTILINE))
    assert functions <= set(spec.__all__)
