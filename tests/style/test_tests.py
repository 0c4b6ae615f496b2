"""How tests are written: what two of them share lies in a module that is no test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
MODULES = sorted(TESTS.rglob("*.py"))
IMPORT = re.compile(r"^\s*(?:from\s+(?:\S+\.)?test_\w+\s+import|(?:from\s+\S+\s+)?import\s.*\btest_\w+)", re.MULTILINE)


def test_there_are_tests() -> None:
    assert len(MODULES) > 100


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(TESTS)))
def test_a_module_imports_no_test_module(path: Path) -> None:
    """Nor does a program in one of its strings."""
    assert not IMPORT.findall(path.read_text())


@pytest.mark.parametrize(
    "line",
    [
        "from test_pipeline import FAST",
        "    from tests.unit.test_pipeline import FAST",
        "import test_pipeline",
        "import linked, test_pipeline as t",
        "import tests.unit.test_pipeline",
        "from tests.unit import test_pipeline",
    ],
)
def test_such_imports_are_seen(line: str) -> None:
    assert IMPORT.search(f"import re\n{line}\n")
