"""The tolerance: a correct sum in another order passes, one wrong element does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.comparison import FAR_OFF
from aot_tune.bench.worker.cpu.verify import compare
from aot_tune.bench.worker.reference_results import (
    Bounds,
    logical_inputs,
    publish,
    read_truth,
    write_truth,
)
from aot_tune.spec import Operator, Tensor, problem

OUT = Tensor("out", (4, 4), output=True)


def truth(tmp_path: Path, name: str, **arguments: Any) -> tuple[Operator, Check, dict[str, Any]]:
    operator = OPERATORS[name]
    check = Check(problem=problem(**arguments))
    write_truth(operator, check, tmp_path / "truth", 5)
    return operator, check, read_truth(tmp_path / "truth")


def error(operator: Operator, truths: dict[str, Any], name: str, got: Any) -> float:
    found, values = truths[name]
    fault, worst = compare(operator.concrete({}).tensor(name), np.asarray(got, dtype=np.float32), values, found.bounds)
    assert bool(fault) == (worst > 1)
    return worst


def orders(terms: Any) -> dict[str, Any]:
    """Sums over the last axis in float32, in several orders."""
    sequential = np.add.accumulate(terms, axis=-1)[..., -1]
    lanes = terms[..., : terms.shape[-1] // 16 * 16].reshape(*terms.shape[:-1], -1, 16)
    rest = terms[..., terms.shape[-1] // 16 * 16 :]
    split = lanes.sum(-2).sum(-1) + rest.sum(-1)
    return {
        "sequential": sequential,
        "reversed": np.add.accumulate(terms[..., ::-1], axis=-1)[..., -1],
        "lanes": split,
        "pairwise": terms.sum(-1),
    }


@pytest.mark.parametrize(("depth", "draws"), [(7, 24), (1 << 20, 2)])
def test_few_results_are_drawn_often_unless_the_inputs_are_large(tmp_path: Path, depth: int, draws: int) -> None:
    """One element says little of errors, but another draw of 16 MiB takes as long as the whole check of a kernel."""
    gemm, made = OPERATORS["gemm"], list[bool]()

    def reference(xp: Any, call: Any) -> Any:
        made.append(call.a.dtype == np.float64)
        return gemm.reference(xp, call)

    write_truth(replace(gemm, reference=reference), Check(problem=problem(M=1, N=1, K=depth)), tmp_path / "truth", 5)
    assert sum(made) == draws


@pytest.mark.parametrize("width", [1, 7, 14336])
def test_norms_in_any_order_pass_and_spoiled_ones_do_not(tmp_path: Path, width: int) -> None:
    operator, check, truths = truth(tmp_path, "rms_norm", R=3, D=width, present=["weight"])
    inputs = logical_inputs(operator, check, 5)
    x = inputs["x"]
    eps = np.float32(operator.scalars[0].default)
    for name, total in orders(x * x).items():
        got = x * (1 / np.sqrt(total / np.float32(width) + eps))[:, None] * inputs["weight"]
        assert error(operator, truths, "out", got) < 0.9, name
        got[1, width // 2] *= np.float32(1.0001)
        assert error(operator, truths, "out", got) > 1, name
        if 1 < width < 5000:  # the mean over one element too few
            shorter = x / np.sqrt(total / np.float32(width - 1) + eps)[:, None] * inputs["weight"]
            assert error(operator, truths, "out", shorter) > 1, name


def test_small_probabilities_are_compared_by_their_own_size(tmp_path: Path) -> None:
    operator, check, truths = truth(tmp_path, "softmax", R=4, D=1024)
    x = logical_inputs(operator, check, 5)["x"]
    for name, total in orders(np.exp(x - x.max(-1, keepdims=True))).items():
        got = np.exp(x - x.max(-1, keepdims=True)) / total[:, None]
        assert error(operator, truths, "out", got) < 0.9, name
    row, column = np.unravel_index(np.argmin(np.abs(got - 1e-9)), got.shape)
    assert got[row, column] < 2e-9
    got[row, column] *= np.float32(1.01)
    assert error(operator, truths, "out", got) > 1


def test_a_rectified_product_may_be_off_by_its_error_where_it_is_zero(tmp_path: Path) -> None:
    operator = OPERATORS["gemm"]
    check = Check(problem=problem(M=49, N=512, K=256, attributes={"activation": "relu"}))
    write_truth(operator, check, tmp_path / "truth", 5)
    truths = read_truth(tmp_path / "truth")
    inputs = logical_inputs(operator, check, 5)
    exact = inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64)
    rectified = exact < 0
    sums = np.zeros(exact.shape, dtype=np.float32)
    for term in range(256):  # a plain order, the same everywhere; a BLAS's depends on the machine
        sums += inputs["a"][:, term, None] * inputs["b"][None, term]
    off = float(np.percentile(np.abs(sums - exact)[rectified], 99))
    assert error(operator, truths, "out", np.where(rectified, off, exact)) < 0.9
    assert error(operator, truths, "out", np.where(rectified, 100 * off, exact)) > 1
    assert error(operator, truths, "out", exact) > 1e3


values = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=30)
@given(st.lists(values, min_size=1, max_size=40))
def test_a_result_equals_itself_and_nothing_else(drawn: list[float]) -> None:
    got = np.array(drawn, dtype=np.float32).reshape(1, -1)
    exact = got.astype(np.float64)
    bounds = Bounds(absolute=0.0, relative=0.0)
    assert compare(OUT, got, exact, bounds) == ("", 0.0)
    other = got.copy()
    other[0, -1] = 1.0 if np.isnan(other[0, -1]) else np.nan
    fault, worst = compare(OUT, other, exact, bounds)
    assert worst == FAR_OFF
    assert fault.startswith(f"out[0, {len(drawn) - 1}]: got ")


def test_the_worst_element_is_named_wherever_it_is() -> None:
    exact = np.zeros((300, 700))
    bounds = Bounds(absolute=1e-3, relative=0.0)
    for place in ((0, 0), (299, 699), (93, 437)):
        got = np.zeros((300, 700), dtype=np.float32)
        got[place] = 0.5
        got[150, 150] = 0.002
        fault, _ = compare(OUT, got, exact, bounds)
        assert (
            fault == f"out[{place[0]}, {place[1]}]: got 0.5, want 0.0, tolerance 0.001; 2 of 210000 elements are wrong"
        )


def test_of_the_bytes_that_are_true_only_one_is_right() -> None:
    """What a candidate never wrote, and was poisoned, is not taken for true."""
    none = Bounds(absolute=0.0, relative=0.0)
    got = np.array([[1, 0], [255, 1]], dtype=np.uint8).view(np.bool_)
    for layout, place in ((got, "1, 0"), (got.T, "0, 1")):
        fault, _ = compare(OUT, layout, np.where(layout, 1.0, 0.0), none)
        assert fault == f"out[{place}]: got 255.0, want 1.0, tolerance 0; 1 of 4 elements are wrong"
    got[1, 0] = True
    assert compare(OUT, got, np.where(got, 1.0, 0.0), none) == ("", 0.0)


def test_what_a_worker_wrote_before_it_died_does_no_harm(tmp_path: Path) -> None:
    """The next one computes it again."""
    first, again = (truth(tmp_path, "softmax", R=2, D=8)[2] for _ in range(2))
    assert {n: t for n, (t, _) in first.items()} == {n: t for n, (t, _) in again.items()}
    assert [f.name for f in tmp_path.iterdir()] == ["truth"]
    partial = tmp_path / "other.partial"
    partial.mkdir()
    with pytest.raises(OSError, match="No such file"):
        publish(partial, tmp_path / "nowhere" / "truth")
