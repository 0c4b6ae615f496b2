"""docs/triton.md shows the example as it is, docs/triton-errors.md messages that the code has."""

from __future__ import annotations

import re

from places import ROOT

TEXT = (ROOT / "docs" / "triton.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_operator_is_that_of_the_example() -> None:
    shown = BLOCKS[1].partition("\n")[2]
    assert shown == (ROOT / "examples" / "triton_package" / "templates" / "rms_norm" / "operator.py").read_text()


def test_the_decorators_are_those_of_the_example() -> None:
    shown = BLOCKS[0].partition("\n")[2].partition("def ")[0]
    assert shown in (ROOT / "examples" / "triton_package" / "templates" / "kernels.py").read_text()


def test_examples_with_triton_functions_ask_for_triton() -> None:
    """Builds in isolation have nothing else: the backend knows no targets that CMakeLists.txt names."""
    examples = [p.parent for p in (ROOT / "examples").glob("*/pyproject.toml")]
    written = {e for e in examples if any("TritonFunction(" in p.read_text() for p in e.rglob("operator.py"))}
    assert {e.name for e in written} == {"from_packages", "triton_package"}
    for example in written:
        requires = (example / "pyproject.toml").read_text().partition("requires = [")[2].partition("]")[0]
        assert '"triton' in requires
    assert 'requires = ["aot_tune", "triton>=3.6,<3.10"]' in TEXT


def test_refusals_are_messages_of_the_code() -> None:
    sources = "".join(p.read_text() for p in (ROOT / "aot_tune").rglob("*.py"))
    plain = re.sub(r'"\s*\n\s*f?"', "", sources)
    table = (ROOT / "docs" / "triton-errors.md").read_text()
    messages = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert len(messages) >= 10
    for message in messages:
        words = [w.strip(" ,:") for w in re.split(r"\.\.\.|'[a-zA-Z]+'|=|\d[\d.]*", message)]
        for part in filter(None, words):
            assert part in plain, f"{message!r}: the code has no {part!r}"
