"""Operators by value: what their files compute while they are read, such as from the environment, is told apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from project import OPERATOR

from aot_tune.database.plain_values import UnlistedError, plain_value
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.digests import canonical_digest as digest

ELSEWHERE = """
import os
FACTOR = int(os.environ["FACTOR"])
"""

# Each defines `reference`, of texts that are the same for every FACTOR.
CASES = {
    "a lambda of two in one line": """
both = (lambda xp, call: {"y": 2 * call.x}, lambda xp, call: {"y": 3 * call.x})
reference = both[FACTOR - 1]
""",
    "a wrapper": """
import functools
def plain(xp, call):
    return {"y": 2 * call.x}
def one(function):
    @functools.wraps(function)
    def wrapper(xp, call):
        return function(xp, call)
    return wrapper
def other(function):
    @functools.wraps(function)
    def wrapper(xp, call):
        return {"y": 3 * function(xp, call)["y"]}
    return wrapper
reference = (one, other)[FACTOR - 1](plain)
""",
    "a value that is closed over": """
def make(n):
    return lambda xp, call: {"y": n * call.x}
reference = make(FACTOR)
""",
    "a global of an imported module": """
import elsewhere_of_values
def reference(xp, call):
    return {"y": elsewhere_of_values.FACTOR * call.x}
""",
    "a method of an instance": """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Rule:
    factor: int
    def times(self, v):
        return self.factor * v
times = Rule(FACTOR).times
def reference(xp, call):
    return {"y": times(call.x)}
""",
}


def value(root: Path, patch: pytest.MonkeyPatch, head: str, factor: int) -> str:
    """The digest of an operator whose files are the same for every factor."""
    folder = root / "templates" / "twice"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "elsewhere_of_values.py").write_text(ELSEWHERE)
    text = OPERATOR.replace('lambda xp, call: {"y": 2 * call.x}', "reference")
    (folder / "operator.py").write_text(f"import os\nFACTOR = int(os.environ['FACTOR'])\n{head}\ndel FACTOR\n{text}")
    with patch.context() as given:
        given.setenv("FACTOR", str(factor))
        given.syspath_prepend(root)
        given.delitem(sys.modules, "elsewhere_of_values", raising=False)
        try:
            return digest(plain_value(load_operator(folder)))
        finally:
            sys.modules.pop("elsewhere_of_values", None)


@pytest.mark.parametrize("name", CASES)
def test_what_the_environment_decided_is_part_of_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = [
        value(tmp_path / place, monkeypatch, CASES[name], factor) for place, factor in (("a", 1), ("b", 1), ("a", 2))
    ]
    assert found[0] == found[1]  # in another folder
    assert found[0] != found[2]


REFUSED = {
    "an instance of an unknown class": """
class Factor:
    def __call__(self, v):
        return FACTOR * v
scaled = Factor()
def reference(xp, call):
    return {"y": scaled(call.x)}
""",
    "something that nobody may look at": """
class Lazy:
    @property
    def __module__(self):
        raise RuntimeError("not yet")
lazy = Lazy()
def reference(xp, call):
    return {"y": lazy * call.x}
""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(UnlistedError):
        value(tmp_path, monkeypatch, REFUSED[name], 1)


def test_values_of_a_kind_are_told_apart_where_json_would_not() -> None:
    values = [1, 1.0, True, "1", (1,), [1], {1: 1}, {"1": 1}, {1}, float("nan"), float("inf"), None, b"1", int, 1j]
    assert len({digest(plain_value(v)) for v in values}) == len(values)
