"""Products with weights of 4 and 8 bits: layouts, and kernels against the reference, those of CUDA by a stand-in."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from cpu_calls import EPSILON
from host_kernels import HOPPER, TARGETS, CpuKernel, CudaKernel
from hypothesis import given, settings
from hypothesis.strategies import integers
from interpreted import Trial, faults
from numpy.typing import NDArray
from stand_ins import with_cublaslt

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.stored_elements import stored_as, values_of
from aot_tune.spec import Config, Kernel, Operator, Problem, all_of, problem
from aot_tune.spec.dtypes import DTYPES

FORMATS = ("gptq_mm", "awq_mm", "nf4_mm", "int8_mm")
NATIVE = TARGETS[-1]
HOST_CUDA = """#include "warps.h"
inline __half2 __hsub2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}
inline __nv_bfloat162 __hsub2(__nv_bfloat162 a, __nv_bfloat162 b) {
  const float x = __bfloat162float(a.x) - __bfloat162float(b.x), y = __bfloat162float(a.y) - __bfloat162float(b.y);
  return __floats2bfloat162_rn(x, y);
}
"""


# -- weights, packed as descriptions say ------------------------------------------------------------------------------


def words(nibbles: NDArray[Any], axis: int, order: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)) -> NDArray[np.int32]:
    """Words of eight neighbours along an axis; the lowest bits have neighbour order[0]."""
    parts = np.moveaxis(nibbles.astype(np.uint64), axis, -1)
    parts = parts.reshape(*parts.shape[:-1], -1, 8)
    made = sum(parts[..., which] << np.uint64(4 * place) for place, which in enumerate(order))
    return np.ascontiguousarray(np.moveaxis(made.astype(np.uint32).view(np.int32), -1, axis))


AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


class Weight:
    """A random weight: the tensors that a format has of it, and itself."""

    def __init__(
        self, name: str, rng: np.random.Generator, n: int, k: int, g: int, *, checkpoint: str = "gptq"
    ) -> None:
        scales = np.ldexp(rng.integers(16, 64, (g, n)), -6).astype(np.float32)  # exact in all dtypes
        if name == "int8_mm":
            codes = rng.integers(-128, 128, (k, n))
            zeros: Any = np.zeros((g, n))
            self.tensors = {"w": np.ascontiguousarray(codes.astype(np.int8).T).T}
        elif name == "nf4_mm":
            codes, zeros = rng.integers(0, 16, (k, n)), np.zeros((g, n))
            flat = codes.T.reshape(n * k)
            self.tensors = {"w": (flat[::2] * 16 + flat[1::2]).astype(np.uint8).reshape(n, k // 2)}
        else:
            codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (g, n))
            stored = (zeros - 1) % 16 if (name, checkpoint) == ("gptq_mm", "gptq") else zeros
            if name == "gptq_mm":
                self.tensors = {"qweight": words(codes, 0), "qzeros": words(stored, 1)}
            else:
                self.tensors = {"qweight": words(codes, 1, AWQ), "qzeros": words(stored, 1, AWQ)}
        known = NF4[codes] if name == "nf4_mm" else codes
        self.values = (known - np.repeat(zeros, k // g, 0)) * np.repeat(scales, k // g, 0)
        self.tensors |= {"absmax": np.ascontiguousarray(scales.T)} if name == "nf4_mm" else {"scales": scales}


# The 16 quantiles that bitsandbytes' get_4bit_type gives, as its dequantisation has shown them.
NF4 = np.array(
    [
        *(-1, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1),
    ],
    np.float32,
)


@pytest.mark.parametrize("checkpoint", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_reference_unpacks_what_is_packed(name: str, checkpoint: str) -> None:
    rng = np.random.default_rng(5)
    weight = Weight(name, rng, 24, 96, 3, checkpoint=checkpoint)
    a, bias = rng.standard_normal((4, 96)), rng.standard_normal(24)
    call = SimpleNamespace(a=a, bias=bias, checkpoint=checkpoint, **weight.tensors)
    want = a @ weight.values + bias
    np.testing.assert_allclose(OPERATORS[name].reference(np, call)["out"], want, rtol=1e-6, atol=1e-5)


def test_the_reference_reads_what_bitsandbytes_wrote() -> None:
    """quantize_4bit (0.50.2, blocks of 64, nf4) of (37 i mod 101 - 50) / 16, i up to 128: within half a step."""
    packed = (
        "04c16e29f3b05d17e29f3c05d18e2af4c16e18e3b05d17e29f3b05d18e2af4c1"
        "6d18e3b04c17e29f3b05d17e2af4c06d18e2a04c16e29f3b05d17e29f3c05d18"
    )
    w = np.frombuffer(bytes.fromhex(packed), np.uint8).reshape(1, 64)
    call = SimpleNamespace(a=np.eye(128), w=w, absmax=np.full((1, 2), 3.125, np.float32), bias=None)
    written = (np.arange(128) * 37 % 101 - 50) / 16
    assert abs(OPERATORS["nf4_mm"].reference(np, call)["out"][:, 0] - written).max() < 3.125 * 0.1520


# -- kernels ----------------------------------------------------------------------------------------------------------


class Passed:
    """An array as a kernel gets it, with the elements of a dtype; `spread` puts gaps between them."""

    def __init__(self, values: NDArray[Any], dtype: str | None = None, *, spread: int = 1) -> None:
        stored = values if dtype is None else stored_as(DTYPES[dtype], values.astype(np.float32))
        self.dtype = dtype
        room = np.zeros((*stored.shape[:-1], stored.shape[-1] * spread + 40), stored.dtype)
        self.array = room[..., : stored.shape[-1] * spread : spread]
        if stored.ndim == 2 and stored.strides[0] < stored.strides[1]:  # by columns
            self.array = np.zeros((stored.shape[1], stored.shape[0] + 48 * spread), stored.dtype).T[: len(stored)]
        self.array[...] = stored

    @property
    def values(self) -> NDArray[Any]:
        return values_of(DTYPES[self.dtype or "f32"], self.array).astype(np.float64)


Launch = Callable[..., NDArray[np.uint8]]


def built(folder: Path, name: str, kernel: str, dtype: str, config: dict[str, Any] | None = None) -> Launch:
    """A kernel for the host; called with passed tensors, and whether zeros are as they are stored: its workspace."""
    op = OPERATORS[name]
    cpu = op.kernel(kernel).backend == "cxx"
    target = NATIVE if cpu else HOPPER
    chosen = dict(next(iter(op.kernel(kernel).configs(target.facts)))) | (config or {})
    made = CpuKernel if cpu else partial(CudaKernel, before=HOST_CUDA)
    called = made(folder, op, kernel, target, chosen, {"T": dtype})

    def launch(tensors: dict[str, Passed], v2: int = 0) -> NDArray[np.uint8]:
        assert called({"checkpoint": v2}, **{n: t.array for n, t in tensors.items()}) == 0
        stored: NDArray[np.uint8] = called.workspace
        return stored

    return launch


def check(
    launch: Launch, name: str, dtype: str, shape: tuple[int, ...], *, spread: int = 1, checkpoint: str = "gptq"
) -> None:
    """Call it on a random weight, with a bias unless n is a multiple of 3."""
    m, n, k, g = shape
    rng = np.random.default_rng(sum(shape))
    weight = Weight(name, rng, n, k, g, checkpoint=checkpoint)
    tensors = {"a": Passed(rng.standard_normal((m, k)), dtype, spread=spread)}
    tensors["out"] = Passed(np.full((m, n), np.nan), dtype, spread=spread)
    if n % 3:
        tensors["bias"] = Passed(rng.standard_normal(n), dtype, spread=spread)
    if spread > 1 and name == "int8_mm":
        weight.tensors["w"] = np.ascontiguousarray(weight.tensors["w"])
    for part, values in weight.tensors.items():
        tensors[part] = Passed(values, dtype if part == "scales" else None, spread=spread)
    launch(tensors, int(checkpoint == "gptq_v2"))
    want = tensors["a"].values @ weight.values + (tensors["bias"].values if "bias" in tensors else 0)
    size = np.sqrt(k) * (60 if name == "int8_mm" else 1 if name == "nf4_mm" else 5)
    np.testing.assert_allclose(
        tensors["out"].values, want, rtol=EPSILON[dtype] + 2e-5, atol=size * (EPSILON[dtype] / 2 + 2e-6)
    )


@pytest.mark.parametrize(("name", "dtype"), [*zip(FORMATS, ("f32", "bf16", "f16", "bf16"), strict=True)])
@pytest.mark.parametrize("kernel", ["generic", pytest.param("cuda_generic", marks=pytest.mark.slow)])
def test_generic_kernels_take_everything(kernel: str, name: str, dtype: str, tmp_path: Path) -> None:
    launch = built(tmp_path, name, kernel, dtype)
    for shape in ((1, 8, 8, 1), (37, 136, 264, 3), (0, 8, 16, 1)):
        for spread in (1, 3):
            check(launch, name, dtype, shape, spread=spread)
    columns, depth = 8 if name in ("gptq_mm", "awq_mm") else 1, {"gptq_mm": 8, "nf4_mm": 2}.get(name, 1)

    @settings(max_examples=20, deadline=None)
    @given(m=integers(1, 40), n=integers(1, 16), k=integers(1, 12), g=integers(1, 5), spread=integers(1, 3))
    def holds(m: int, n: int, k: int, g: int, spread: int) -> None:
        check(launch, name, dtype, (m, n * columns, k * depth * g, g), spread=spread)

    holds()
    if name == "gptq_mm":
        check(launch, name, dtype, (2, 16, 64, 2), checkpoint="gptq_v2")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_rows_of_8_bits(dtype: str, tmp_path: Path) -> None:
    launch = built(tmp_path, "int8_mm", "rows", dtype)
    for shape in ((1, 5, 37, 1), (6, 67, 96, 3), (9, 130, 200, 5), (1, 1, 1, 1)):
        check(launch, "int8_mm", dtype, shape)


STEPS = {"gptq_mm": 128, "awq_mm": 64, "nf4_mm": 64, "int8_mm": 64}


@pytest.mark.slow
@pytest.mark.parametrize("which", range(8))
@pytest.mark.parametrize(("name", "dtype"), [*zip(FORMATS, ("f16", "bf16", "f16", "bf16"), strict=True)])
def test_few_rows_by_matrix_units(name: str, dtype: str, which: int, tmp_path: Path) -> None:
    """Every config: batches of all warps, of some, of some blocks only, and several of each; no bias once.

    On 7 multiprocessors, 14 blocks or clusters run at once, or fewer: they go through all spans of `width` columns.
    """
    kernel = OPERATORS[name].kernel("cuda_thin")
    config = list(kernel.configs(HOPPER.facts))[which]
    launch = built(tmp_path, name, "cuda_thin", dtype, dict(config))
    tiles, step, width = int(config["TILES"]), STEPS[name], int(config["WIDTH"])
    warps = int(config["WARPS"]) * int(config["SPLIT"])
    for groups, of_group, n in ((2, 1, 192), (1, 2 * warps + 2, 128), (warps + 2, 2, 128), (warps // 2, 2, 384)):
        rows = 8 * tiles - 7 if groups == 1 else 8 * tiles - groups % 2
        shape = (rows, n // width * width or width, step * groups * of_group, groups)
        check(launch, name, dtype, shape, checkpoint="gptq_v2" if groups == 1 else "gptq")
    whole = 2 if name == "nf4_mm" else 1  # of nf4, a batch is two steps

    @settings(max_examples=8, deadline=None, derandomize=True)
    @given(m=integers(1, 8 * tiles), groups=integers(1, 7), of_group=integers(1, 7), spans=integers(1, 40))
    def holds(m: int, groups: int, of_group: int, spans: int) -> None:
        check(launch, name, dtype, (m, width * spans, step * groups * of_group * whole, groups))

    holds()


@pytest.mark.parametrize(("name", "dtype"), [*zip(FORMATS, ("f16", "bf16", "f16", "bf16"), strict=True)])
def test_many_rows_of_an_unpacked_weight(name: str, dtype: str, tmp_path: Path) -> None:
    """What is unpacked, rounded once, and what the library is asked for."""
    launch = built(tmp_path, name, "cublaslt_of_unpacked", dtype)
    shapes, by_columns = [(1, 8, 8, 1), (40, 136, 264, 3), (17, 512, 1024, 8)], name in ("nf4_mm", "int8_mm")
    if by_columns:
        shapes.append((20, 133, 64, 4))  # columns that are no whole pieces
    with_cublaslt(tmp_path / "libraries")

    def multiply() -> None:
        driver, stub = [tmp_path / "libraries" / file for file in ("libcuda.so.1", "libcublasLt.so.13")]
        library = ctypes.CDLL(str(stub), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(driver), ctypes.RTLD_GLOBAL)
        library.stub_log.restype = ctypes.c_char_p
        library.stub_set(b"tell_sizes", ctypes.c_int64(1))
        for number, (m, n, k, g) in enumerate(shapes):
            checkpoint = ("gptq", "gptq_v2")[number % 2]
            weight = Weight(name, np.random.default_rng(number), n, k, g, checkpoint=checkpoint)
            tensors = {"a": Passed(np.ones((m, k)), dtype), "out": Passed(np.full((m, n), np.nan), dtype)}
            if number % 2:
                tensors["bias"] = Passed(np.ones(n), dtype)
            for part, values in weight.tensors.items():
                tensors[part] = Passed(values, dtype if part == "scales" else None)
            stored = launch(tensors, number % 2)[: 2 * n * k].view(np.uint16)
            want = stored_as(DTYPES[dtype], weight.values.astype(np.float32))
            unpacked = stored.view(want.dtype).reshape((n, k) if by_columns else (k, n))
            np.testing.assert_array_equal(unpacked, want.T if by_columns else want)
            log = library.stub_log().decode()
            assert f"size {m}x{n}x{k}" in log
            assert f"epilogue={4 if number % 2 else 1} " in log
            library.stub_clear()

    in_fork(multiply)


def in_fork(act: Callable[[], None]) -> None:
    """Run it in a process of its own, as a library that is loaded stays so."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
