"""Values by a function of the author's: what it sees, what it may return, and what is said of its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.reference_results import logical_inputs
from aot_tune.spec import (
    Attribute,
    Kernel,
    Operator,
    Scalar,
    Tensor,
    dims,
    drawn,
    integers,
    problem,
)
from aot_tune.support.errors import SpecError

B, P, Q = dims("B P Q")


def seq_lens(rng: np.random.Generator, call: Any) -> Any:
    """At least the length of each query, at most the pages that there are."""
    return rng.integers(call.query_lens, call.P * 16 // call.B, endpoint=True)


def block_table(rng: np.random.Generator, call: Any) -> Any:
    """Every page once."""
    return rng.permutation(call.P)[: call.B * call.shape[1]].reshape(call.shape)


def paged(values: Callable[..., Any] = block_table, dtype: str = "i32", **changes: Any) -> Operator:
    fields: dict[str, Any] = {
        "name": "paged",
        "dims": ("B", "P", "Q"),
        "tensors": (
            Tensor("query_lens", (B,), "i32", values=integers(1, Q + 1)),
            Tensor("seq_lens", (B,), "i64", values=drawn(seq_lens)),
            Tensor("pages", (P, 16), "bf16"),
            Tensor("bias", (P,), optional=True),
            Tensor("block_table", (B, P // B), dtype, values=drawn(values)),
            Tensor("out", (B, Q), output=True),
        ),
        "scalars": (Scalar("count", "i64", binds="Q"), Scalar("scale", default=0.5)),
        "attributes": (Attribute("kind", ("plain", "other")),),
        "legal": (P >= B, Q <= P * 16 // B),
        "reference": lambda _xp, call: {"out": call.pages},
        "flops": B * P,
        "workload": (problem(B=4, P=40, Q=8),),
        "kernels": (Kernel("generic", "paged/generic.cpp.j2", generic=True),),
    }
    return Operator(**{**fields, **changes})


def inputs(op: Operator, seed: int = 1, **changes: Any) -> dict[str, Any]:
    one = problem(B=4, P=40, Q=8, **changes)
    return logical_inputs(op, Check(problem=one), seed)


def test_a_function_sees_what_was_drawn_before() -> None:
    found = inputs(paged())
    assert (found["seq_lens"] >= found["query_lens"]).all()
    assert (found["seq_lens"] > found["query_lens"]).any()
    assert sorted(found["block_table"].ravel().tolist()) == list(range(40))


def test_a_call_has_dims_scalars_attributes_shape_and_arrays() -> None:
    seen: dict[str, Any] = {}

    def look(rng: np.random.Generator, call: Any) -> Any:
        for name in ("B", "P", "Q", "count", "scale", "kind", "shape", "pages", "bias", "query_lens"):
            seen[name] = getattr(call, name)
        return np.zeros(call.shape, np.int64)

    found = inputs(paged(look), attributes={"kind": "other"})
    assert [seen[n] for n in ("B", "P", "Q", "count", "scale", "kind")] == [4, 40, 8, 8, 0.5, "other"]
    assert seen["shape"] == (4, 10)
    assert seen["bias"] is None
    assert np.array_equal(seen["query_lens"], found["query_lens"])
    assert np.array_equal(seen["pages"], found["pages"])  # as bf16 holds them
    with pytest.raises(ValueError, match="read-only"):
        seen["query_lens"][0] = 0
    inputs(paged(look), present=["bias"])
    assert seen["bias"].shape == (40,)


def fails(_rng: Any, _call: Any) -> Any:
    return 1 // 0


BAD: tuple[tuple[Callable[..., Any], str, str], ...] = (
    (fails, "i32", r"fails \(.*inputs.py:\d+\) raised ZeroDivisionError in line \d+: integer"),
    (
        lambda _rng, call: call.out,
        "i32",
        r"raised AttributeError in line \d+: 'out' is not drawn yet: declare that tensor before",
    ),
    (
        lambda _rng, call: call.bread,
        "i32",
        r"raised AttributeError in line \d+: the call has no 'bread'; it has B, P, Q, bias,",
    ),
    (lambda _rng, _call: np.zeros(3, int), "i32", r"returns an array of shape \(3,\), wanted \(4, 10\)"),
    (lambda _rng, call: np.full(call.shape, "a"), "i32", "returns <U1 where numbers are wanted"),
    (
        lambda _rng, call: np.random.default_rng().integers(0, 1 << 20, call.shape),
        "i32",
        "returns other values when it is called again; take all random numbers from `rng`",
    ),
    (
        lambda _rng, call: np.full(call.shape, 300),
        "u8",
        r"returns 300 at \[0, 0\], and u8 holds whole numbers from 0 to 255",
    ),
    (lambda _rng, call: np.full(call.shape, 0.5), "i32", r"returns 0.5 at \[0, 0\], and i32 holds whole"),
    (lambda _rng, call: np.full(call.shape, 7e4), "f16", r"returns 70000.0 at .*holds nothing beyond 65504"),
)


def test_what_is_wrong_with_a_function_is_told() -> None:
    for function, dtype, told in BAD:
        with pytest.raises(ValueError, match=f"values of the input 'block_table': .*{told}"):
            inputs(paged(function, dtype))


def test_functions_are_refused_where_they_are_declared() -> None:
    with pytest.raises(SpecError, match=r"drawn\('lengths'\) is not a function"):
        drawn("lengths")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"inputs.py:\d+\) cannot be called with \(rng, call\): too many pos"):
        drawn(lambda rng: rng)  # type: ignore[arg-type, misc]
    with pytest.raises(SpecError, match="'block_table' has stride 0 on an axis, and a function draws its values"):
        paged(workload=(problem(B=4, P=40, Q=8, strides={"block_table": (0, 1)}),))
