"""CUDA row kernels compiled for the host and compared with their operator's reference."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from bundled import OPERATORS as BUNDLED
from numpy.typing import NDArray
from places import SHARED
from precompiled import include

from aot_tune.compile.cuda.gpu_targets import TARGETS
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Config, Kernel, Operator, Target, Tensor, problem
from aot_tune.spec.aliases import aliases_on
from aot_tune.spec.load_operators import bundled_templates

HOST = SHARED / "cuda_rows_on_host"
TEMPLATES = bundled_templates()
OPERATORS = {name: BUNDLED[name] for name in ("softmax", "rms_norm", "layer_norm", "silu_mul")}
KERNELS = [(op, kernel) for op in OPERATORS.values() for kernel in op.kernels if kernel.backend == "nvcc"]
TARGET = {t.name: t for t in TARGETS}
HOPPER, BLACKWELL = TARGET["cuda-sm_90a"], TARGET["cuda-sm_100"]
RENDERER = Renderer([TEMPLATES])
FAULTS = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")  # what a GPU would not load
FLAGS = ["-std=c++17", "-O1", "-w", "-fPIC", "-pthread", "-fno-gnu-unique", "-fno-strict-aliasing", *FAULTS]
ABSENT: dict[str, tuple[tuple[str, ...], ...]] = {
    "rms_norm": (
        ("residual", "residual_out"),
        ("residual",),
        ("residual_out",),
        ("weight",),
        ("weight", "residual", "residual_out"),
    ),
    "layer_norm": (("bias",), ("weight",), ("weight", "bias")),
    "softmax": (),
}
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


def pairs(name: str) -> list[dict[str, str]]:
    """In whose memory outputs may lie, all at once and, of the norm with a residual, one at a time."""
    op = OPERATORS[name]
    optional = tuple(t.name for t in op.tensors if t.optional)
    found = list(aliases_on(op, problem(R=4, D=8, present=optional)))
    return [*found, *({o: i} for f in found if len(f) > 1 for o, i in f.items())]


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
    """A tensor's memory, with a guard zone of NaN on both sides, and its view in the logical shape.

    The view begins `skipped` elements past what is aligned. Booleans are bytes of 0 and 1.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: Sequence[int],
        dtype: str,
        values: np.random.Generator | None,
        skipped: int = 0,
    ):
        low = sum(min(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True)) - skipped
        count = sum(max(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True)) - low + 1
        unit = {"f32": np.uint32, "bool": np.uint8}.get(dtype, np.uint16)
        size = np.dtype(unit).itemsize
        self.memory = np.full(count * size + 256, 0xFF, np.uint8)
        self.begin, self.bytes = 64 + (-self.memory.ctypes.data) % 64, count * size
        self.flat = self.memory[self.begin : self.begin + self.bytes].view(unit)
        if values is not None:
            drawn = values.standard_normal(count) * 2
            self.flat[:] = drawn > -1.4 if dtype == "bool" else encode(drawn, dtype)
        self.view = np.lib.stride_tricks.as_strided(self.flat[-low:], shape, [s * size for s in strides])
        self.extents = np.array([shape, strides], np.int64)
        extents = self.extents.ctypes.data
        self.tensor = DLTensor(
            self.flat.ctypes.data - low * size,
            (2, 0),
            len(shape),
            (6 if dtype == "bool" else 2, size * 8, 1, 0),
            extents,
            extents + 8 * len(shape),
        )

    def clear_spare(self) -> None:
        """Set what lies between the rows to what it is in an output's memory."""
        drawn = self.view.copy()
        self.flat[:] = np.iinfo(self.flat.dtype).max
        self.view[...] = drawn

    def spare_is_untouched(self) -> bool:
        outside = np.concatenate((self.memory[: self.begin], self.memory[self.begin + self.bytes :]))
        self.view[...] = np.iinfo(self.view.dtype).max
        return bool((outside == 0xFF).all() and (self.flat == np.iinfo(self.flat.dtype).max).all())


def shared_object(folder: Path, source: str) -> Path:
    """CUDA C++ compiled with the host's compiler, in a folder whose parent keeps what all share."""
    (folder / "kernel.cpp").write_text(source)
    flags = include(folder.parent, HOST / "cuda_runtime.h", [*FLAGS, "-I", str(HOST)])
    command = ["g++", *flags, "-shared", "kernel.cpp", "-o", "kernel.so", "-ldl"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "kernel.so"


def build_for_host(folder: Path, rendered: Rendered) -> Callable[..., int]:
    """Compile a rendered kernel with the host's compiler; returns a function that asks for workspace and launches."""
    library = ctypes.CDLL(str(shared_object(folder, rendered.source)))

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
    skipped: Mapping[str, int] | None = None,
    special: bool = False,
    given: Mapping[str, NDArray[np.float64]] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> None:
    """Call on random values, or those `given`, and compare with the operator's reference.

    A tensor begins as many elements past what is aligned as `skipped` says of it; an output lies in the memory of the
    input that `aliases` names.
    """
    values = np.random.default_rng(1)
    stored: dict[str, Stored] = {}
    for tensor in op.tensors:
        if tensor.name not in absent:
            shape = tuple(e.evaluate(dims) for e in tensor.shape)
            layout = (strides or {}).get(tensor.name, row_major(tensor, shape))
            drawn, behind = None if tensor.output else values, (skipped or {}).get(tensor.name, 0)
            stored[tensor.name] = Stored(shape, layout, dtype, drawn, behind)
    for output, name in (aliases or {}).items():
        stored[name].clear_spare()
        stored[output] = stored[name]
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
