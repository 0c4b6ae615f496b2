"""Tensors: what is read and written, outputs in the memory of inputs, and how test values are declared."""

from collections.abc import Callable
from typing import Any

import pytest
from small_operators import make_operator

from aot_tune.database import operator_digest
from aot_tune.spec import (
    IntegerSums,
    Operator,
    Tensor,
    Values,
    attribute,
    dim,
    dims,
    drawn,
    from_file,
    integers,
    normal,
    permutation,
    probabilities,
    problem,
    sorted_offsets,
    sparse,
    uniform,
)
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


def drawing(values: Values | None = None, dtype: str = "i32", **changes: Any) -> Operator:
    tensors = (
        Tensor("w", (M, N)),
        Tensor("x", (M, N), dtype, values=values),
        Tensor("y", (N,), optional=True),
        Tensor("out", (M, N), output=True),
    )
    return make_operator(**{"tensors": tensors, **changes})


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: integers(4, 4), r"integers\(4, 4\) is empty\n  why: high is not drawn\n  fix: give low < high"),
    (lambda: integers(0.5, 4), r"integers: low cannot be 0\.5"),  # type: ignore[arg-type]
    (lambda: sorted_offsets(-1), r"sorted_offsets\(-1\) ends below 0"),
    (lambda: sparse(0), "density 0 is not a share"),
    (lambda: sparse(1.5), r"density 1\.5 is not a share"),
    (lambda: sparse(True), "density True is not a share"),
    (lambda: sparse(0.5, permutation()), "(?s)values cannot be Permutation.*set to 0"),  # type: ignore[arg-type]
    (lambda: from_file("/tmp/x.npy"), "names no .npy file below the operator's folder"),
    (lambda: from_file("../x.npy"), "names no .npy file below"),
    (lambda: from_file("x.npz"), "names no .npy file below"),
    (lambda: Tensor("x", (M,), values=3.0), r"tensor 'x': its values cannot be 3\.0"),  # type: ignore[arg-type]
    (lambda: Tensor("x", (M,), output=True, values=normal()), "(?s)'x': its values .*an output is written, not drawn"),
    (lambda: drawing(integers(0, dim("Q"))), "(?s)values of tensor 'x': Q uses 'Q', which is not a dim.*fix"),
    (lambda: drawing(sorted_offsets(attribute("a"))), "uses 'attribute.a', which is not a dim"),
    (lambda: drawing(sparse(0.5, integers(0, dim("Q")))), "uses 'Q', which is not a dim"),
    (lambda: drawing(integers(0, 300), "u8"), "(?s)'x': 300 is out of the range of u8.*from 0 to 255.*wider"),
    (lambda: drawing(integers(-1, 3), "u8"), "-1 is out of the range of u8"),
    (lambda: drawing(integers(-129, 3), "i8"), "-129 is out of the range of i8"),
    (lambda: drawing(integers(0, 2050), "f16"), "2050 is out of the range of f16"),
    (lambda: drawing(integers(-1, 3), "u64"), "-1 is out of the range of u64"),
    (lambda: drawing(integers(0, 2**64 + 1), "u64"), f"{2**64 + 1} is out of the range of u64"),
    (lambda: drawing(integers(0, 2**15 + 1), "i16"), "32769 is out of the range of i16"),
    (lambda: drawing(integers(0, 18), "f8e4m3"), "(?s)18 is out of the range of f8e4m3.*from -16 to 16"),
    (lambda: drawing(integers(0, 10), "f8e5m2"), "10 is out of the range of f8e5m2"),
    (lambda: drawing(uniform(-1, 3), "u16"), "-1 is out of the range of u16"),
    (lambda: drawing(uniform(0, 2**33), "u32"), f"{2**33} is out of the range of u32"),
    (lambda: drawing(probabilities(), "u16"), "u16 has no fractions"),
    (lambda: drawing(permutation(), "f8e4m3"), "f8e4m3 does not count"),
    (lambda: drawing(integers(0, 3), "bool"), "3 is out of the range of bool"),
    (lambda: drawing(sorted_offsets(200), "i8"), "200 is out of the range of i8"),
    (lambda: drawing(permutation(), "f32"), "(?s)f32 does not count.*these are indices"),
    (lambda: drawing(sorted_offsets(3), "bool"), "bool does not count"),
    (lambda: drawing(probabilities(), "i32"), "(?s)i32 has no fractions.*use f32"),
    (lambda: drawing(probabilities(), "T", dtypes={"T": ("f16", "i8")}), "i8 has no fractions"),
    (
        lambda: drawing(exact=IntegerSums(N, thinned="v")),
        "(?s)exact has the `thinned` input 'v', which is not a required input.*use one of: w, x",
    ),
    (lambda: drawing(exact=IntegerSums(N, thinned="y")), "exact has the `thinned` input 'y'"),
    (
        lambda: drawing(permutation(), exact=IntegerSums(N, thinned="x")),
        "(?s)exact has the `thinned` input 'x'.*fix: use one of: w\\Z",
    ),
    (lambda: drawing(exact=IntegerSums(dim("Q"), thinned="w")), "exact: terms uses 'Q', which is not bound"),
    (lambda: drawing(exact=IntegerSums(N, "w", (attribute("a") == 0,))), "exact: requires uses 'attribute.a'"),
    (lambda: drawing(exact=IntegerSums(N, "w", (True,))), "exact is not an IntegerSums"),  # type: ignore[arg-type]
    (lambda: drawing(exact=True), r"exact is not an IntegerSums.*\n  fix: write exact=IntegerSums\("),
    (lambda: drawing(deterministic=1), "deterministic 1 is not a boolean"),
    (lambda: drawing(workspace_max=-1), "workspace_max -1 is not a number of bytes"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[m for _, m in BAD])
def test_what_cannot_be_drawn_is_told(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_bounds_are_those_of_the_dtype() -> None:
    for low, high, dtype in (
        (0, 256, "u8"),
        (-128, 128, "i8"),
        (-2048, 2049, "f16"),
        (-256, 257, "bf16"),
        (0, 2, "bool"),
    ):
        drawing(integers(low, high), dtype)


def test_values_are_part_of_what_is_promised_and_ways_to_verify_are_not() -> None:
    """Records stay valid when an operator comes to be verified on integers, not when its inputs become others."""
    different = [
        drawing(),
        drawing(integers(0, N)),
        drawing(integers(1, N)),
        drawing(integers(0, M)),
        drawing(permutation()),
        drawing(sorted_offsets(N)),
        drawing(sparse(0.5)),
        drawing(sparse(0.25)),
        drawing(sparse(0.5, integers(0, 2))),
        drawing(from_file("x.npy")),
        drawing(deterministic=True),
    ]
    assert len({operator_digest(op) for op in different}) == len(different)
    assert operator_digest(drawing()) == operator_digest(drawing(exact=IntegerSums(N, thinned="w")))
    assert operator_digest(drawing()) == operator_digest(drawing(folder="/somewhere"))


def test_a_function_that_draws_reads_inputs_before_its_own() -> None:
    def made(*reads: str) -> Operator:
        tensors = Tensor("x", (M,)), Tensor("n", (M,), "i32", values=drawn(lambda rng, call: None, reads=reads))
        return make_operator(extents="M", tensors=(*tensors, Tensor("y", (M,), output=True)))

    assert made("x").inputs[1].values.reads == ("x",)  # type: ignore[union-attr]
    for name in ("X", "n"):
        with pytest.raises(SpecError, match=f"'n': no input before it is '{name}'\n  fix: .*'?x'?"):
            made(name)
