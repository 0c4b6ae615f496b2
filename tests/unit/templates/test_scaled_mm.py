"""Scaled products of 8-bit floats: kernels for any call, Triton's in its interpreter, calls of cuBLASLt, bad scales."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from host_kernels import HOPPER, CpuKernel, CudaKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import Trial, faults
from stand_ins import with_cublaslt
from vendor_calls import Call, OnHost, render

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.comparison import compare_stored
from aot_tune.bench.worker.inputs import fill, layout, scalar_values
from aot_tune.bench.worker.reference_results import read_truth, write_truth
from aot_tune.bench.worker.stored_elements import array_dtype, values_of
from aot_tune.spec import Config, Kernel, all_of, dims, dtype_index, problem
from aot_tune.spec.calls import check_call
from aot_tune.support.errors import SpecError

OP = OPERATORS["scaled_mm"]
M, N, K, MA, KA, NB = dims("M N K MA KA NB")
Launch = Callable[..., int]


# -- what scales mean --------------------------------------------------------------------------------------------------


def readings(m: int, n: int, k: int) -> dict[tuple[int, int, int], list[tuple[Any, Any]]]:
    """By MA, KA and NB: for each way to read such scales, the scales' indices for all elements of a and b."""
    i, j, t = (np.arange(extent) for extent in (m, n, k))
    none = np.zeros(1, int)
    found: dict[tuple[int, int, int], list[tuple[Any, Any]]] = {}
    for rows, columns in itertools.product((none, i), (none, j)):
        found.setdefault((len(rows), 1, len(columns)), []).append((np.ix_(rows, 0 * t), np.ix_(0 * t, columns)))
    blocks = (m, -(-k // 128), -(-n // 128))
    found.setdefault(blocks, []).append((np.ix_(i, t // 128), np.ix_(t // 128, j // 128)))
    return found


@settings(max_examples=60, deadline=None)
@given(*(st.sampled_from((0, 1, 2, 3, 127, 128, 129, 256, 257)) for _ in range(3)))
def test_scales_that_may_be_read_in_two_ways_mean_the_same(m: int, n: int, k: int) -> None:
    """Each way gives the same factors, and they are the reference's."""
    values = np.random.default_rng(m + n + k)
    for (ma, ka, nb), ways in readings(m, n, k).items():
        extents = {"M": m, "N": n, "K": k, "MA": ma, "KA": ka, "NB": nb}
        assert all_of(OP.legal, extents)
        a, b, scale_a, scale_b = (values.uniform(1, 2, shape) for shape in ((m, k), (k, n), (ma, ka), (ka, nb)))
        got = OP.reference(np, SimpleNamespace(a=a, b=b, scale_a=scale_a, scale_b=scale_b, bias=None))["out"]
        for of_a, of_b in ways:
            want = (a * scale_a[of_a]) @ (b * scale_b[of_b])
            np.testing.assert_allclose(got, np.broadcast_to(want, (m, n)), rtol=1e-12)


@pytest.mark.parametrize(
    "scales",
    [(1, 3, 1), (5, 3, 1), (5, 3, 200), (5, 2, 2), (4, 1, 1), (5, 1, 2), (1, 1, 2), (5, 3, 3), (1, 3, 2), (2, 3, 2)],
)
def test_scales_of_another_shape_are_refused(scales: tuple[int, int, int]) -> None:
    ma, ka, nb = scales
    with pytest.raises(SpecError, match=r"legal: .* does not hold"):
        check_call(OP, problem(M=5, N=200, K=300, MA=ma, KA=ka, NB=nb))


# -- kernels -----------------------------------------------------------------------------------------------------------


def checks(kernel: Kernel, dtype: str, most: int) -> list[Check]:
    """What a build verifies a kernel on, or some of it."""
    own = [r for r in kernel.requires if not any(f.startswith("parameter.") for f in r.facts())]
    return derived_checks(OP, (dtype_index("T") == OP.dtypes["T"].index(dtype), *own), most=most)


def wrong(check: Check, kernel: Launch, folder: Path) -> str:
    """What is wrong with the result of a kernel on a check."""
    op = OP.concrete(check.problem.dtypes)
    present = [t for t in op.tensors if op.is_present(check.problem, t)]
    places = {t.name: layout(op, check, t) for t in present}
    flats = {t.name: np.zeros(places[t.name].extent(), array_dtype(t.dtype)) for t in present}
    flats["out"].view(np.uint8)[...] = 0xFF
    fill(op, check, {t.name: flats[t.name] for t in op.inputs if t.name in flats}, 3)
    arrays = {n: places[n].array(flat.dtype, flat) for n, flat in flats.items()}
    assert kernel(scalar_values(op, check), **arrays) == 0
    write_truth(op, check, folder, 3)
    truth, want = read_truth(folder)["out"]
    said = compare_stored(op.tensor("out"), arrays["out"], want, truth.bounds)[0] if want.size else ""
    return said and f"{check.place}: {said}"


def test_the_cpu_kernel_is_right_on_all_that_a_build_verifies(tmp_path: Path) -> None:
    kernel = CpuKernel(tmp_path, OP, "generic", dtypes={"T": "bf16"})
    every = checks(OP.kernel("generic"), "bf16", 1000)
    assert {c.problem.dims["KA"] for c in every} >= {1, 3, 9}
    faults = [wrong(check, kernel, tmp_path / str(i)) for i, check in enumerate(every)]
    assert not any(faults), list(filter(None, faults))


ON_HOST = """
#include "cuda_fp8.h"
#include "warps.h"
#define __align__(bytes) __attribute__((aligned(bytes)))
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
using __nv_fp8x2_storage_t = uint16_t;
struct __half2_raw {
  uint16_t x, y;
};
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(uint16_t two, int) {
  const auto half = [](int byte) {
    __nv_fp8_e4m3 value(0.0f);
    value.bits = static_cast<uint8_t>(byte);
    return bits_as<uint16_t>(__float2half_rn(static_cast<float>(value)));
  };
  return {half(two & 255), half(two >> 8)};
}
"""


@pytest.mark.parametrize(
    ("name", "dtype", "config"), [("cuda_generic", "f16", {}), ("cuda_thin", "bf16", {"WN": 2, "WK": 4})]
)
def test_the_cuda_kernels_are_right(name: str, dtype: str, config: Config, tmp_path: Path) -> None:
    kernel = CudaKernel(tmp_path, OP, name, HOPPER, config, {"T": dtype}, ON_HOST)
    every = checks(OP.kernel(name), dtype, 14)
    faults = [wrong(check, kernel, tmp_path / str(i)) for i, check in enumerate(every)]
    assert not any(faults), list(filter(None, faults))


TRITON = [k for k in OP.kernels if k.triton is not None]


@pytest.mark.parametrize("kernel", TRITON, ids=lambda k: k.name)
def test_triton_kernels_are_right_in_the_interpreter(kernel: Kernel) -> None:
    """Checks in f16, as the interpreter computes with bf16 as with integers; some with long sums."""
    pytest.importorskip("triton")
    config = list(kernel.configs(HOPPER.facts))[-1]
    rows = next((n for n in (int(config["BLOCK_M"]), 1000) if "tma" not in kernel.name), 1000)
    every = [c for c in checks(kernel, "f16", 30) if c.problem.dims["M"] <= rows]
    by_sums = sorted(every, key=lambda c: (c.problem.dims["K"] <= 1100, -c.problem.dims["KA"], c.problem.id))
    chosen = [c for c in (*by_sums[:4], *by_sums[4:][::8]) if not c.special]  # its NaN of 8 bits is 480
    chosen += [c for c in every if c.integers]
    assert not faults([Trial(OP, kernel.name, config, check) for check in chosen])


@pytest.mark.parametrize("k", [1, 8, 37, 61, 300, 1031])
def test_small_integers_leave_room_for_the_scales(k: int) -> None:
    """Sums of absolute products are exact in bf16, also where sums are short and numbers larger."""
    given = Check(problem=problem(M=5, N=200, K=k, MA=5, KA=-(-k // 128), NB=2), integers=True)
    places = {t.name: layout(OP, given, t) for t in OP.inputs if not t.optional}
    flats = {n: np.zeros(place.extent(), array_dtype(OP.tensor(n).dtype)) for n, place in places.items()}
    fill(OP, given, flats, 3)
    arrays = {n: np.abs(values_of(OP.tensor(n).dtype, places[n].array(f.dtype, f))) for n, f in flats.items()}
    assert OP.reference(np, SimpleNamespace(**arrays, bias=None))["out"].max() <= 128
    assert all((array == np.round(array)).all() for array in arrays.values())


# -- cuBLASLt, by a stand-in -------------------------------------------------------------------------------------------


def called(m: int, n: int, k: int, scales: tuple[int, int, int], **more: Any) -> Call:
    ma, ka, nb = scales
    strides = {
        "b": (1, k),
        "scale_a": (1, ma) if ka > 1 else (1, 1),
        "scale_b": (1, -(-ka // 4) * 4) if ka > 1 else (nb, 1),
    }
    return {"dims": {"M": m, "N": n, "K": k, "MA": ma, "KA": ka, "NB": nb}, "strides": strides, **more}


def test_the_library_is_told_how_factors_are_scaled(tmp_path: Path) -> None:
    kernel = OnHost(tmp_path, render(OP, "cublaslt_blocks", {}, "bf16"))
    calls = [
        called(8, 48, 272, (1, 1, 1)),
        called(8, 48, 272, (8, 1, 48), present=["bias"]),
        called(8, 144, 272, (8, 3, 2)),
        called(8, 144, 128, (8, 1, 2)),
    ]
    modes = ("0,0", "3,3", "5,4", "5,4")
    answers = kernel.call(calls, with_cublaslt(tmp_path / "stub"))
    for one, mode, told in zip(calls, modes, answers, strict=True):
        k = one["dims"]["K"]
        (scales,) = [line for line in told["log"] if line.startswith("scales")]
        assert scales == f"scales modes={mode} apart=1 types=28,28 lines={k},{k}"
        (product,) = [line for line in told["log"] if line.startswith("matmul")]
        assert ("type=14 compute=68 epilogue=4 " if "present" in one else "epilogue=1 ") in product
        assert (told["launch"], told["touched"]) == (0, True)
    older = kernel.call(calls, with_cublaslt(tmp_path / "older", "-DVERSION=120600"))
    assert [a["launch"] for a in older] == [0, -100, -100, -100]
    assert [a["touched"] for a in older] == [True, False, False, False]


def test_the_library_gets_scales_in_the_order_that_it_has() -> None:
    """Kernels by the library take the workload of its way, and torch's baseline has it too."""
    for name in ("", "_rows", "_blocks"):
        kernel = OP.kernel(f"cublaslt{name}")
        meant = [p for p in OP.workload_for("cuda") if all_of(kernel.requires, OP.facts(p))]
        assert len(meant) > 10
        assert all(OP.baselines[0].supports(p) for p in meant if p.dtypes.get("T") != "f16" or name != "_rows")
