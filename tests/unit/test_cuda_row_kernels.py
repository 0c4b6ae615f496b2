"""CUDA row kernels: they render for every target, compile without spills, and are right when run on the host."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from precompiled import include

from aot_tune.compile.cuda.gpu_targets import TARGETS, code_flags
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Config, Kernel, Operator, Target, Tensor
from aot_tune.spec.load_operators import bundled_templates, load_operator

pytestmark = pytest.mark.slow

HOST = Path(__file__).parent / "cuda_rows_on_host"
GOLDEN = Path(__file__).parent / "golden" / "cuda" / "softmax_generic.cu"
TEMPLATES = bundled_templates()
OPERATORS = {name: load_operator(TEMPLATES / name) for name in ("softmax", "rms_norm", "layer_norm", "silu_mul")}
KERNELS = [(op, kernel) for op in OPERATORS.values() for kernel in op.kernels if kernel.backend == "nvcc"]
IDS = [f"{op.name}-{kernel.name}" for op, kernel in KERNELS]
TARGET = {t.name: t for t in TARGETS}
HOPPER, BLACKWELL = TARGET["cuda-sm_90a"], TARGET["cuda-sm_100"]
HOPPER_ON = ("cuda_flat", "cuda_rows_few")
RENDERER = Renderer([TEMPLATES])
EPSILON = {"f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}


def config_like(kernel: Kernel, target: Target, wanted: Config) -> dict[str, int | bool | str]:
    """The first config of a kernel that has the wanted values.

    Hopper runs all configs of Blackwell, but a build for it tries few of them.
    """
    others = kernel.configs(BLACKWELL.facts) if target is HOPPER else ()
    return next(c for c in (*kernel.configs(target.facts), *others) if all(c[n] == v for n, v in wanted.items()))


def render(op: Operator, kernel: Kernel, target: Target, wanted: Config, dtype: str) -> Rendered:
    config = config_like(kernel, target, wanted)
    return RENDERER.render(op, candidate_for(op, kernel, config, target, None, {"T": dtype}), target)


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_every_config_renders_for_every_target(op: Operator, kernel: Kernel) -> None:
    for target in (TARGET["cuda-sm_80"], HOPPER, TARGET["cuda-sm_120"]):
        configs = list(kernel.configs(target.facts))
        assert len(configs) <= 24
        assert bool(configs) == (kernel.name not in HOPPER_ON or target.level >= 90)
        for config in configs:
            for dtype in ("f32", "bf16", "f16"):
                assert 'extern "C"' in render(op, kernel, target, config, dtype).source
    for wanted in kernel.order:
        config_like(kernel, HOPPER, wanted)


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_nothing_leaves_l2_first_on_hopper(op: Operator, kernel: Kernel) -> None:
    """What such loads and stores take depends on what ran before, so that no measurement tells it."""
    for config in kernel.configs(HOPPER.facts):
        source = render(op, kernel, HOPPER, config, "bf16").source
        assert not re.findall(r"(?<!=)= Cache::first|<Cache::first>|bytes\.L2::cache_hint", source)


@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
def test_the_workload_is_small_enough_and_every_kernel_is_for_some_of_it(op: Operator) -> None:
    problems = op.workload_for("cuda")
    assert 20 <= len(problems) <= 48
    for problem in problems:
        assert op.compulsory_bytes(problem) <= 4 * 1.2e9
    for kernel in (k for k in op.kernels if k.backend == "nvcc" and not k.generic):
        meant = [p for p in problems if all(e.evaluate(op.facts(p)) for e in (*kernel.requires, *kernel.worthwhile))]
        assert meant, kernel.name


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_kernels_compile_without_spills(op: Operator, kernel: Kernel, tmp_path: Path) -> None:
    target = HOPPER if kernel.name in HOPPER_ON else TARGET["cuda-sm_80"]
    source = render(op, kernel, target, kernel.order[0] if kernel.order else {}, "bf16").source
    (tmp_path / "candidate.cu").write_text(source)
    command = ["nvcc", "-std=c++17", "-O3", *code_flags(target), "-Xptxas", "-v", "-diag-suppress", "177"]
    done = subprocess.run(
        [*command, "-c", "candidate.cu", "-o", "candidate.o"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    assert done.stderr.count("spill stores") == done.stderr.count(" 0 bytes spill stores") > 0, done.stderr


def test_the_generic_softmax_in_full() -> None:
    rendered = render(OPERATORS["softmax"], OPERATORS["softmax"].kernel("cuda_generic"), TARGETS[0], {}, "bf16")
    source = rendered.source.replace(rendered.symbol, "SYMBOL")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(source)
    assert source == GOLDEN.read_text()


# -- on the host -----------------------------------------------------------------------------------------------------


class DLTensor(ctypes.Structure):
    """As in the prelude."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


