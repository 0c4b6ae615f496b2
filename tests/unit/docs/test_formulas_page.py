"""docs/formulas.md: its operator is one, and its reference gives what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from places import ROOT

from aot_tune.render.triton.recipe import fragment_data, parameters_of
from aot_tune.spec import Operator, elementwise, problem
from aot_tune.spec.fragment_programs import bind_fragments
from aot_tune.spec.load_operators import load_operator

TEXT = (ROOT / "docs" / "formulas.md").read_text()
OPERATOR, CALLS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def op(tmp_path: Path) -> Operator:
    """The operator of the page."""
    folder = tmp_path / "mixture"
    folder.mkdir()
    (folder / "operator.py").write_text(OPERATOR)
    return load_operator(folder)


def test_the_operator_of_the_page(op: Operator) -> None:
    draws = np.random.default_rng(1)
    m, n, k = 4, 6, 3
    a, b, bias, slopes = (draws.normal(size=s) for s in ((m, k), (k, n), (n,), (m,)))
    call = SimpleNamespace(a=a, b=b, bias=bias, slopes=slopes, alpha=0.75)
    bind_fragments(op, problem(M=m, N=n, K=k), np, call)
    q, j = np.arange(m)[:, None], np.arange(n)
    with np.errstate(over="ignore"):
        score = np.where(q < j, -1e9, a @ b) + slopes[:, None] * (j - q)
        assert np.allclose(op.reference(np, call)["out"], score / (1 + np.exp(-score)) + bias * 0.75)


def test_what_functions_of_triton_are_passed(op: Operator) -> None:
    calls = re.findall(r"(\w+)\(acc, q\[:, None\], k\[None, :\], (.*)\)", CALLS)
    assert [name for name, _ in calls] == ["score", "epilogue"]
    for name, given in calls:
        assert sorted(re.findall(r"(\w+)=", given)) == sorted(parameters_of(fragment_data(op, name)))


def test_every_function_is_on_the_page() -> None:
    for name in elementwise.__all__:
        assert re.search(rf"\b{name}\b", TEXT) or name == "absolute", name  # which `abs` is
