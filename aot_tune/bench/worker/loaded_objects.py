"""Candidates loaded and called through ctypes: alone, by the contract of kernels and library, or inside a library."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from aot_tune.spec import Operator
from aot_tune.spec.dtypes import DTYPES
from aot_tune.support.errors import AotTuneError

HOST = (1, 0)
"""DLPack's type and number of the host: kDLCPU."""
_RUNTIMES = ("libgomp.so.1", "libomp.so.5", "libiomp5.so")
_RTLD_NOLOAD, _RTLD_NODELETE = 0x4, 0x1000
_SCALARS: dict[str, Any] = {
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    **{d.name: getattr(ctypes, f"c_{d.numpy}") for d in DTYPES.values() if not d.is_floating},
}
_FORCE = "AOT_TUNE_FORCE"
_REFUSED = -100
_REFUSES = (
    " (it cannot serve this call: something that it needs is not here, or a number does not fit the type of the "
    "argument that gets it, such as a negative stride)"
)
"""What AOT_TUNE_UNAVAILABLE means."""
_NOTE = 256
"""Bytes for a candidate's note."""
_EXPLAINED = 1 << 16
"""Bytes for what a library says of a call. The name of the variant comes long before the end."""


class Memory(Protocol):
    """Memory that a call may use."""

    @property
    def address(self) -> int:
        """The address of its first byte."""

    @property
    def size(self) -> int:
        """Its size in bytes."""


class LoadError(AotTuneError):
    """A shared object cannot be loaded, or lacks its functions."""


class LaunchError(AotTuneError):
    """A candidate's function returned an error."""


class RefusedError(LaunchError):
    """A candidate's function returned AOT_TUNE_UNAVAILABLE: in a library the next variant serves the call."""


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """DLPack's tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Execution(ctypes.Structure):
    """aot_tune_exec of the libraries' header."""

    _fields_ = (("stream", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("workspace_size", ctypes.c_size_t))


class Arguments:
    """The arguments of one call, made once and passed many times.

    Args:
        addresses: of the first element of each tensor that is present.
        shapes, strides: of the same tensors; strides in elements.
        scalars, attributes: by name.
        device: DLPack's type and number of the device that the tensors are on.
    """

    def __init__(
        self,
        operator: Operator,
        addresses: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]],
        strides: Mapping[str, Sequence[int]],
        scalars: Mapping[str, float | int],
        attributes: Mapping[str, int],
        device: tuple[int, int] = HOST,
    ) -> None:
        self._parts: list[tuple[str, Any, bytes]] = []  # of descriptions, with what they were made of
        arguments: list[Any] = []
        for tensor in operator.tensors:
            if tensor.name not in addresses:
                arguments.append(ctypes.c_void_p(None))
                continue
            numbers = ctypes.c_int64 * tensor.rank
            shape, stride = numbers(*shapes[tensor.name]), numbers(*strides[tensor.name])
            record = DLTensor(
                addresses[tensor.name],
                _Device(*device),
                tensor.rank,
                _DType(tensor.dtype.code, tensor.dtype.bits, 1),
                ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
                ctypes.cast(stride, ctypes.POINTER(ctypes.c_int64)),
                0,
            )
            self._parts += [(tensor.name, part, bytes(part)) for part in (record, shape, stride)]
            arguments.append(ctypes.c_void_p(ctypes.addressof(record)))
        arguments += [_SCALARS[s.dtype_name](scalars[s.name]) for s in operator.scalars]
        arguments += [ctypes.c_int32(attributes[a.name]) for a in operator.attributes]
        self.call = tuple(arguments)

    def changed(self) -> str:
        """What calls changed of the descriptions of tensors, or empty. It is undone, since later calls get them too."""
        changed = [(name, part, made) for name, part, made in self._parts if bytes(part) != made]
        for _, part, made in changed:
            ctypes.memmove(ctypes.addressof(part), made, len(made))
        return f"the caller's description of {changed[0][0]!r} was changed" if changed else ""

    def launch(self, workspace: Memory | None, stream: int | None = None) -> tuple[Any, ...]:
        """All arguments of `launch`, with a workspace and a stream."""
        address, size = (None, 0) if workspace is None else (workspace.address, workspace.size)
        return (*self.call, ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(stream))


