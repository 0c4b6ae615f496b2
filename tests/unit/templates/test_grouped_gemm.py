"""Products of groups of rows: kernels give what the definition says, also for ends and counts that mean nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from host_kernels import CpuKernel, CudaKernel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted import Trial, faults
from triton_bundled import HOPPER, bundled

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.engine import exchangeable
from aot_tune.bench.worker.inputs import call_of, fill, layout
from aot_tune.bench.worker.stored_elements import array_dtype, stored_as, values_of
from aot_tune.compile.device_targets import CUDA_TARGETS
from aot_tune.render.triton.specialize import guards, plain_pins, specialized_pins
from aot_tune.spec import Operator, Problem, all_of, dtype, problem

FORMS = (
    ("grouped_gemm", "bf16"),
    ("grouped_gemm_masked", "f16"),
    ("grouped_scaled_mm", "f8e4m3"),
    ("grouped_scaled_mm_masked", "f8e4m3"),
)
Launch = Callable[..., int]
Arrays = dict[str, Any]


def given_problem(name: str, stored: str, rows: int, e: int, n: int, k: int, **more: Any) -> Problem:
    dims = {"E": e, "C" if "masked" in name else "M": rows, "N": n, "K": k}
    return problem(**dims, dtypes={"T": stored}, **more)


def arrays_of(op: Operator, one: Problem) -> Arrays:
    """Drawn inputs as they are stored, with the problem's strides; outputs hold NaN."""
    check, arrays = Check(problem=one), dict[str, Any]()
    places = {t.name: layout(op, check, t) for t in op.tensors}
    flat = {t.name: np.zeros(places[t.name].extent(), array_dtype(op.dtype(one, t))) for t in op.tensors}
    fill(op, check, {t.name: flat[t.name] for t in op.inputs}, 7)
    for tensor in op.tensors:
        if tensor.output:
            flat[tensor.name].view(np.uint8)[...] = 0xFF
        arrays[tensor.name] = places[tensor.name].array(flat[tensor.name].dtype, flat[tensor.name])
    return arrays


def wanted(op: Operator, one: Problem, arrays: Arrays) -> Any:
    """What the operator's definition says, in float64."""
    values = {t.name: np.array(values_of(op.dtype(one, t), arrays[t.name])) for t in op.inputs}
    values = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in values.items()}
    return op.reference(np, call_of(op.concrete(one.dtypes), Check(problem=one), values))["out"]


def compare(op: Operator, one: Problem, launch: Launch, sizes: Sequence[int] | None = None) -> None:
    """Call, and compare to what a rounding of the result leaves; with these ends or counts, if there are some."""
    op = op.concrete(one.dtypes)
    arrays = arrays_of(op, one)
    if sizes is not None:
        arrays[op.tensors[2].name][...] = sizes
    truth = wanted(op, one, arrays)
    assert launch(**arrays) == 0
    element = op.dtype(one, op.tensor("out"))
    got = values_of(element, arrays["out"]).astype(np.float64)
    scale = np.max(np.abs(truth), initial=1.0)
    np.testing.assert_allclose(got, truth, rtol=2.0**-element.fraction, atol=scale * 2e-5)


# -- on the CPU, CUDA C++ on a stand-in, and Triton in its interpreter -------------------------------------------------


@pytest.fixture(scope="module")
def generic(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Launch]:
    folder = tmp_path_factory.mktemp("grouped")
    return {n: CpuKernel(folder, OPERATORS[n], "generic", dtypes={"T": stored}) for n, stored in FORMS}


ENDS = ([0, 20, 20, 21, 33], [-5, 40, 10, 2**31 - 1, 45])
COUNTS = ([-4, 2**31 - 1, 20, 0, 3],)
SHAPES = ((0, 3, 5, 7), (1, 1, 1, 1), (77, 5, 70, 150), (40, 16, 200, 260), (33, 3, 130, 0), (9, 0, 8, 8))


@pytest.mark.parametrize(("name", "stored"), FORMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", [{}, {"b": (0, 2, 1)}])
def test_generic_results_are_those_of_the_definition(
    generic: Mapping[str, Launch], name: str, stored: str, shape: tuple[int, int, int, int], order: Any
) -> None:
    compare(OPERATORS[name], given_problem(name, stored, *shape, order=order), generic[name])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-5, 60), min_size=4, max_size=4))
def test_ends_and_counts_may_be_any_numbers(generic: Mapping[str, Launch], sizes: list[int]) -> None:
    for name, stored in FORMS:
        compare(OPERATORS[name], given_problem(name, stored, 50, 4, 20, 130), generic[name], sizes)