def encode(values: NDArray[np.float64], dtype: str) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Values rounded to a dtype, as bits."""
    single = values.astype(np.float32)
    if dtype == "f16":
        return single.astype(np.float16).view(np.uint16)
    bits = single.view(np.uint32)
    if dtype == "f32":
        return bits
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), 0x7FC0, rounded).astype(np.uint16)


def decode(bits: NDArray[np.uint16] | NDArray[np.uint32], dtype: str) -> NDArray[np.float64]:
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float64)
    wide = bits if dtype == "f32" else bits.astype(np.uint32) << 16
    return wide.view(np.float32).astype(np.float64)


class Stored:
    """A tensor's memory, with a guard zone of NaN on both sides, and its view in the logical shape."""

    def __init__(self, shape: tuple[int, ...], strides: Sequence[int], dtype: str, values: np.random.Generator | None):
        low = sum(min(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True))
        count = sum(max(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True)) - low + 1
        unit = np.uint32 if dtype == "f32" else np.uint16
        size = np.dtype(unit).itemsize
        self.memory = np.full(count * size + 256, 0xFF, np.uint8)
        self.begin, self.bytes = 64 + (-self.memory.ctypes.data) % 64, count * size
        self.flat = self.memory[self.begin : self.begin + self.bytes].view(unit)
        if values is not None:
            self.flat[:] = encode(values.standard_normal(count) * 2, dtype)
        self.view = np.lib.stride_tricks.as_strided(self.flat[-low:], shape, [s * size for s in strides])
        self.extents = np.array([shape, strides], np.int64)
        extents = self.extents.ctypes.data
        self.tensor = DLTensor(
            self.flat.ctypes.data - low * size,
            (2, 0),
            len(shape),
            (2, size * 8, 1, 0),
            extents,
            extents + 8 * len(shape),
        )

    def spare_is_untouched(self) -> bool:
        outside = np.concatenate((self.memory[: self.begin], self.memory[self.begin + self.bytes :]))
        self.view[...] = np.iinfo(self.view.dtype).max
        return bool((outside == 0xFF).all() and (self.flat == np.iinfo(self.flat.dtype).max).all())


