"""docs/jax.md shows the example as it is; tests/integration runs it."""

from __future__ import annotations

import re

from places import ROOT

PAGE = (ROOT / "docs" / "jax.md").read_text()
EXAMPLE = (ROOT / "examples" / "jax_model" / "model.py").read_text()


def test_its_code_is_that_of_the_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        assert block in EXAMPLE


def test_the_names_that_it_has() -> None:
    declared = (ROOT / "aot_tune" / "jax" / "__init__.py").read_text()
    for name in re.findall(r"aot_tune\.jax\.(\w+)", PAGE + EXAMPLE):
        assert f'"{name}"' in declared, name
