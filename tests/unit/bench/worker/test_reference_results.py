"""The tolerance: a correct sum in another order passes, one wrong element does not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.comparison import compare_stored
from aot_tune.bench.worker.reference_results import Bounds, logical_inputs, read_truth, write_truth
from aot_tune.spec import Operator, Tensor, problem

OUT = Tensor("out", (4, 4), output=True)


def truth(tmp_path: Path, name: str, **arguments: Any) -> tuple[Operator, Check, dict[str, Any]]:
    operator = OPERATORS[name]
    check = Check(problem=problem(**arguments))
    write_truth(operator, check, tmp_path / "truth", 5)
    return operator, check, read_truth(tmp_path / "truth")


def error(operator: Operator, truths: dict[str, Any], name: str, got: Any) -> float:
    found, values = truths[name]
    fault, worst = compare_stored(
        operator.concrete({}).tensor(name), np.asarray(got, dtype=np.float32), values, found.bounds
    )
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


def test_the_worst_element_is_named_wherever_it_is() -> None:
    exact = np.zeros((300, 700))
    bounds = Bounds(absolute=1e-3, relative=0.0)
    for place in ((0, 0), (299, 699), (93, 437)):
        got = np.zeros((300, 700), dtype=np.float32)
        got[place] = 0.5
        got[150, 150] = 0.002
        fault, _ = compare_stored(OUT, got, exact, bounds)
        assert (
            fault == f"out[{place[0]}, {place[1]}]: got 0.5, want 0.0, tolerance 0.001; 2 of 210000 elements are wrong"
        )