def test_ends_that_fall_or_lie_beyond_mean_what_is_documented(generic: Mapping[str, Launch]) -> None:
    b = np.array([10, 20, 30, 40], np.float16).reshape(4, 1, 1)
    rooms, counts = np.full((4, 2, 1), -1, np.float16), np.array([-3, 1, 9, 0], np.int32)
    a = np.arange(8, dtype=np.float16).reshape(4, 2, 1)
    assert generic["grouped_gemm_masked"](a=a, b=b, counts=counts, out=rooms) == 0
    assert rooms.reshape(-1).tolist() == [-1, -1, 40, -1, 120, 150, -1, -1]
    a, bf16 = np.arange(1, 7).reshape(6, 1), dtype("bf16")
    for ends, rows in (([4, 2, 5, 5], [10, 20, 30, 40, 150, 0]), ([-9, 99, 3, 6], [20, 40, 60, 80, 100, 120])):
        arrays = {"a": stored_as(bf16, a), "b": stored_as(bf16, b), "ends": np.array(ends, np.int32)}
        out = stored_as(bf16, np.full((6, 1), np.nan))
        assert generic["grouped_gemm"](**arrays, out=out) == 0
        assert values_of(bf16, out).reshape(-1).tolist() == rows


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stored"), [FORMS[0], FORMS[3]])
def test_cuda_results_are_those_of_the_definition(tmp_path: Path, name: str, stored: str) -> None:
    sm_80 = next(t for t in CUDA_TARGETS if t.name == "cuda-sm_80")
    launch = CudaKernel(tmp_path, OPERATORS[name], "cuda_generic", sm_80, dtypes={"T": stored})
    for shape in ((1, 1, 1, 1), (77, 5, 70, 40), (20, 8, 130, 150), (5, 2, 3, 0)):
        for order in ({}, {"b": (0, 2, 1)}):
            compare(OPERATORS[name], given_problem(name, stored, *shape, order=order), launch)
    compare(OPERATORS[name], given_problem(name, stored, 50, 4, 20, 40), launch, [-7, 90, 20, 2**31 - 1])


@pytest.mark.slow
def test_triton_results_are_those_of_the_definition() -> None:
    pytest.importorskip("triton")
    blocks, trials = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128, "CTAS": 1, "num_warps": 4, "num_stages": 3}, []
    for name, swap in itertools.product(dict(FORMS), (False, True)):
        masked, scaled = "masked" in name, "scaled" in name
        by_columns = scaled or masked != swap
        form: Any = {"order": {"b": (0, 2, 1)}} if by_columns else {}
        one = given_problem(name, "f8e4m3" if scaled else "f16", 20 if masked else 50, 5, 144, 144, **form)
        for sizes in COUNTS if masked else ENDS:
            kernel, put = "triton_few_rows" if by_columns else "triton_by_rows", {"counts" if masked else "ends": sizes}
            check = Check(problem=one, integers=True)
            trials.append(Trial(OPERATORS[name], kernel, {**blocks, "SWAP": swap}, check, put))
    assert len(trials) == 12
    assert not faults(trials)


@pytest.mark.parametrize("name", [name for name, _ in FORMS])
def test_triton_kernels_are_for_some_of_the_workload_and_their_guards_hold_there(name: str) -> None:
    op = bundled(name)
    for kernel in (k for k in op.kernels if k.triton is not None):
        meant = [p for p in op.workload_for("cuda") if all_of((*kernel.requires, *kernel.worthwhile), op.facts(p))]
        assert meant, kernel.name
        configs = list(kernel.configs(HOPPER.facts))
        assert 1 <= len(configs) <= 8
        for one, pins in itertools.product((meant[0], meant[-1]), (specialized_pins, plain_pins)):
            concrete = op.concrete(one.dtypes)
            found = pins(concrete, kernel, configs[0], one, HOPPER.name)
            assert all_of(guards(concrete, kernel, configs[0], found, HOPPER.name), op.facts(one)), one.id


# -- what is drawn -----------------------------------------------------------------------------------------------------


@given(rows=st.integers(0, 3000), e=st.integers(1, 300))
def test_drawn_sizes_are_those_that_flops_and_bytes_count(rows: int, e: int) -> None:
    for name, stored in FORMS[:2]:
        op, one = OPERATORS[name], given_problem(name, stored, rows, e, 1, 1)
        sizes = arrays_of(op, one)[op.tensors[2].name].astype(np.int64)
        each = sizes if "masked" in name else np.diff(sizes, prepend=0)
        assert (each >= 0).all()
        assert each.max(initial=0) <= rows
        live = 2 * int(each.sum())
        assert op.flops.evaluate(op.facts(one)) == live
        read = op.tensor("b").read
        assert read is not None
        assert read.evaluate(op.facts(one)) == int((each > 0).sum())


@pytest.mark.parametrize(("name", "stored"), FORMS)
def test_elements_of_what_sizes_do_not_depend_on_may_be_exchanged(name: str, stored: str) -> None:
    op = OPERATORS[name]
    exchanged = {t.name for t in exchangeable(op, op.inputs)}
    assert exchanged == {t.name for t in op.inputs} - {"ends", "counts"}


def test_bytes_of_experts_without_rows_do_not_count() -> None:
    op = OPERATORS["grouped_gemm"]
    small = given_problem("grouped_gemm", "bf16", 8, 32, 4096, 7168)
    assert op.compulsory_bytes(small) < 2 * 8 * 4096 * 7168
    assert math.isclose(op.flops.evaluate(op.facts(small)), 2 * 8 * 4096 * 7168)
