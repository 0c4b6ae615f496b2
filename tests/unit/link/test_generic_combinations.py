"""Generic variants for combinations of optional tensors and attributes: a call gets the one that is for it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from linked import NamedVariant
from odd_operators import apply, combinations, generic

from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.link.generate import check_library
from aot_tune.spec import Operator, present
from aot_tune.support.errors import ManifestError


@pytest.mark.parametrize(
    ("bias", "mode", "mark"), [(False, "a", 1), (False, "b", 2), (False, "c", 2), (True, "a", 11), (True, "c", 12)]
)
def test_a_call_gets_the_code_of_its_combination(odd_ops: ModuleType, bias: bool, mode: str, mark: int) -> None:
    x = np.zeros(5, np.float32)
    given = x if bias else None
    for _ in range(3):  # the second is remembered
        assert odd_ops.apply(x, given, mode=mode).tolist() == [mark] * 5
    told = odd_ops.explain("apply", x, given, mode=mode)
    assert told["variant"] == f"plain_{int(bias)}{int(mode == 'a')}"
    assert told["why"].startswith("generic")
    assert odd_ops.explain("apply", N=5, bias=bias, mode=mode)["variant"] == told["variant"]


def check(folder: Path, op: Operator, chosen: tuple[NamedVariant, ...]) -> None:
    check_library(LibrarySpec(output="checked", operators=(OperatorTable(operator=op, variants=chosen),)))


def test_each_combination_needs_one_answer(tmp_path: Path) -> None:
    every = combinations(tmp_path / "objects")
    check(tmp_path, apply(), every)
    with pytest.raises(ManifestError, match=r"of calls with attribute.mode=0, present.bias=1, 0 of them answer: \[\]"):
        check(tmp_path, apply(), every[:2] + every[3:])
    twice = generic(tmp_path, "plain_twice", 3, present("bias") == 0)
    with pytest.raises(ManifestError, match=r"present.bias=0, 2 of them answer: \['plain_01', 'plain_twice'\]"):
        check(tmp_path, apply(), (*every, twice))
    with pytest.raises(ManifestError, match="of calls, 2 of them answer"):
        check(tmp_path, apply(), (generic(tmp_path, "plain_a", 1), generic(tmp_path, "plain_b", 2)))
