"""Pages that show code: it is that of the examples, or gives what they say, and they name all that there is."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bundled import OPERATORS
from places import ROOT

from aot_tune.spec import drawn_values, elementwise, generators, problem
from aot_tune.spec.fragment_programs import bind_fragments
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import SpecError
from aot_tune.workloads.known_problems import known
from aot_tune.workloads.workload_records import decode_workload

DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
WHOLE = {
    "jax": ("jax_model/model.py", 3),
    "torch": ("torch_model/model.py", 4),
    "models": ("torch_model/patched.py", 2),
}
"""A page, the example that holds all its blocks, and their number. tests/integration runs the examples."""


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def test_blocks_are_those_of_an_example_and_its_names_are_declared() -> None:
    for name, (path, count) in WHOLE.items():
        example = (EXAMPLES / path).read_text()
        blocks = re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)
        assert len(blocks) == count, name
        assert [b for b in blocks if b not in example] == []
        for module, used in re.findall(r"aot_tune\.(jax|torch)\.(\w+)", page(name) + example):
            assert f'"{used}"' in (ROOT / "aot_tune" / module / "__init__.py").read_text(), used
    recipes = page("models").partition("## Recipes")[2]
    assert recipes.split("\n\n")[1].startswith("**These were not run here.**")
    for block in re.findall(r"```text\n(.*?)```", recipes, re.DOTALL):
        compile(block, "recipe", "exec")


def test_the_triton_operator_is_that_of_the_example_and_refusals_are_messages_of_the_code() -> None:
    decorators, operator, *_ = re.findall(r"```python\n(.*?)```", page("triton"), re.DOTALL)
    templates = EXAMPLES / "triton_package" / "templates"
    assert operator.partition("\n")[2] == (templates / "rms_norm" / "operator.py").read_text()
    assert decorators.partition("\n")[2].partition("def ")[0] in (templates / "kernels.py").read_text()
    sources = "".join(p.read_text() for p in (ROOT / "aot_tune").rglob("*.py"))
    plain = re.sub(r'"\s*\n\s*f?"', "", sources)
    messages = re.findall(r"^\| `([^`]+)`", page("triton-errors"), re.MULTILINE)
    assert len(messages) >= 10
    for message in messages:
        words = [w.strip(" ,:") for w in re.split(r"\.\.\.|'[a-zA-Z]+'|=|\d[\d.]*", message)]
        assert [w for w in words if w and w not in plain] == [], message


def test_the_operator_of_formulas(tmp_path: Path) -> None:
    (tmp_path / "mixture").mkdir()
    shown = re.findall(r"```python\n(.*?)```", page("formulas"), re.DOTALL)
    (tmp_path / "mixture" / "operator.py").write_text(shown[0])
    op = load_operator(tmp_path / "mixture")
    draws = np.random.default_rng(1)
    m, n, k = 4, 6, 3
    a, b, bias, slopes = (draws.normal(size=s) for s in ((m, k), (k, n), (n,), (m,)))
    call = SimpleNamespace(a=a, b=b, bias=bias, slopes=slopes, alpha=0.75)
    bind_fragments(op, problem(M=m, N=n, K=k), np, call)
    q, j = np.arange(m)[:, None], np.arange(n)
    with np.errstate(over="ignore"):
        score = np.where(q < j, -1e9, a @ b) + slopes[:, None] * (j - q)
        assert np.allclose(op.reference(np, call)["out"], score / (1 + np.exp(-score)) + bias * 0.75)


def test_tables_have_all_functions() -> None:
    for name in elementwise.__all__:
        assert re.search(rf"\b{name}\b", page("formulas")) or name == "absolute", name  # which `abs` is
    functions = {n for n in generators.__all__ if n.islower() and n not in ("check_values", "largest_integer")}
    functions |= {n for n in drawn_values.__all__ if n == "drawn"}
    assert functions == set(re.findall(r"^\| `(\w+)\(", page("inputs"), re.MULTILINE))


def test_lines_of_workloads_and_the_mistake_that_is_told() -> None:
    (lines,) = re.findall(r"```json\n(.*?)```", page("workload-files"), re.DOTALL)
    found = known(decode_workload(lines.encode(), "serving.jsonl"), OPERATORS)
    assert [(one.operator, one.problem.id, one.weight) for one in found] == [
        ("gemm", "M=16 N=4096 K=4096 b:10 T=bf16", 12.5),
        ("gemm", "M=16 N=14336 K=4096 b:10 +bias activation=gelu T=bf16", 3.0),
        ("softmax", "R=512 D=4096 T=f16", 1.0),
    ]
    (told,) = re.findall(
        r"```\naot-tune: /home/me/(.*?)\n  why: .*?\n  fix: (.*?)\n```", page("workload-files"), re.DOTALL
    )
    with pytest.raises(SpecError) as caught:
        known(decode_workload(lines.replace("gelu", "glu").encode(), "serving.jsonl"), OPERATORS)
    assert (caught.value.what, caught.value.fix) == told
