"""The calls that tests/gpu make: legal ones that guards admit, and those that they refuse."""

from __future__ import annotations

import sys

import pytest
from bundled import OPERATORS
from places import ROOT

from aot_tune.spec import Operator, alignment, all_of, dim, maximum, minimum, next_power_of_2, stride, where

sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import draws

JIT = (
    dim("R") < 2147483648,
    stride("x", 1) == 1,
    stride("out", 1) == 1,
    alignment("x") >= 16,
    alignment("out") >= 16,
    stride("x", 0) % 16 == 0,
    dim("D") % 16 == 0,
    next_power_of_2(dim("D")) == 1024,
)
"""Such as what code of a Triton function requires that assumes what the JIT does."""


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


def test_what_calls_for_guards_lack_is_the_layout_alone(softmax: Operator) -> None:
    made = draws.own_calls(softmax, JIT)
    unaligned = [draws.refusing(softmax, JIT, *c) for c in made if c[1] == "unaligned"]
    assert unaligned
    assert all({g.key() for g in against} == {JIT[3].key(), JIT[4].key()} for against in unaligned)
    widths = {p.dims["D"] for p, layout in made if not draws.refusing(softmax, JIT, p, layout)}
    assert len(widths) > 3  # rows that are padded to a power of two are not always full
    assert all(512 < w <= 1024 and w % 16 == 0 for w in widths)


def test_calls_are_made_that_a_variant_must_serve_and_that_it_must_refuse(softmax: Operator) -> None:
    guards = (*draws.guards_of(softmax, {"T": "bf16"}, []), *JIT)
    assert guards[0].key() == f"(dtype.T == {softmax.dtypes['T'].index('bf16')})"
    against = [draws.refusing(softmax, guards, *c) for c in draws.calls_of(softmax, guards, {"T": "bf16"})]
    assert sum(not a for a in against) >= draws.LEAST
    alone = {a[0].key() for a in against if len(a) == 1}
    assert {g.key() for g in guards[-3:]} <= alone
    guards = draws.guards_of(softmax, {"T": "f32"}, [])
    calls = draws.calls_of(softmax, guards, {"T": "f32"})
    assert len(calls) > 50
    assert not any(draws.refusing(softmax, guards, *c) for c in calls)
    assert set(draws.LAYOUTS) == {layout for _, layout in calls}


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
