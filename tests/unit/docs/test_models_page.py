"""docs/models.md shows the example as it is; tests/integration runs it."""

from __future__ import annotations

import re

from places import ROOT

import aot_tune.torch

PAGE = (ROOT / "docs" / "models.md").read_text()
EXAMPLE = (ROOT / "examples" / "torch_model" / "patched.py").read_text()


def test_its_code_is_that_of_the_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert block in EXAMPLE


def test_the_names_that_it_has() -> None:
    for name in re.findall(r"aot_tune\.torch\.(\w+)", PAGE + EXAMPLE):
        assert name in aot_tune.torch.__all__, name


def test_recipes_say_that_they_were_not_run() -> None:
    recipes = PAGE.partition("## Recipes")[2]
    assert recipes.split("\n\n")[1].startswith("**These were not run here.**")
    for block in re.findall(r"```text\n(.*?)```", recipes, re.DOTALL):
        compile(block, "recipe", "exec")
