"""Pages that show code: it is that of the examples, its names are declared, and pictures and records are there."""

from __future__ import annotations

import importlib
import json
import re

from places import ROOT
from traces import Trace

import aot_tune.spec

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


def test_the_cuda_operator_is_that_of_the_example() -> None:
    def flat(text: str) -> str:
        return "".join(text.split())

    def shown(pattern: str) -> str:
        found = re.search(pattern, page("cuda"), re.DOTALL)
        assert found is not None
        return found[0]

    folder = EXAMPLES / "cuda_author"
    operator = (folder / "templates" / "convolution" / "operator.py").read_text()
    assert shown(r"convolution = CudaFunction\(.*?\n\)\n") in operator
    assert flat(shown(r"__global__ void .*?\) \{")) in flat((folder / "csrc" / "convolution.cu").read_text())
    launcher = flat(shown(r'Launcher\("csrc/gemv.cu:launch_gemv", [^)]*\)')).replace('{"rows":M,"columns":K}', "sizes")
    assert launcher in flat((folder / "templates" / "gemv" / "operator.py").read_text())
    for name in ("cuda", "tutorials/cuda-kernel"):
        used = re.findall(r"\b(CudaFunction|Launcher|Struct|Code|Stream|Buffer|DTypeOf|CompileOptions)\(", page(name))
        assert {"CudaFunction"} <= set(used) <= set(aot_tune.spec.__all__)


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


def test_examples_with_triton_functions_ask_for_triton() -> None:
    """Builds in isolation have nothing else: the backend knows no targets that CMakeLists.txt names."""
    examples = [p.parent for p in EXAMPLES.glob("*/pyproject.toml")]
    written = {e for e in examples if any("TritonFunction(" in p.read_text() for p in e.rglob("operator.py"))}
    assert {e.name for e in written} == {"from_packages", "triton_package"}
    for example in written:
        requires = (example / "pyproject.toml").read_text().partition("requires = [")[2].partition("]")[0]
        assert '"triton' in requires
    assert 'requires = ["aot_tune", "triton>=3.6,<3.10"]' in page("triton")


def test_the_lines_of_a_trace() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", page("tracing"), re.DOTALL)
    shown = Trace([json.loads(line) for line in block.splitlines()])
    assert [calls for calls, _ in shown.calls().values()] == [12, 7]
    assert (len(shown.headers), shown.others) == (1, 105)


def test_records_of_reports_are_where_the_page_says_and_its_pictures_are_small() -> None:
    rows = re.findall(r"^\| `aot-tune \w+[^`]*--json` \| `(\w+)` \| `([\w/]+)\.py` \|$", page("report"), re.MULTILINE)
    assert len(rows) == 3
    for record, path in rows:
        assert "schema" in getattr(importlib.import_module(path.replace("/", ".")), record).__struct_fields__
    pictures = re.findall(r"!\[[^\]]+\]\(([\w-]+\.png)\)", page("report"))
    assert len(pictures) == 2
    assert all((DOCS / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert max((DOCS / name).stat().st_size for name in pictures) < 150_000
