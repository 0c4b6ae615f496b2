"""Elements of all types: how they are drawn and stored, what is right of them, on the host and in torch's tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from element_types import NAMES, write_operators

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.comparison import compare_stored
from aot_tune.bench.worker.cuda_memory import Truths, torch_dtype
from aot_tune.bench.worker.cuda_truth import draw_inputs, exact_values, write_limits
from aot_tune.bench.worker.reference_results import Bounds, logical_inputs, read_limits, read_truth, write_truth
from aot_tune.bench.worker.stored_elements import stored_as, values_of
from aot_tune.spec import Operator, Tensor, dtype, problem
from aot_tune.spec.load_operators import load_operator

torch: Any = pytest.importorskip("torch")
Judge = Callable[[np.ndarray[Any, Any]], tuple[str, float]]
ON = {
    "quantise": (Check(problem=problem(N=700)), Check(problem=problem(N=64), special="x")),
    "rescale": (
        Check(problem=problem(N=700)),
        Check(problem=problem(N=700, dtypes={"T": "f8e4m3"})),
        Check(problem=problem(N=64, dtypes={"T": "f8e4m3"}), special="x"),
        Check(problem=problem(N=64), special="x"),
    ),
    "mix": (Check(problem=problem(N=700)), Check(problem=problem(N=64), scalars={"mixes": False})),
}


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Operator]:
    """The operators of these element types."""
    root = write_operators(tmp_path_factory.mktemp("types") / "templates")
    return {name: load_operator(root / name) for name in NAMES}


def judges(op: Operator, check: Check, folder: Path, name: str) -> tuple[Any, list[Judge]]:
    """The true values of an output, and both families' judgement of what a kernel may have stored."""
    concrete = op.concrete(check.problem.dtypes)
    tensor, device = concrete.tensor(name), torch.device("cpu")
    write_truth(op, check, folder / "here", 5)
    truth, values = read_truth(folder / "here")[name]
    write_limits(concrete, check, folder / "there", 5, device)
    exact = exact_values(concrete, check, draw_inputs(concrete, check, 5, device), device)[name]
    np.testing.assert_array_equal(exact.numpy(), values)
    expected = Truths(tensor, exact, read_limits(folder / "there")[name])

    def in_torch(stored: Any) -> tuple[str, float]:
        got = torch.from_numpy(stored.copy()).view(torch_dtype(tensor))
        worst = float(expected.worst(got))
        fault, error = expected.judge(got)
        assert bool(fault) == (not worst <= 1 and error > 1), (fault, worst, error)
        return fault, error

    return values, [lambda stored: compare_stored(tensor, stored, values, truth.bounds), in_torch]


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_the_same_on_both_and_what_is_rounded_once_is_right(
    operators: dict[str, Operator], tmp_path: Path, name: str
) -> None:
    for case, check in enumerate(ON[name]):
        op = operators[name].concrete(check.problem.dtypes)
        here, there = logical_inputs(op, check, 5), draw_inputs(op, check, 5, torch.device("cpu"))
        assert here
        for tensor in op.inputs:
            stored = there[tensor.name].numpy().view(tensor.dtype.bits_as)
            np.testing.assert_array_equal(values_of(tensor.dtype, stored), here[tensor.name])
        for output in op.outputs:
            values, both = judges(operators[name], check, tmp_path / f"{case} {output.name}", output.name)
            for judge in both:
                fault, error = judge(stored_as(output.dtype, values))
                assert not fault
                assert error <= 0.5