class Loaded:
    """A loaded candidate. After `close`, nothing may call it. Raises LoadError for a missing file or function."""

    launch: Callable[..., int]

    def __init__(self, path: Path, symbol: str) -> None:
        self._open(path, symbol)
        self._workspace = self._function(f"{symbol}_workspace")
        self.launch = self._function(f"{symbol}_launch")

    def _open(self, path: Path, symbol: str) -> None:
        self.path, self.symbol = path, symbol
        try:
            self._library = ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise LoadError(f"{path.name} cannot be loaded: {error}") from error
        _keep_runtimes()

    def _function(self, name: str, result: Any = ctypes.c_int32) -> Any:
        try:
            function = self._library[name]
        except AttributeError as error:
            self.close()
            raise LoadError(f"{self.path.name} lacks a function: {error}") from error
        function.restype = result
        return function

    def workspace_bytes(self, arguments: Arguments) -> int:
        """Bytes of workspace that a call asks for.

        Raises:
            RefusedError: when the candidate cannot serve the call.
            LaunchError: when the function returns another error.
        """
        size = ctypes.c_size_t(0)
        code = self._workspace(*arguments.call, ctypes.byref(size))
        if code != 0:
            raise (RefusedError if code == _REFUSED else LaunchError)(self.failure("_workspace", code))
        return size.value

    def note(self, arguments: Arguments) -> str:
        """What the candidate says of a call, such as a vendor's library and its version. Empty if it says nothing."""
        function = getattr(self._library, f"{self.symbol}_note", None)
        if function is None:
            return ""
        text = ctypes.create_string_buffer(_NOTE)
        function(*arguments.call, text, ctypes.c_size_t(_NOTE))
        return text.value.decode(errors="replace")

    def failure(self, function: str, code: int) -> str:
        """The text for a code other than 0 from one of its functions (`_workspace` or `_launch`)."""
        return f"{self.symbol}{function} returned {code}{_REFUSES if code == _REFUSED else ''}"

    def preload(self) -> None:
        """Have the candidate load its kernels on the current device, if it can. Raises LaunchError if it fails."""
        try:
            function = self._library[f"{self.symbol}_preload"]
        except AttributeError:
            return
        function.restype = ctypes.c_int32
        code = function()
        if code != 0:
            raise LaunchError(f"{self.symbol}_preload returned {code}")

    def close(self) -> None:
        handle, self._library._handle = self._library._handle, 0
        if handle:
            _dlclose(ctypes.c_void_p(handle))


class Linked(Loaded):
    """A variant inside a linked library, called through the library's public C functions.

    An environment variable makes them choose it. The library reads the variant's name once, at its first call. Some
    libraries stay loaded when they are closed. Such a library is loaded a second time, from a copy.

    Args:
        path: of the library.
        symbol: the operator's public function.
        variant: `operator:name`, as AOT_TUNE_FORCE takes it.

    Raises:
        LoadError: as for `Loaded`.
    """

    def __init__(self, path: Path, symbol: str, variant: str) -> None:
        os.environ[_FORCE] = variant
        if _is_loaded(path):
            with _copied(path) as copy:
                self._open(copy, symbol)
        else:
            self._open(path, symbol)
        self.path = path
        operator, _, self._variant = variant.partition(":")
        self._call, self._workspace = self._function(symbol), self._function(f"{symbol}_workspace")
        self._explain = self._function(f"{symbol}_explain")
        self._last_error = self._function(f"{symbol.removesuffix(operator)}last_error", ctypes.c_char_p)

    def launch(self, *arguments: Any) -> int:
        """Like a candidate's `launch`. Its last three arguments go into the execution struct."""
        *call, workspace, size, stream = arguments
        execution = _Execution(stream.value, workspace.value, size.value)
        return int(self._call(*call, ctypes.byref(execution)))

    def workspace_bytes(self, arguments: Arguments) -> int:
        """Bytes of workspace of a call. Raises LaunchError for an error, or when another variant would answer."""
        size = super().workspace_bytes(arguments)
        text = ctypes.create_string_buffer(_EXPLAINED)
        code = self._explain(*arguments.call, None, text, ctypes.c_size_t(_EXPLAINED))
        if code != 0:
            raise LaunchError(self.failure("_explain", code))
        lines = text.value.decode(errors="replace").splitlines()
        variants = [line.removeprefix("variant: ") for line in lines if line.startswith("variant: ")]
        if variants != [self._variant]:
            raise LaunchError(
                f"{self.symbol} answers with {' and '.join(variants) or 'nothing'}, not with {self._variant}"
            )
        return size

    def failure(self, function: str, code: int) -> str:
        """The text for a code from one of its functions, with what the library says of it."""
        said = (self._last_error() or b"").decode(errors="replace")
        return f"{self.symbol}{function.removesuffix('_launch')} returned {code}: {said}"

    def preload(self) -> None:
        """Kernels load at their first call."""


def load(path: Path, symbol: str, variant: str = "") -> Loaded:
    """A candidate, or with `variant` one inside a library, see `Linked`. Raises LoadError when that cannot be."""
    return Linked(path, symbol, variant) if variant else Loaded(path, symbol)


def _is_loaded(path: Path) -> bool:
    try:
        handle = ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW | _RTLD_NOLOAD)._handle
    except OSError:
        return False
    _dlclose(ctypes.c_void_p(handle))
    return True


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """In the block, a copy of a library, which the loader takes for another. Raises LoadError."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        try:
            shutil.copyfile(path, copy)
        except OSError as error:
            raise LoadError(f"{path.name} is loaded already, and cannot be copied: {error}") from error
        yield copy


def _dlclose(handle: ctypes.c_void_p) -> None:
    ctypes.CDLL(None).dlclose(handle)


def _keep_runtimes() -> None:
    """Pin OpenMP runtimes. Their idle threads run their code, so it must not be unloaded with the last candidate."""
    for name in _RUNTIMES:
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOW | _RTLD_NOLOAD | _RTLD_NODELETE)
        except OSError:
            continue


def empty_call(arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A C function that does nothing, with arguments like those of `launch`. Its time is the cost of a call."""
    function = ctypes.CDLL(None).abs  # takes one integer, and ignores the further arguments
    function.restype = ctypes.c_int32
    return function, (ctypes.c_int32(0), *arguments[1:])
