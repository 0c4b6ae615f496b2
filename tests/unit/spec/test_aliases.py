"""Tensors that are read and written, and outputs in the memory of inputs: what may be declared, and what it means."""

from __future__ import annotations

from typing import Any

import pytest
from small_operators import make_operator

from aot_tune.database.identity import operator_digest
from aot_tune.spec import Operator, Tensor, dims, problem
from aot_tune.spec.calls import aliases_on
from aot_tune.support.errors import SpecError

M, N = dims("M N")
X, GATE = Tensor("x", (M, N), inout=True), Tensor("gate", (M, N))


def operator(*tensors: Tensor, **changes: Any) -> Operator:
    return make_operator(tensors=tensors, **changes)


def test_its_bytes_count_twice() -> None:
    one = problem(M=3, N=5)
    assert operator(X, GATE).compulsory_bytes(one) == 4 * (2 * 15 + 15)
    cache = Tensor("cache", (M, N), inout=True, read=2 * N)
    assert operator(cache, GATE).compulsory_bytes(one) == 4 * (10 + 15)
    assert operator(X, GATE).tensor_bytes(one) == 4 * 30


def test_only_what_is_declared_so_changes_an_operator_s_digest() -> None:
    out = Tensor("out", (M, N), output=True)
    plain = operator_digest(operator(GATE, out))
    alias = operator_digest(operator(GATE, Tensor("out", (M, N), output=True, may_alias=("gate",))))
    inout = operator_digest(operator(X, out))
    given = operator_digest(operator(Tensor("x", (M, N)), out))
    assert len({plain, alias, inout, given}) == 4
    assert operator_digest(operator(GATE, Tensor("out", (M, N), output=True, inout=False, may_alias=()))) == plain


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"output": True, "inout": True}, r"'x' is declared with output=True and with inout=True"),
        ({"may_alias": ("y",)}, r"'x': may_alias=\('y',\) has no effect"),
        ({"inout": True, "may_alias": ("y",)}, r"an inout tensor is its own input"),
        ({"output": True, "may_alias": "y"}, r"'x': may_alias is not a tuple but 'y'"),
    ],
)
def test_a_tensor_that_contradicts_itself(given: dict[str, Any], pattern: str) -> None:
    with pytest.raises(SpecError, match=pattern):
        Tensor("x", (M, N), **given)


@pytest.mark.parametrize(
    ("tensors", "pattern"),
    [
        ((GATE,), r"has no output that is always written"),
        ((GATE, Tensor("x", (M, N), inout=True, optional=True)), r"has no output that is always written"),
        (
            (GATE, Tensor("out", (M, N), output=True, may_alias=("gat",))),
            r"may alias 'gat', which is not one of its tensors",
        ),
        ((X, Tensor("out", (M, N), output=True, may_alias=("x",))), r"may alias 'x', which is written too"),
        ((GATE, Tensor("out", (M, M), output=True, may_alias=("gate",))), r"'gate', which has another shape or dtype"),
        ((GATE, Tensor("out", (M, N), "f16", output=True, may_alias=("gate",))), r"another shape or dtype"),
    ],
)
def test_an_operator_that_cannot_be(tensors: tuple[Tensor, ...], pattern: str) -> None:
    with pytest.raises(SpecError, match=pattern):
        operator(*tensors)


def test_outputs_lie_in_each_input_s_memory_once_where_both_are_laid_out_alike() -> None:
    up = Tensor("up", (M, N))
    out = Tensor("out", (M, N), output=True, may_alias=("gate", "up"))
    more = Tensor("more", (M, N), output=True, optional=True, may_alias=("gate",))
    op = operator(GATE, up, out, more)
    assert list(aliases_on(op, problem(M=3, N=5))) == [{"out": "gate"}, {"out": "up"}]
    assert list(aliases_on(op, problem(M=3, N=5, present=("more",)))) == [
        {"out": "gate"},
        {"out": "up", "more": "gate"},
    ]
    assert list(aliases_on(op, problem(M=3, N=5, order={"gate": (1, 0)}))) == [{"out": "up"}]
    every = {"order": {"gate": (1, 0), "up": (1, 0), "out": (1, 0)}, "alignment": {"gate": 4}}
    assert list(aliases_on(op, problem(M=3, N=5, **every))) == [{"out": "up"}]
    assert list(aliases_on(operator(GATE, Tensor("out", (M, N), output=True)), problem(M=3, N=5))) == []


def test_a_problem_in_which_elements_that_are_written_are_one() -> None:
    with pytest.raises(SpecError, match=r"'x' has a stride of 0"):
        operator(X, GATE, workload=(problem(M=3, N=5, strides={"x": (0, 1)}),))
    operator(X, GATE, workload=(problem(M=3, N=5, strides={"gate": (0, 1)}),))


def test_the_layout_is_that_of_an_input_with_as_many_axes() -> None:
    out = Tensor("out", (M, N), output=True, layout_of="gate")
    assert operator(GATE, out).tensor("out").layout_of == "gate"
    assert operator_digest(operator(GATE, out)) == operator_digest(operator(GATE, Tensor("out", (M, N), output=True)))
    with pytest.raises(SpecError, match="layout_of has no effect"):
        Tensor("x", (M, N), layout_of="gate")
    with pytest.raises(SpecError, match="'out' has the layout of 'gates', which is not an input") as error:
        operator(GATE, Tensor("out", (M, N), output=True, layout_of="gates"))
    assert "gate" in error.value.fix
    with pytest.raises(SpecError, match="which is not an input that is always passed"):
        operator(GATE, Tensor("x", (M, N), optional=True), Tensor("out", (M, N), output=True, layout_of="x"))
    with pytest.raises(SpecError, match="'out' has 1 axes and the layout of 'gate', which has 2 axes"):
        operator(GATE, Tensor("out", (M,), output=True, layout_of="gate"))