def test_triton_in_the_interpreter() -> None:
    """Calls of each format: tiles that are not full, groups as long as a step and longer, sums in unequal parts."""
    pytest.importorskip("triton")
    config, trials = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, "PER": 4, "num_warps": 4, "num_stages": 4}, []
    for number, name in enumerate([*FORMATS, *FORMATS]):
        form: Any = {"dtypes": {"T": "f16"}, "present": ["bias"] * (number % 2)}
        form["attributes"] = {"checkpoint": ("gptq", "gptq_v2")[number // 4]} if name == "gptq_mm" else {}
        form["order"] = {"w": (1, 0)} if name == "int8_mm" else {}
        m, n, k, g = ((19, 40, 128, 4), (5, 72, 416, 1))[number // 4]
        trials.append(Trial(OPERATORS[name], "triton", config, Check(problem=problem(M=m, N=n, K=k, G=g, **form))))
    assert not faults(trials)


# -- what is asked of calls -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dims", "fits"),
    [
        ("gptq_mm", {"N": 64, "K": 256, "G": 2}, True),
        ("gptq_mm", {"N": 64, "K": 256, "G": 3}, False),  # no whole groups
        ("gptq_mm", {"N": 64, "K": 256, "G": 0}, False),
        ("gptq_mm", {"N": 60, "K": 256, "G": 2}, False),  # no whole words of zeros
        ("awq_mm", {"N": 60, "K": 256, "G": 2}, False),
        ("awq_mm", {"N": 64, "K": 250, "G": 2}, True),
        ("nf4_mm", {"N": 7, "K": 192, "G": 3}, True),
        ("nf4_mm", {"N": 7, "K": 195, "G": 3}, False),  # blocks that end within a byte
        ("int8_mm", {"N": 7, "K": 9, "G": 1}, True),
        ("int8_mm", {"N": 7, "K": 9, "G": 2}, False),
    ],
)
def test_what_has_no_answer_is_not_legal(name: str, dims: dict[str, int], fits: bool) -> None:
    op = OPERATORS[name]
    assert all_of(op.legal, op.facts(problem(M=2, **dims))) == fits


@pytest.mark.parametrize("name", FORMATS)
def test_every_kernel_is_for_some_of_the_workload(name: str) -> None:
    """And one row goes to the thin kernel, or with short groups to Triton's, many to the others."""
    op = OPERATORS[name]
    for kernel in op.kernels:
        family, target = ("cpu", NATIVE) if kernel.backend == "cxx" else ("cuda", HOPPER)
        for config in kernel.configs(target.facts):
            assert any(serves(op, kernel, config, one) for one in [*op.workload_for(family), *op.checks]), config
    for one in op.workload_for("cuda"):
        few, short = one.dims["M"] <= 16, one.dims["K"] // one.dims["G"] == 32
        for kind, wanted in (("cuda_thin", few and not short), ("cublaslt_of_unpacked", not few), ("triton", short)):
            served = any(serves(op, op.kernel(kind), c, one) for c in op.kernel(kind).configs(HOPPER.facts))
            assert served >= (wanted or (kind == "triton" and not few)), (kind, one.id)
            assert kind == "triton" or served == wanted, (kind, one.id)


def serves(op: Operator, kernel: Kernel, config: Config, one: Problem) -> bool:
    facts = {**op.facts(one), **{f"parameter.{n}": int(v) for n, v in config.items()}}
    return all_of((*kernel.requires, *kernel.worthwhile), facts)
