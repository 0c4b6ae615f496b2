"""Pages that show code of examples: it is theirs, and its names are declared."""

from __future__ import annotations

import re

from places import ROOT

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
