"""Kernels for the CPU, compiled for what this machine runs, and called with tensors that nothing may be read behind."""

import ctypes
import mmap
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled import RENDERER
from dltensors import tensor_of
from numpy.typing import NDArray

from aot_tune.bench.worker.stored_elements import stored_as, values_of
from aot_tune.compile.cxx import CxxToolchain
from aot_tune.render import candidate_for
from aot_tune.spec import Config, Kernel, Operator, Target
from aot_tune.spec.dtypes import DTYPES as DTYPE

DTYPES = ("f32", "bf16", "f16")
EPSILON = {"f32": 0.0, "bf16": 2.0**-8, "f16": 2.0**-11}
"""What rounding a result costs where it is stored in a narrower type than it was computed in: half the step above 1."""

TARGETS = CxxToolchain().native()[1:]
"""The levels from v2 that this machine has."""
_LIBC = ctypes.CDLL(None, use_errno=True)


_STORED: dict[str, type[np.generic]] = {"f32": np.float32, "bf16": np.uint16, "f16": np.float16, "bool": np.uint8}
_CODES = {"bf16": 4, "bool": 6}


class Edged:
    """Elements of any shape and strides whose last one ends where memory does: to read the next is to crash.

    Without `values`, all are NaN. Booleans are true where a drawn number is above -0.7.
    """

    def __init__(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        values: np.random.Generator | None = None,
        dtype: str = "f32",
    ) -> None:
        self._dtype = DTYPE[dtype]
        stored = np.dtype(_STORED[dtype])
        size = stored.itemsize
        low = sum(min(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True))
        count = sum(max(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True)) - low + 1
        usable = -(-size * count // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, usable + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        assert _LIBC.mprotect(ctypes.c_void_p(address + usable), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        self._flat = np.frombuffer(self._memory, stored, count, usable - size * count)
        drawn = np.full(count, np.nan) if values is None else values.standard_normal(count)
        self._low = low
        self._flat[:] = drawn > -0.7 if dtype == "bool" else stored_as(self._dtype, drawn)
        self.view = np.lib.stride_tricks.as_strided(self._flat[-low:], shape, [size * s for s in strides])
        self._strides = strides
        begin = address + usable - size * (count + low)
        self.tensor = tensor_of(begin, (1, 0), shape, strides, (_CODES.get(dtype, 2), 8 * size))

    @property
    def values(self) -> NDArray[np.float64]:
        stored = self.view if self._dtype.name == "bool" else values_of(self._dtype, self.view)
        return stored.astype(np.float64)

    def put(self, place: float, value: float) -> None:
        self._flat[int(place * self._flat.size)] = stored_as(self._dtype, np.array([value], np.float32))[0]

    def write(self, index: Any, value: float) -> None:
        self.view[index] = value if self._dtype.name == "bool" else stored_as(self._dtype, np.array(value, np.float32))

    def spare_is_untouched(self) -> bool:
        """Whether what is no element still is NaN; overwrites the elements."""
        self.view[...] = 0
        spare = np.ones(self._flat.size, bool)
        np.lib.stride_tricks.as_strided(spare[-self._low :], self.view.shape, self._strides)[...] = False
        return bool(np.isnan(values_of(self._dtype, self._flat))[spare].all())


def cpu_kernels(operator: Operator) -> list[Kernel]:
    """Those for the CPU that are not for every call."""
    return [k for k in operator.kernels if k.backend == "cxx" and not k.generic]


def generic(operator: Operator) -> Kernel:
    return next(k for k in operator.kernels if k.backend == "cxx" and k.generic)


def firsts(operator: Operator) -> Iterator[tuple[Kernel, Target, Config, str]]:
    """The first config of each kernel, for a target and a dtype in turn: a build verifies all that it ships."""
    for number, kernel in enumerate(cpu_kernels(operator)):
        targets = [t for t in TARGETS if any(True for _ in kernel.configs(t.facts))]
        dtypes = [d for d in DTYPES if {"T": d} in operator.dtype_choices(kernel)]
        for target in targets[number % len(targets) :][:1] if targets else ():
            yield kernel, target, next(iter(kernel.configs(target.facts))), dtypes[number % len(dtypes)]


def _machine(target: Target) -> list[str]:
    """The flags that say what a target has."""
    flags: Any = CxxToolchain().recipe(target)["flags"]
    return [f for f in flags if f.startswith("-m")]


def build_for_cpu(
    folder: Path,
    operator: Operator,
    kernel: Kernel,
    target: Target,
    config: Config,
    change: Callable[[str], str] = lambda source: source,
    dtype: str = "f32",
) -> Callable[..., int]:
    """Compile a kernel; returns a function that asks for workspace, leaves `missing` bytes of it out, and launches.

    There are three threads, whatever the machine has.
    """
    if all(t.name != target.name for t in TARGETS):  # a lacking instruction would end the whole process
        pytest.skip(f"this CPU does not run {target.name}")
    rendered = RENDERER.render(
        operator, candidate_for(operator, kernel, dict(config), target, None, {"T": dtype}), target
    )
    (folder / "kernel.cpp").write_text(change(rendered.source))
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-math-errno"]
    flags += ["-fPIC", "-shared", "-fopenmp"]
    command = ["g++", *flags, *_machine(target), "kernel.cpp", "-o", "kernel.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "kernel.so"))

    def call(*arguments: Any, missing: Callable[[int], int] = lambda size: 0) -> int:
        usual = library.omp_get_max_threads()
        library.omp_set_num_threads(3)
        try:
            return run(*arguments, missing=missing)
        finally:
            library.omp_set_num_threads(usual)

    def run(*arguments: Any, missing: Callable[[int], int]) -> int:
        size = ctypes.c_size_t(0)
        assert getattr(library, f"{rendered.symbol}_workspace")(*arguments, ctypes.byref(size)) == 0
        given = size.value - missing(size.value)
        workspace = np.full(given + 128, 0xFF, np.uint8)
        begin = -workspace.ctypes.data % 64
        where = ctypes.c_void_p(workspace.ctypes.data + begin)
        code = getattr(library, f"{rendered.symbol}_launch")(*arguments, where, ctypes.c_size_t(given), None)
        assert (workspace[begin + given :] == 0xFF).all()
        return int(code)

    return call
