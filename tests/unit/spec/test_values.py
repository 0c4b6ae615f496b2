"""How test values are declared: what cannot be drawn is told where it is written."""

from __future__ import annotations

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
    from_file,
    integers,
    normal,
    permutation,
    probabilities,
    sorted_offsets,
    sparse,
    uniform,
)
from aot_tune.support.errors import SpecError

M, N = dims("M N")


def operator(values: Values | None = None, dtype: str = "i32", **changes: Any) -> Operator:
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
    (lambda: operator(integers(0, dim("Q"))), "(?s)values of tensor 'x': Q uses 'Q', which is not a dim.*fix"),
    (lambda: operator(sorted_offsets(attribute("a"))), "uses 'attribute.a', which is not a dim"),
    (lambda: operator(sparse(0.5, integers(0, dim("Q")))), "uses 'Q', which is not a dim"),
    (lambda: operator(integers(0, 300), "u8"), "(?s)'x': 300 is out of the range of u8.*from 0 to 255.*wider"),
    (lambda: operator(integers(-1, 3), "u8"), "-1 is out of the range of u8"),
    (lambda: operator(integers(-129, 3), "i8"), "-129 is out of the range of i8"),
    (lambda: operator(integers(0, 2050), "f16"), "2050 is out of the range of f16"),
    (lambda: operator(integers(-1, 3), "u64"), "-1 is out of the range of u64"),
    (lambda: operator(integers(0, 2**64 + 1), "u64"), f"{2**64 + 1} is out of the range of u64"),
    (lambda: operator(integers(0, 2**15 + 1), "i16"), "32769 is out of the range of i16"),
    (lambda: operator(integers(0, 18), "f8e4m3"), "(?s)18 is out of the range of f8e4m3.*from -16 to 16"),
    (lambda: operator(integers(0, 10), "f8e5m2"), "10 is out of the range of f8e5m2"),
    (lambda: operator(uniform(-1, 3), "u16"), "-1 is out of the range of u16"),
    (lambda: operator(uniform(0, 2**33), "u32"), f"{2**33} is out of the range of u32"),
    (lambda: operator(probabilities(), "u16"), "u16 has no fractions"),
    (lambda: operator(permutation(), "f8e4m3"), "f8e4m3 does not count"),
    (lambda: operator(integers(0, 3), "bool"), "3 is out of the range of bool"),
    (lambda: operator(sorted_offsets(200), "i8"), "200 is out of the range of i8"),
    (lambda: operator(permutation(), "f32"), "(?s)f32 does not count.*these are indices"),
    (lambda: operator(sorted_offsets(3), "bool"), "bool does not count"),
    (lambda: operator(probabilities(), "i32"), "(?s)i32 has no fractions.*use f32"),
    (lambda: operator(probabilities(), "T", dtypes={"T": ("f16", "i8")}), "i8 has no fractions"),
    (
        lambda: operator(exact=IntegerSums(N, thinned="v")),
        "(?s)exact has the `thinned` input 'v', which is not a required input.*use one of: w, x",
    ),
    (lambda: operator(exact=IntegerSums(N, thinned="y")), "exact has the `thinned` input 'y'"),
    (
        lambda: operator(permutation(), exact=IntegerSums(N, thinned="x")),
        "(?s)exact has the `thinned` input 'x'.*fix: use one of: w\\Z",
    ),
    (lambda: operator(exact=IntegerSums(dim("Q"), thinned="w")), "exact: terms uses 'Q', which is not bound"),
    (lambda: operator(exact=IntegerSums(N, "w", (attribute("a") == 0,))), "exact: requires uses 'attribute.a'"),
    (lambda: operator(exact=IntegerSums(N, "w", (True,))), "exact is not an IntegerSums"),  # type: ignore[arg-type]
    (lambda: operator(exact=True), r"exact is not an IntegerSums.*\n  fix: write exact=IntegerSums\("),
    (lambda: operator(deterministic=1), "deterministic 1 is not a boolean"),
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
        operator(integers(low, high), dtype)


def test_values_are_part_of_what_is_promised_and_ways_to_verify_are_not() -> None:
    """Records stay valid when an operator comes to be verified on integers, not when its inputs become others."""
    different = [
        operator(),
        operator(integers(0, N)),
        operator(integers(1, N)),
        operator(integers(0, M)),
        operator(permutation()),
        operator(sorted_offsets(N)),
        operator(sparse(0.5)),
        operator(sparse(0.25)),
        operator(sparse(0.5, integers(0, 2))),
        operator(from_file("x.npy")),
        operator(deterministic=True),
    ]
    assert len({operator_digest(op) for op in different}) == len(different)
    assert operator_digest(operator()) == operator_digest(operator(exact=IntegerSums(N, thinned="w")))
    assert operator_digest(operator()) == operator_digest(operator(folder="/somewhere"))
