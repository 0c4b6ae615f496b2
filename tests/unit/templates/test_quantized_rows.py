"""Rows to 8 bits: kernels for the CPU, in CUDA (by a stand-in for it) and in Triton (by its interpreter) are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from host_kernels import HOPPER, CpuKernel, CudaKernel
from interpreted import Trial, faults

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.comparison import compare_stored
from aot_tune.bench.worker.inputs import attribute_indices, fill, layout, scalar_values
from aot_tune.bench.worker.reference_results import read_truth, write_truth
from aot_tune.bench.worker.stored_elements import array_dtype, stored_as, values_of
from aot_tune.spec import DTYPES, Config, Expr, Operator, dims, dtype_index

NAMES = ("quantize_rows", "silu_mul_quantize", "rms_norm_quantize")
D, GROUP = dims("D GROUP")
OF_DTYPES = (("bf16", "f8e4m3"), ("f32", "i8"), ("f16", "f8e4m3"))


def checks(op: Operator, t: str, q: str, requires: tuple[Expr, ...] = (), most: int | None = None) -> list[Check]:
    """What a build verifies a kernel on."""
    pins = (dtype_index("T") == op.dtypes["T"].index(t), dtype_index("Q") == op.dtypes["Q"].index(q))
    return derived_checks(op, (*pins, *requires), most=most)


def wrong(op: Operator, check: Check, kernel: Any, folder: Path) -> str:
    """What is wrong with the outputs of a kernel on a check, in an array each."""
    op = op.concrete(check.problem.dtypes)
    present = [t for t in op.tensors if op.is_present(check.problem, t)]
    places = {t.name: layout(op, check, t) for t in present}
    flats = {t.name: np.full(places[t.name].extent(), 0, array_dtype(t.dtype)) for t in present}
    for flat in flats.values():
        flat.view(np.uint8)[...] = 0xFF
    fill(op, check, {t.name: flats[t.name] for t in op.inputs if t.name in flats}, 3)
    arrays = {n: places[n].array(flat.dtype, flat) for n, flat in flats.items()}
    assert kernel({**scalar_values(op, check), **attribute_indices(op, check)}, **arrays) == 0
    write_truth(op, check, folder, 3)
    for name, (truth, want) in read_truth(folder).items():
        if not truth.undefined and want.size:
            said, _ = compare_stored(op.tensor(name), arrays[name], want, truth.bounds)
            if said:
                return f"{check.place}: {said}"
    return ""


def right(op: Operator, given: Sequence[Check], kernel: Any, t: str, folder: Path) -> None:
    """Whether a kernel is right on checks, and with sums in the residual's memory what it is without."""
    found = [wrong(op, check, kernel, folder / str(i)) for i, check in enumerate(given)]
    assert not any(found), list(filter(None, found))
    if op.name != "rms_norm_quantize":
        return
    draws = np.random.default_rng(4)
    for columns, group in ((264, 64), (1024, 128), (6000, 6000), (40008, 40008)):
        x, added = (stored_as(DTYPES[t], draws.standard_normal((3, columns)).astype(np.float32)) for _ in range(2))
        results = []
        for residual, sums in ((added, np.empty_like(added)), (both := added.copy(), both)):
            out, scale = np.empty(x.shape, np.uint8), np.empty((3, -(-columns // group)), np.float32)
            arrays = {"x": x, "residual": residual, "out": out, "scale": scale, "residual_out": sums}
            assert kernel({"eps": 1e-5, "group": group, "min_amax": 1e-10}, **arrays) == 0
            results.append([a.tobytes() for a in (out, scale, sums)])
        assert results[0] == results[1]


@pytest.mark.parametrize(("t", "q"), OF_DTYPES[:2])
@pytest.mark.parametrize("name", NAMES)
def test_generic_kernels_are_right_on_all_that_a_build_verifies(name: str, t: str, q: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    kernel = CpuKernel(tmp_path, op, "generic", dtypes={"T": t, "Q": q})
    given = checks(op, t, q, most=24)
    assert len(given) >= 20
    right(op, given, kernel, t, tmp_path)


def on_host(op: Operator, name: str, t: str, q: str, folder: Path, config: Config | None = None) -> CudaKernel:
    before = '#include "cuda_fp8.h"\n#include "warps.h"\n'
    return CudaKernel(folder, op, name, config=config, dtypes={"T": t, "Q": q}, before=before)


@pytest.mark.parametrize(("name", "t", "q"), [(n, *OF_DTYPES[i]) for i, n in enumerate(NAMES)])
def test_the_cuda_kernels_for_any_call_are_right(name: str, t: str, q: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    kernel = on_host(op, "cuda_generic", t, q, tmp_path)
    right(op, checks(op, t, q, most=12), kernel, t, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "t", "q"), [(n, *OF_DTYPES[2 - i]) for i, n in enumerate(NAMES)])
def test_the_cuda_kernels_of_rows_in_registers_are_right(name: str, t: str, q: str, tmp_path: Path) -> None:
    """With each number of scales that they are for, and rows that registers do not hold."""
    op = OPERATORS[name]
    config = {"VECTORS": (1, 8, 4)[NAMES.index(name)]}
    kernel, requires = on_host(op, "cuda_rows", t, q, tmp_path, config), op.kernel("cuda_rows").requires
    given = checks(op, t, q, (GROUP >= D, *requires), most=8)
    for least, most in ((8000, 10000), (40000, 50000)):
        given += checks(op, t, q, (GROUP >= D, least <= D, most >= D, *requires))[-2:]
    for group in (64, 128):
        given += checks(op, t, q, (group == GROUP, *requires), most=8)
    assert len(given) >= 20
    right(op, given, kernel, t, tmp_path)


@pytest.mark.parametrize("q", ["f8e4m3", "i8"])
def test_zeros_nan_infinities_ties_and_no_elements_are_as_documented(q: str, tmp_path: Path) -> None:
    op = OPERATORS["quantize_rows"]
    kernel = CpuKernel(tmp_path, op, "generic", dtypes={"T": "f32", "Q": q})
    most, nan, inf = {"f8e4m3": 448.0, "i8": 127.0}[q], np.nan, np.inf
    rows = np.array(
        [
            [0, -0.0, 0, 0],  # the scale of min_amax
            [1, nan, 2, 3],
            [1, inf, -2, -3],
            [most, -most, 6.5 if q == "i8" else 17, 7.5 if q == "i8" else 19],  # ties
            [most * 2, 1e-30, -most, most],
        ],
        np.float32,
    )
    out, scale = np.full(rows.shape, 0x55, np.uint8), np.full((5, 2), 7, np.float32)
    given = {"group": 4, "min_amax": 0.25}
    assert kernel(given, x=rows, out=out, scale=scale[:, :1]) == 0
    none = 0 if q == "i8" else nan
    want = [[0, 0, 0, 0], [none] * 4, [0, none, 0, 0], [most, -most, *((6, 8) if q == "i8" else (16, 20))]]
    want += [[most, 0, -most / 2 if q != "i8" else -64, most / 2 if q != "i8" else 64]]
    values = out.view(np.int8) if q == "i8" else values_of(DTYPES[q], out)
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(scale[:, 0], np.array([0.25 / most, nan, inf, 1, 2], np.float32))
    assert (scale[:, 1] == 7).all()
    assert kernel({**given, "scales": 1}, x=rows, out=out, scale=scale[:, :1]) == 0
    above = 2.0**-10 if q == "f8e4m3" else 2.0**-8  # of 0.25 / most
    np.testing.assert_array_equal(scale[:, 0], np.array([above, nan, inf, 1, 2], np.float32))
    for shape in ((0, 4), (3, 0)):
        empty, scales = np.empty(shape, np.float32), np.empty((shape[0], -(-shape[1] // 4)), np.float32)
        assert kernel(given, x=empty, out=np.empty(shape, np.uint8), scale=scales) == 0


def test_triton_kernels_are_right_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    trials = []
    for op in map(OPERATORS.__getitem__, NAMES):
        for name, t, q in (("triton_rows", "f16", "f8e4m3"), ("triton_groups", "f32", "i8")):
            kernel = op.kernel(name)
            config = list(kernel.configs(HOPPER.facts))[-1]
            trials += [Trial(op, name, config, check) for check in checks(op, t, q, kernel.requires, most=9)]
    assert len(trials) > 30
    assert not faults(trials)
