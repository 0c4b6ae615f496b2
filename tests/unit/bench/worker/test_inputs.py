"""Values of test tensors: ranges, promises of rows, files, seeds, and functions of the author's."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_operators import make_operator

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.engine import exchangeable
from aot_tune.bench.worker.reference_results import logical_inputs
from aot_tune.database import operator_digest
from aot_tune.spec import (
    Attribute,
    Operator,
    Scalar,
    Tensor,
    dims,
    drawn,
    integers,
    permutation,
    probabilities,
    problem,
    sorted_offsets,
    sparse,
    uniform,
)
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import SpecError

R, D = dims("R D")


def with_values(values: Any, dtype: str = "f32", **fields: Any) -> Operator:
    """out[R, D] of an input x[R, D] with these values."""
    tensors = (Tensor("x", (R, D), dtype, values=values), Tensor("out", (R, D), output=True))
    return make_operator(**{"name": "pick", "extents": "R D", "tensors": tensors, **fields})


def values_of(op: Operator, check: Check | None = None, seed: int = 1, **dims: Any) -> Any:
    """What the reference is given."""
    return logical_inputs(op, check or Check(problem=problem(**dims)), seed)["x"]


@pytest.mark.parametrize(
    ("dtype", "values", "low", "high"),
    [("i64", uniform(0, 5), 0, 4), ("i32", uniform(-3, 3), -3, 2), ("i64", None, -8, 8), ("u8", None, 0, 8)],
)
def test_integers_are_in_their_range_and_reach_both_ends(dtype: str, values: Any, low: int, high: int) -> None:
    """Labels, for one, are below the number of classes."""
    drawn = values_of(with_values(values, dtype), R=40, D=50)
    assert (drawn.min(), drawn.max()) == (low, high)
    assert len(np.unique(drawn)) == high - low + 1


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"order": {"x": (1, 0)}},
    {"strides": {"x": (40, 1)}},
    {"strides": {"x": (60, 2)}},
    {"strides": {"x": (29, -1)}},
    {"strides": {"x": (-29, 1)}},
    {"strides": {"x": (0, 1)}},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_keep_their_promise_in_every_layout(layout: dict[str, Any]) -> None:
    ranks = values_of(with_values(permutation(), "i32"), R=5, D=29, **layout)
    assert (np.sort(ranks, axis=1) == np.arange(29)).all()
    offsets = values_of(with_values(sorted_offsets(10 * R), "i64"), R=5, D=29, **layout)
    assert (offsets[:, 0] == 0).all()
    assert (offsets[:, -1] == 50).all()
    assert (np.diff(offsets, axis=1) >= 0).all()
    assert len(np.unique(offsets)) > 10
    shares = values_of(with_values(probabilities()), R=5, D=29, **layout)
    assert shares.min() >= 0
    assert np.abs(shares.sum(axis=1, dtype=np.float64) - 1).max() < 1e-6
    same = layout.get("strides", {}).get("x") == (0, 1)
    for found in (ranks, offsets, shares):
        assert (len(np.unique(found, axis=0)) == 1) == same  # each row has values of its own


def test_integers_depend_on_dims_and_are_whole_in_every_dtype() -> None:
    for dtype in ("i32", "u8", "f16", "f32"):
        drawn = values_of(with_values(integers(0, D), dtype), R=300, D=9)
        assert set(np.unique(drawn)) == set(range(9)), dtype
    wide = values_of(with_values(integers(-(1 << 40), 1 << 40), "i64"), R=30, D=9)
    assert np.abs(wide).max() > 1 << 38
    with pytest.raises(ValueError, match=r"'x': \[0, 300\) is empty, or beyond 255, where u8 ends"):
        values_of(with_values(integers(0, D), "u8"), R=1, D=300)
    with pytest.raises(ValueError, match="is empty"):
        values_of(with_values(integers(1, D), "i32"), R=4, D=1)


def test_values_of_a_file_are_found_beside_the_operator(tmp_path: Path) -> None:
    folder = tmp_path / "pick"
    folder.mkdir()
    (folder / "operator.py").write_text(
        "from aot_tune.spec import Kernel, Operator, Tensor, dims, from_file, problem\n"
        "R, D = dims('R D')\n"
        "operator = Operator(name='pick', dims=('R', 'D'), flops=R * D, workload=(problem(R=2, D=4),),\n"
        "    tensors=(Tensor('x', (R, D), 'i32', values=from_file('data/x.npy')),\n"
        "             Tensor('out', (R, D), output=True)),\n"
        "    reference=lambda xp, call: {'out': call.x}, kernels=(Kernel('generic', 'pick/g.j2', generic=True),))\n"
    )
    with pytest.raises(SpecError, match=r"(?s)data/x\.npy of tensor 'x' cannot be read.*numpy\.save below"):
        load_operator(folder)
    (folder / "data").mkdir()
    np.save(folder / "data" / "x.npy", np.arange(10).reshape(2, 5))
    first = load_operator(folder)
    for layout in LAYOUTS[:-1]:
        drawn = values_of(first.concrete({}), R=3, D=4, **layout)
        assert drawn.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    np.save(folder / "data" / "x.npy", np.arange(10) * 0.5)
    second = load_operator(folder)
    assert operator_digest(first) != operator_digest(second)
    with pytest.raises(ValueError, match="values that int32 does not"):
        values_of(second, R=3, D=4)
    moved = tmp_path / "elsewhere" / "pick"
    shutil.copytree(folder, moved)
    assert operator_digest(load_operator(moved)) == operator_digest(second)
    np.save(folder / "data" / "x.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="cannot be read as values"):
        values_of(load_operator(folder), R=3, D=4)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (integers(0, 9), "i32"),
        (permutation(), "i64"),
        (sorted_offsets(R * D), "i32"),
        (probabilities(), "f16"),
        (sparse(0.3), "f32"),
        (None, "f32"),
    ],
    ids=str,
)
def test_values_depend_on_the_seed_and_on_nothing_else(values: Any, dtype: str) -> None:
    op, check = with_values(values, dtype), Check(problem=problem(R=7, D=31))
    assert np.array_equal(values_of(op, check), values_of(with_values(values, dtype), check))
    assert not np.array_equal(values_of(op, check), values_of(op, check, seed=2))
    assert not np.array_equal(values_of(op, check), values_of(op, R=7, D=31, strides={"x": (32, 1)}))


B, P, Q = dims("B P Q")


def seq_lens(rng: np.random.Generator, call: Any) -> Any:
    """At least the length of each query, at most the pages that there are."""
    return rng.integers(call.query_lens, call.P * 16 // call.B, endpoint=True)


def block_table(rng: np.random.Generator, call: Any) -> Any:
    """Every page once."""
    return rng.permutation(call.P)[: call.B * call.shape[1]].reshape(call.shape)


def paged(values: Callable[..., Any] = block_table, dtype: str = "i32", **changes: Any) -> Operator:
    fields: dict[str, Any] = {
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
        "workload": (problem(B=4, P=40, Q=8),),
    }
    return make_operator(name="paged", extents="B P Q", **{**fields, **changes})


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


def test_a_function_sees_only_what_it_says_it_reads() -> None:
    def seen(op: Operator) -> set[str]:
        return {t.name for t in op.inputs} - {t.name for t in exchangeable(op, op.inputs)}

    def reading(function: Callable[..., Any]) -> Operator:
        table = Tensor("block_table", (B, P // B), "i32", values=drawn(function, reads=("pages",)))
        return paged(tensors=tuple(table if t.name == table.name else t for t in every.tensors))

    every = paged()
    assert seen(every) == {"query_lens", "seq_lens", "pages", "bias", "block_table"}
    assert seen(reading(block_table)) == {"query_lens", "seq_lens", "pages", "block_table"}
    with pytest.raises(ValueError, match="'query_lens' is not in `reads` of this function: add it"):
        inputs(reading(lambda _rng, call: call.query_lens))


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
