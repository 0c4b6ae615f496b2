"""The calls that tests/gpu make: legal ones that guards admit, and those that they refuse."""

from __future__ import annotations

import sys

import pytest
from bundled import OPERATORS
from places import ROOT

from aot_tune.spec import Operator, all_of, dim, maximum, minimum, next_power_of_2, stride, where

sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import draws


@pytest.fixture(scope="module")
def softmax() -> Operator:
    return OPERATORS["softmax"]


def test_guards_of_kernels_are_read_back_and_get_calls(softmax: Operator) -> None:
    """That each variant gets enough of them is for the tests on a GPU to see."""
    for kernel in softmax.kernels:
        if not kernel.generic and kernel.backend == "nvcc":
            texts = [r.key() for r in kernel.requires]
            guards = draws.guards_of(softmax, {}, texts)
            assert [g.key() for g in guards] == texts
            made = draws.own_calls(softmax, guards)
            served = [draws.called(softmax, *c) for c in made if not draws.refusing(softmax, guards, *c)]
            assert len({str(softmax.facts(one)) for one in served}) == len(served) >= draws.LEAST
            assert all(all_of((*softmax.legal, *guards), softmax.facts(one)) for one in served)


GUARDS = (
    where(dim("D") > 4096, 4096, next_power_of_2(dim("D"))) == 4096,
    (stride("out", 0) * 2) % 16 == 0,
    stride("x", 10) >= -(2**31),
    (dim("M") < 3) & (dim("N") != 4) | (minimum(dim("M"), 2) <= maximum(8192 // dim("N"), 1)),
    (dim("M") + dim("N")) - 1 > 0,
)


def test_a_guard_of_a_manifest_is_read_back_and_what_is_none_is_refused() -> None:
    for guard in GUARDS:
        assert draws.expression(guard.key()).data() == guard.data()
    for text in ("", "(D", "(D ** 2)", "(D < 2 < 3)", "D<2", "f(D)", "x[0]", "(D == 1.5)", "not D"):
        with pytest.raises(ValueError, match=r"manifest|expression|read as"):
            draws.expression(text)