@pytest.mark.parametrize("format_", ["f8e4m3", "f8e5m2"])
def test_wrong_floats_of_eight_bits_are_found(operators: dict[str, Operator], tmp_path: Path, format_: str) -> None:
    op, check = operators["rescale"], Check(problem=problem(N=700, dtypes={"T": format_}))
    values, both = judges(op, check, tmp_path, "y")
    one = dtype(format_)
    right = stored_as(one, values)
    sizes = right & 0x7F
    next_but_one = np.where(sizes > 8, right + 2, right).astype(np.uint8)
    wrong = {
        "unwritten": np.full_like(right, 0xFF),
        "zeros": np.zeros_like(right),
        "one is unwritten": np.where(np.arange(700) == 699, 0xFF, right).astype(np.uint8),
        "the sign": right ^ 0x80,
        "two steps": next_but_one,
        "doubled": stored_as(one, 2 * values),
    }
    for judge in both:
        for what, stored in wrong.items():
            fault, error = judge(stored)
            assert fault.startswith("y["), what
            assert error > 1, what


def test_what_is_too_large_saturates_or_is_infinite(operators: dict[str, Operator], tmp_path: Path) -> None:
    check = Check(problem=problem(N=64), scalars={"factor": 1e6})
    for format_, odd in (("f8e5m2", 0x7C), ("f8e4m3", 0x7E)):
        on = Check(problem=problem(N=64, dtypes={"T": format_}), scalars=check.scalars)
        values, both = judges(operators["rescale"], on, tmp_path / format_, "y")
        right = stored_as(dtype(format_), values)
        large = np.abs(values) > values_of(dtype(format_), np.array([0x7B if odd == 0x7C else 0x7E], np.uint8))[0]
        assert large.sum() > 5
        for judge in both:
            assert judge(right)[0] == ""
            assert judge(np.where(large, odd | (right & 0x80), right).astype(np.uint8))[0] == ""
            assert judge(np.where(large, 0x7F, right).astype(np.uint8))[0] != ""  # NaN is what unwritten ones are


def test_integers_are_right_to_the_last_bit(operators: dict[str, Operator], tmp_path: Path) -> None:
    values, both = judges(operators["mix"], Check(problem=problem(N=700)), tmp_path, "out")
    assert values.dtype == np.uint64
    assert values.max() > 2**63
    for judge in both:
        assert judge(values) == ("", 0.0)
        for step in (1, -1):
            wrong = values.copy()
            wrong[77:78] += np.uint64(step % 2**64)
            fault, _ = judge(wrong)
            assert f"out[77]: got {wrong[77]}, want {values[77]}" in fault
            assert "1 of 700 elements are wrong" in fault


@pytest.mark.parametrize("name", ["i64", "u64"])
def test_a_step_is_counted_beyond_2_to_the_53(name: str) -> None:
    kind = np.dtype(dtype(name).numpy)
    want = np.array([0, 2**62 + 1, 2**63 - 1, 5], kind)
    bounds = Bounds(absolute=1.0, relative=0.0)
    output = Tensor("out", (4,), name, output=True)
    near, far = want.copy(), want.copy()
    near[1] += 1
    far[1] += 2
    assert compare_stored(output, near, want, bounds) == ("", 1.0)
    fault, error = compare_stored(output, far, want, bounds)
    assert error == 2
    assert "tolerance 1; 1 of 4 elements are wrong" in fault
    ends = np.array([np.iinfo(kind).min, np.iinfo(kind).max] * 2, kind)
    assert compare_stored(output, ends, ends[::-1].copy(), bounds)[1] == pytest.approx(2.0**64)


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_tolerances_are_those_on_a_gpu(tmp_path: Path, name: str) -> None:
    op = OPERATORS["layer_norm"]
    check = Check(problem=problem(R=16, D=4096, present=["weight", "bias"], dtypes={"T": name}))
    write_truth(op, check, tmp_path / "here", 5)
    write_limits(op.concrete({"T": name}), check, tmp_path / "there", 5, torch.device("cpu"))
    here, there = read_truth(tmp_path / "here")["out"][0].bounds, read_limits(tmp_path / "there")["out"].bounds
    assert here.relative == pytest.approx(there.relative, rel=1e-3)
    assert here.absolute == pytest.approx(there.absolute, rel=0.02)
