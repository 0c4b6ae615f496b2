"""Runs @triton.jit functions in Triton's interpreter, on arrays of the host: without a GPU and without torch.

Use it only in a process started with TRITON_INTERPRET=1: when Triton is imported, it decides whether functions are
interpreted. This module uses private parts of the interpreter, as read in versions 3.6 and 3.9.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from aot_tune.support.errors import SpecError
from aot_tune.triton.absent_devices import TorchDtype
from aot_tune.triton.installed import load


class _Storage:
    """The memory of a tensor, in the form that the interpreter asks for. It is host memory already."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def cpu(self) -> _Storage:
        return self

    def untyped_storage(self) -> _Storage:
        return self

    def copy_(self, other: object) -> None:
        """Do nothing: it is the same memory."""


class InterpretedTensor:
    """A strided tensor in numpy memory, with the part of torch's interface that the interpreter and grids use.

    Args:
        storage: flat memory.
        first: the index of its first element in the storage.
        shape, strides: extents, and strides in elements.
        name: torch's name of the element type.
    """

    def __init__(
        self, storage: NDArray[Any], first: int, shape: Sequence[int], strides: Sequence[int], name: str
    ) -> None:
        self._storage, self._first = storage, first
        self.shape, self._strides = tuple(shape), tuple(strides)
        self.dtype = TorchDtype(name, storage.itemsize)
        self.ndim, self.device, self.is_cuda = len(self.shape), "cpu", False

    def data_ptr(self) -> int:
        return int(self._storage.ctypes.data) + self._first * self._storage.itemsize

    def untyped_storage(self) -> _Storage:
        """Its memory."""
        return _Storage(self._storage)

    def storage_offset(self) -> int:
        return self._first

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def stride(self, axis: int | None = None) -> Any:
        return self._strides if axis is None else self._strides[axis]

    def numel(self) -> int:
        return int(np.prod(self.shape))

    def element_size(self) -> int:
        return int(self._storage.itemsize)

    def new_empty(self, *_size: object, **_where: object) -> InterpretedTensor:
        """An object that the interpreter fills by `set_`."""
        return InterpretedTensor(self._storage, self._first, self.shape, self._strides, str(self.dtype)[6:])

    def set_(self, _storage: object, first: int, shape: Sequence[int], strides: Sequence[int]) -> None:
        """Become a tensor with these extents in the same memory."""
        self._first, self.shape, self._strides = first, tuple(shape), tuple(strides)

    def permute(self, order: Sequence[int]) -> InterpretedTensor:
        """The tensor with its axes in another order."""
        shape, strides = ([of[axis] for axis in order] for of in (self.shape, self._strides))
        return InterpretedTensor(self._storage, self._first, shape, strides, str(self.dtype)[6:])


def descriptor_of(tensor: InterpretedTensor, block: Sequence[int], order: Sequence[int], padding: str) -> Any:
    """A tensor descriptor, as a host makes it."""
    turned = tensor.permute(order) if order else tensor
    return TensorDescriptor(turned, list(turned.shape), list(turned.stride()), list(block), padding)


def interpreted(reference: str, roots: Sequence[str]) -> Any:
    """The interpreted form of the function that a reference names, without its decorators.

    Raises:
        SpecError: when it is not a @triton.jit function.
    """
    _bridge()
    function: Any = load(reference, roots)
    while not isinstance(function, interpreter.InterpretedFunction):
        if not hasattr(function, "fn"):
            raise SpecError(
                f"{reference} is not a @triton.jit function", fix="name the function that has the decorator"
            )
        function = function.fn
    return function


def call(function: Any, grid: Sequence[int], arguments: Mapping[str, Any]) -> None:
    """Run all programs of a grid, one after the other."""
    function[tuple(grid)](**arguments)


def _bridge() -> None:
    """Add what the interpreter lacks.

    A Python float is passed as the JIT passes it. Loop bounds may be non-constants (Triton 3.6 fails there with newer
    versions of numpy). Matrices of bf16 are multiplied as floats, not as integers. Floats become the nearest ones of 8
    bits (the interpreter drops a carry). Waiting for the kernel in front does nothing. Some functions of libdevice
    become Triton's own.
    """
    passed, patch = interpreter._implicit_cvt, interpreter._patch_lang_tensor

    def with_index(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    def convert(value: Any) -> Any:
        if not isinstance(value, float):
            return passed(value)
        return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)

    multiply = interpreter.InterpreterBuilder.create_dot

    def widened(builder: Any, left: Any, right: Any, *more: Any) -> Any:
        return multiply(builder, _widened(left), _widened(right), *more)

    private = cast(Any, interpreter)
    plain = private._convert_float

    def narrowed(values: Any, given: Any, wanted: Any, mode: Any) -> Any:
        finite = {tl.float8e4nv: 127, tl.float8e5: 124}.get(wanted)
        if given != tl.float32 or finite is None:
            return plain(values, given, wanted, mode)
        return _nearest(values, plain(np.arange(finite, dtype=np.uint8), wanted, tl.float32, None).view(np.float32))

    private._convert_float = narrowed
    private.InterpreterBuilder.create_dot = widened
    private._patch_lang_tensor, private._implicit_cvt = with_index, convert
    with contextlib.suppress(AttributeError):  # each version has them in another place
        for name in ("gdc_wait", "gdc_launch_dependents"):
            setattr(triton.language.extra.cuda, name, lambda: None)
    for module in ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"):
        with contextlib.suppress(ImportError):
            vars(importlib.import_module(module)).update(_LIBDEVICE)


def _nearest(values: NDArray[np.float32], finite: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The bits of the nearest of some floats of 8 bits, which are those from 0 on in order; ties go to even bits."""
    middles, sizes = (finite[1:] + finite[:-1]) / 2, np.abs(values)
    low, high = np.searchsorted(middles, sizes), np.searchsorted(middles, sizes, "right")
    bits: NDArray[Any] = np.where(np.isnan(values), 127, np.where(low % 2, high, low)) | np.signbit(values) << 7
    return bits.astype(np.uint8)


def _widened(handle: Any) -> Any:
    """A block of bf16 in f32. The interpreter holds bf16 as integers."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    wide = (handle.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return interpreter.TensorHandle(wide, tl.float32)


@triton.jit
def _exp(x):  # type: ignore[no-untyped-def]
    return tl.exp(x)


@triton.jit
def _log(x):  # type: ignore[no-untyped-def]
    return tl.log(x)


@triton.jit
def _sqrt(x):  # type: ignore[no-untyped-def]
    return tl.sqrt(x)


@triton.jit
def _rsqrt(x):  # type: ignore[no-untyped-def]
    return tl.rsqrt(x)


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _erf(x):  # type: ignore[no-untyped-def]
    return tl.erf(x)


_LIBDEVICE = {"exp": _exp, "log": _log, "sqrt": _sqrt, "rsqrt": _rsqrt, "tanh": _tanh, "erf": _erf}
"""The functions of libdevice that kernels call most. Their own code is for GPUs."""