def build_for_host(folder: Path, rendered: Rendered) -> Callable[..., int]:
    """Compile a rendered kernel with the host's compiler; returns a function that asks for workspace and launches."""
    (folder / "kernel.cpp").write_text(rendered.source)
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-pthread", "-fno-gnu-unique", "-fno-strict-aliasing", "-I", str(HOST)]
    flags = include(folder.parent, HOST / "cuda_runtime.h", flags)
    command = ["g++", *flags, "-shared", "kernel.cpp", "-o", "kernel.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "kernel.so"))

    def call(*arguments: object) -> int:
        size = ctypes.c_size_t(0)
        assert getattr(library, f"{rendered.symbol}_workspace")(*arguments, ctypes.byref(size)) == 0
        workspace = np.full(size.value + 64, 0xFF, np.uint8)
        code = getattr(library, f"{rendered.symbol}_launch")(
            *arguments, ctypes.c_void_p(workspace.ctypes.data), size, None
        )
        assert (workspace[size.value :] == 0xFF).all()
        return int(code)

    return call


def row_major(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[1], 1) if tensor.rank == 2 else (1,)


def check(
    op: Operator,
    call: Callable[..., int],
    dtype: str,
    dims: Mapping[str, int],
    *,
    strides: Mapping[str, Sequence[int]] | None = None,
    absent: Sequence[str] = (),
    special: bool = False,
    given: Mapping[str, NDArray[np.float64]] | None = None,
) -> None:
    """Call on random values, or those `given`, and compare with the operator's reference."""
    values = np.random.default_rng(1)
    stored: dict[str, Stored] = {}
    for tensor in op.tensors:
        if tensor.name not in absent:
            shape = tuple(e.evaluate(dims) for e in tensor.shape)
            layout = (strides or {}).get(tensor.name, row_major(tensor, shape))
            stored[tensor.name] = Stored(shape, layout, dtype, None if tensor.output else values)
    for name, chosen in (given or {}).items():
        stored[name].view[...] = encode(chosen, dtype)
    if special:
        first = stored[op.tensors[0].name].flat
        first[[0, first.size // 3, 2 * first.size // 3]] = encode(np.array([-np.inf, np.nan, np.inf]), dtype)
    logical = {t.name: decode(stored[t.name].view.copy(), dtype) for t in op.inputs if t.name in stored}
    scalars = {s.name: float(np.float32(s.default)) for s in op.scalars}
    passed = [ctypes.byref(stored[t.name].tensor) if t.name in stored else None for t in op.tensors]
    assert call(*passed, *(ctypes.c_float(v) for v in scalars.values())) == 0
    with np.errstate(all="ignore"):
        arguments = SimpleNamespace(**{t.name: logical.get(t.name) for t in op.tensors}, **scalars)
        wanted = op.reference(np, arguments)
        for tensor in (t for t in op.outputs if t.name in stored):
            got, want = decode(stored[tensor.name].view.copy(), dtype), wanted[tensor.name]
            typical = 0.3 * np.sqrt(np.mean(np.square(want[np.isfinite(want)])))
            near = np.abs(got - want) <= EPSILON[dtype] * (np.abs(want) + typical)
            assert (near | (got == want) | (np.isnan(got) & np.isnan(want))).all(), (tensor.name, dims)
            assert stored[tensor.name].spare_is_untouched(), tensor.name


ROWS: tuple[tuple[str, Config], ...] = (
    ("bf16", {"VECTORS": 4, "RESIDENT": 0, "STREAM": True}),
    ("f32", {"VECTORS": 1, "RESIDENT": 0, "STREAM": False}),
    ("f16", {"VECTORS": 2, "RESIDENT": 1024}),
)


@pytest.mark.parametrize(("dtype", "config"), ROWS)
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
def test_rows_in_registers_on_the_host(name: str, dtype: str, config: Config, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build_for_host(tmp_path, render(op, op.kernel("cuda_rows"), HOPPER, config, dtype))
    for rows, width in ((1, 8), (70, 72), (37, 2056)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 13, "D": 1000}, strides={"x": (1024, 1), "out": (1008, 1)})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)
    check(op, call, dtype, {"R": 2, "D": 40008})  # more than the registers hold
    check(op, call, dtype, {"R": 4, "D": 40008}, special=True)  # the last row is finite
    check(op, call, dtype, {"R": 3, "D": 40008}, strides={"x": (40016, 1), "out": (40024, 1)})
    if name == "rms_norm":
        for absent in (("residual", "residual_out"), ("residual",), ("residual_out",)):
            for rows, width in ((5, 1032), (2, 40008)):
                check(op, call, dtype, {"R": rows, "D": width}, absent=absent)


@pytest.mark.parametrize(("dtype", "vectors"), [("bf16", 1), ("f32", 2), ("f16", 2)])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_few_rows_on_the_host(name: str, dtype: str, vectors: int, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build_for_host(tmp_path, render(op, op.kernel("cuda_rows_few"), HOPPER, {"VECTORS": vectors}, dtype))
    for rows, width in ((1, 8), (70, 72), (37, 2056), (2, 40008)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)
    if name == "rms_norm":
        check(op, call, dtype, {"R": 5, "D": 1032}, absent=("residual",))


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
def test_generic_kernels_take_any_strides_on_the_host(op: Operator, dtype: str, tmp_path: Path) -> None:
    call = build_for_host(tmp_path, render(op, op.kernel("cuda_generic"), HOPPER, {}, dtype))
    first = op.tensors[0].name
    for rows, width in ((1, 1), (3, 1), (13, 37), (2, 5001)):
        check(op, call, dtype, {"R": rows, "D": width})
    for layout in ((1, 13), (-37, 1), (0, 1), (80, -2)):
        check(op, call, dtype, {"R": 13, "D": 37}, strides={first: layout, "out": (90, 2)})
    check(op, call, dtype, {"R": 13, "D": 37}, special=True)


@pytest.mark.parametrize(
    ("name", "dtype", "config"),
    [
        ("cuda_split", "bf16", {"SPLIT": 16, "VECTORS": 4}),
        ("cuda_split", "f32", {"SPLIT": 4, "VECTORS": 2}),
    ],
)
def test_long_rows_on_the_host(name: str, dtype: str, config: Config, tmp_path: Path) -> None:
    op = OPERATORS["softmax"]
    call = build_for_host(tmp_path, render(op, op.kernel(name), HOPPER, config, dtype))
    for rows, width in ((2, 8), (3, 1032), (2, 40008)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)


@pytest.mark.parametrize(
    ("dtype", "config"),
    [
        ("bf16", {"VECTORS": 4, "BLOCK": 128, "STREAM": True}),
        ("f32", {"VECTORS": 1, "BLOCK": 128, "STREAM": False}),
        ("f16", {"VECTORS": 2, "BLOCK": 256, "RESIDENT": 1536}),
    ],
)
def test_silu_mul_on_the_host(dtype: str, config: Config, tmp_path: Path) -> None:
    op = OPERATORS["silu_mul"]
    call = build_for_host(tmp_path, render(op, op.kernel("cuda_rows"), HOPPER, config, dtype))
    for rows, width in ((1, 8), (64, 2048), (5, 1032)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 3, "D": 7168}, strides={"gate": (14336, 1), "up": (14336, 1)})  # halves of one tensor
    check(op, call, dtype, {"R": 70, "D": 1432}, strides={"gate": (1440, 1)})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)


@pytest.mark.parametrize(
    ("kernel", "config", "old", "new"),
    [
        ("cuda_rows", {"VECTORS": 2}, "  __syncthreads();\n", ""),
        ("cuda_rows", {"VECTORS": 2}, "thread / 32 * (32 * V)", "thread / 32 * 32"),
        ("cuda_flat", {"CLUSTER": 2}, "rank * V * threads", "rank * threads"),
        ("cuda_flat", {"CLUSTER": 2}, "__byte_perm(words[i], 0, 0x3244)", "__byte_perm(words[i], 0, 0x1044)"),
        ("cuda_flat", {"CLUSTER": 2}, "rank * warps +", "warps +"),
    ],
)
def test_the_host_notices_faults(kernel: str, config: Config, old: str, new: str, tmp_path: Path) -> None:
    op = OPERATORS["softmax"]
    rendered = render(op, op.kernel(kernel), HOPPER, config, "bf16")
    assert rendered.source.count(old) == 1
    call = build_for_host(tmp_path, msgspec.structs.replace(rendered, source=rendered.source.replace(old, new)))
    with pytest.raises(AssertionError, match="out"):
        check(op, call, "bf16", {"R": 3, "D": 8200})
