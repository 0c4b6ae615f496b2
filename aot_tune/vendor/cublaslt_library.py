"""cuBLASLt through ctypes: only what is needed to list its algorithms for a product, with their attributes.

Numbers are from cublasLt.h (wheels nvidia-cublas 13.10.0.20 and nvidia-cublas-cu12 12.9.3.13), which agree in them.
`tests/unit/vendor/test_vendor_headers.py` compares them with a header.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from aot_tune.support.errors import WorkerError

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
WHEEL_FOLDERS = ("nvidia/cu13/lib", "nvidia/cublas/lib")
ALIGNMENT = 16
"""Alignment of every pointer in bytes, as the kernel's guards require."""

TYPES = {"f32": 0, "f16": 2, "bf16": 14}
COMPUTE = {"ieee": 68, "tf32": 77}
ACTIVATIONS = {"none": 0, "relu": 2, "gelu_tanh": 32}
BIAS, DEFAULT = 4, 1

DESC = {"TRANSA": 3, "TRANSB": 4, "EPILOGUE": 7, "BIAS_POINTER": 8}
LAYOUT = {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6}
PREFERENCE = {"MAX_WORKSPACE_BYTES": 1, "REDUCTION_SCHEME_MASK": 3}
PREFERENCE_ALIGNMENT = (5, 6, 7, 8)
CONFIG: dict[str, tuple[int, type[Any]]] = {
    "ALGO": (0, c_int32),
    "TILE": (1, c_uint32),
    "STAGES": (6, c_uint32),
    "SPLITK": (2, c_int32),
    "REDUCTION": (3, c_uint32),
    "SWIZZLE": (4, c_uint32),
    "CUSTOM": (5, c_uint32),
    "INNER": (7, c_uint16),
    "CLUSTER": (8, c_uint16),
}
"""An algorithm's attributes by their names in configs: the library's number, and the type of the value."""

CAPABILITY: dict[str, tuple[int, type[Any]]] = {
    "SPLITK_SUPPORT": (0, c_int32),
    "REDUCTION_SCHEME_MASK": (1, c_uint32),
    "CTA_SWIZZLING_SUPPORT": (2, c_uint32),
    "STRIDED_BATCH_SUPPORT": (3, c_int32),
    "OUT_OF_PLACE_RESULT_SUPPORT": (4, c_int32),
    "TILE_IDS": (6, c_uint32),
    "CUSTOM_OPTION_MAX": (7, c_int32),
    "EPILOGUE_MASK": (12, c_uint32),
    "STAGES_IDS": (13, c_uint32),
    "MIN_ALIGNMENT_A_BYTES": (16, c_uint32),
    "MIN_ALIGNMENT_B_BYTES": (17, c_uint32),
    "MIN_ALIGNMENT_C_BYTES": (18, c_uint32),
    "MIN_ALIGNMENT_D_BYTES": (19, c_uint32),
}


class Algorithm(ctypes.Structure):
    """`cublasLtMatmulAlgo_t`."""

    _fields_ = (("data", c_uint64 * 8),)


class Heuristic(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`. The workspace is in bytes."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int32),
        ("waves", c_float),
        ("reserved", c_int32 * 4),
    )


Layout = c_uint64 * 32
MatmulDesc = c_uint64 * 64
Preference = c_uint64 * 32
_ALGORITHM, _RESULT = POINTER(Algorithm), POINTER(Heuristic)
_CALL = [c_void_p] * 5
_SIGNATURES: dict[str, list[Any]] = {
    "cublasLtCreate": [POINTER(c_void_p)],
    "cublasLtDestroy": [c_void_p],
    "cublasLtMatrixLayoutInit_internal": [c_void_p, c_size_t, c_int, c_uint64, c_uint64, c_int64],
    "cublasLtMatrixLayoutSetAttribute": [c_void_p, c_int, c_void_p, c_size_t],
    "cublasLtMatmulDescInit_internal": [c_void_p, c_size_t, c_int, c_int],
    "cublasLtMatmulDescSetAttribute": [c_void_p, c_int, c_void_p, c_size_t],
    "cublasLtMatmulPreferenceInit_internal": [c_void_p, c_size_t],
    "cublasLtMatmulPreferenceSetAttribute": [c_void_p, c_int, c_void_p, c_size_t],
    "cublasLtMatmulAlgoGetHeuristic": [c_void_p, *_CALL, c_void_p, c_int, _RESULT, POINTER(c_int)],
    "cublasLtMatmulAlgoGetIds": [c_void_p, *[c_int] * 7, POINTER(c_int), POINTER(c_int)],
    "cublasLtMatmulAlgoInit": [c_void_p, *[c_int] * 7, _ALGORITHM],
    "cublasLtMatmulAlgoCheck": [c_void_p, *_CALL, _ALGORITHM, _RESULT],
    "cublasLtMatmulAlgoCapGetAttribute": [_ALGORITHM, c_int, c_void_p, c_size_t, POINTER(c_size_t)],
    "cublasLtMatmulAlgoConfigGetAttribute": [_ALGORITHM, c_int, c_void_p, c_size_t, POINTER(c_size_t)],
    "cublasLtMatmulAlgoConfigSetAttribute": [_ALGORITHM, c_int, c_void_p, c_size_t],
}
_MOST_IDS = 512


class Operands:
    """The library's descriptors of one product. `type` and `compute` are its numbers for dtype and math.

    `pointers` are the arguments of its functions: the operation, its A (our b), its B (our a), C and D.
    """

    def __init__(self, dtype: str, math: str) -> None:
        self.type, self.compute = TYPES[dtype], COMPUTE[math if dtype == "f32" else "ieee"]
        self.desc = MatmulDesc()
        self.a, self.b, self.c, self.d = Layout(), Layout(), Layout(), Layout()
        self.pointers = tuple(ctypes.addressof(x) for x in (self.desc, self.b, self.a, self.c, self.d))


class Library:
    """An opened cuBLASLt with a handle on the current device.

    Raises:
        WorkerError: when there is no library, or it cannot use the device.
    """

    def __init__(self, path: str = "") -> None:
        self._lib = _open(path)
        try:
            self._lib.cublasLtGetVersion.restype = c_size_t
            for name, arguments in _SIGNATURES.items():
                function = getattr(self._lib, name)
                function.argtypes, function.restype = arguments, c_int
        except AttributeError as error:
            raise WorkerError(f"the cuBLASLt that was found is not complete: {error}") from error
        self.version = int(self._lib.cublasLtGetVersion())
        self._handle = c_void_p()
        status = self._lib.cublasLtCreate(byref(self._handle))
        if status != 0:
            raise WorkerError(
                f"cuBLASLt {self.version}: cublasLtCreate fails with status {status}",
                why="there is no GPU that this process may use, or its driver is older than the library",
            )

    def close(self) -> None:
        self._lib.cublasLtDestroy(self._handle)

    def layout(self, to: Any, kind: int, rows: int, columns: int, ld: int, *, batch: int = 1, offset: int = 0) -> None:
        """Fill in the layout of a column-major matrix with leading dimension `ld`, or of a `batch` at distance
        `offset`.

        `ld` and `offset` are in elements.
        """
        _check("layout", self._lib.cublasLtMatrixLayoutInit_internal(to, ctypes.sizeof(to), kind, rows, columns, ld))
        values: list[tuple[str, Any]] = [("BATCH_COUNT", c_int32(batch)), ("STRIDED_BATCH_OFFSET", c_int64(offset))]
        for name, value in values if batch > 1 else ():
            size = ctypes.sizeof(value)
            status = self._lib.cublasLtMatrixLayoutSetAttribute(to, LAYOUT[name], byref(value), size)
            _check(f"layout's {name}", status)

    def describe(self, to: Operands, *, transposed_a: bool, transposed_b: bool, epilogue: int) -> None:
        """Fill in the operation."""
        lib, f32 = self._lib, TYPES["f32"]
        _check("operation", lib.cublasLtMatmulDescInit_internal(to.desc, ctypes.sizeof(to.desc), to.compute, f32))
        values: list[tuple[str, Any]] = [("TRANSA", c_int32(transposed_a)), ("TRANSB", c_int32(transposed_b))]
        values.append(("EPILOGUE", c_uint32(epilogue)))
        if epilogue & BIAS:
            values.append(("BIAS_POINTER", c_void_p(ALIGNMENT)))  # only its alignment matters
        for name, value in values:
            status = lib.cublasLtMatmulDescSetAttribute(to.desc, DESC[name], byref(value), ctypes.sizeof(value))
            _check(name, status)

    def heuristic(self, operands: Operands, wanted: int, workspace: int, reduction: int) -> list[Algorithm]:
        """The algorithms that the library would choose, best guess first."""
        preference = Preference()
        _check("preference", self._lib.cublasLtMatmulPreferenceInit_internal(preference, ctypes.sizeof(preference)))
        values: list[tuple[int, Any]] = [(PREFERENCE["MAX_WORKSPACE_BYTES"], c_uint64(workspace))]
        values.append((PREFERENCE["REDUCTION_SCHEME_MASK"], c_uint32(reduction)))
        values += [(number, c_uint32(ALIGNMENT)) for number in PREFERENCE_ALIGNMENT]
        for number, value in values:
            size = ctypes.sizeof(value)
            status = self._lib.cublasLtMatmulPreferenceSetAttribute(preference, number, byref(value), size)
            _check(f"preference {number}", status)
        results, count = (Heuristic * wanted)(), c_int()
        status = self._lib.cublasLtMatmulAlgoGetHeuristic(
            self._handle, *operands.pointers, ctypes.addressof(preference), wanted, results, byref(count)
        )
        usable = [r for r in results[: count.value] if r.state == 0] if status == 0 else []
        return [Algorithm.from_buffer_copy(r.algorithm) for r in usable]

    def ids(self, operands: Operands) -> list[int]:
        """The ids of all algorithms for the operands' types."""
        array, count, t = (c_int * _MOST_IDS)(), c_int(), operands.type
        types = (operands.compute, TYPES["f32"], t, t, t, t)
        status = self._lib.cublasLtMatmulAlgoGetIds(self._handle, *types, _MOST_IDS, array, byref(count))
        return sorted(array[: count.value]) if status == 0 else []

    def algorithm(self, operands: Operands, number: int) -> Algorithm | None:
        """An algorithm with the default of every attribute; None if the library refuses it."""
        made, t = Algorithm(), operands.type
        types = (operands.compute, TYPES["f32"], t, t, t, t)
        status = self._lib.cublasLtMatmulAlgoInit(self._handle, *types, number, byref(made))
        return made if status == 0 else None

    def capability(self, algorithm: Algorithm, name: str) -> list[int]:
        """The values of a capability; empty if the library does not say."""
        number, kind = CAPABILITY[name]
        written = c_size_t()
        get = self._lib.cublasLtMatmulAlgoCapGetAttribute
        if get(byref(algorithm), number, None, 0, byref(written)) != 0 or written.value == 0:
            return []
        values = (kind * (written.value // ctypes.sizeof(kind)))()
        if get(byref(algorithm), number, ctypes.addressof(values), ctypes.sizeof(values), byref(written)) != 0:
            return []
        return list(values)

    def config(self, algorithm: Algorithm) -> dict[str, int]:
        """The attributes of an algorithm, by the names of `CONFIG`."""
        attributes: dict[str, int] = {}
        for name, (number, kind) in CONFIG.items():
            value, written = kind(), c_size_t()
            size = ctypes.sizeof(value)
            get = self._lib.cublasLtMatmulAlgoConfigGetAttribute
            if get(byref(algorithm), number, byref(value), size, byref(written)) == 0:
                attributes[name] = int(value.value)
        return attributes

    def set(self, algorithm: Algorithm, name: str, value: int) -> bool:
        """Set one attribute. Returns False if the library refuses the value."""
        number, kind = CONFIG[name]
        given = kind(value)
        set_one = self._lib.cublasLtMatmulAlgoConfigSetAttribute
        return bool(set_one(algorithm, number, ctypes.addressof(given), ctypes.sizeof(given)) == 0)

    def workspace(self, operands: Operands, algorithm: Algorithm) -> int | None:
        """Bytes that an algorithm needs for the operands; None if it cannot serve them."""
        result = Heuristic()
        status = self._lib.cublasLtMatmulAlgoCheck(self._handle, *operands.pointers, byref(algorithm), byref(result))
        return int(result.workspace) if status == 0 else None


def device_facts() -> dict[str, int]:
    """Number of multiprocessors of the current device, from the driver; empty without a driver or a context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    device, count = c_int(), c_int()
    if driver.cuInit(0) != 0 or (
        driver.cuCtxGetDevice(byref(device)) != 0 and driver.cuDeviceGet(byref(device), 0) != 0
    ):
        return {}
    # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return {"multiprocessors": count.value} if driver.cuDeviceGetAttribute(byref(count), 16, device) == 0 else {}


def _open(path: str) -> Any:
    """The library that the process has loaded, else the wheel that torch would load, else what the loader finds."""
    if path:
        attempts = [(path, os.RTLD_LAZY)]
    else:
        attempts = [(name, os.RTLD_LAZY | os.RTLD_NOLOAD) for name in NAMES]
        for folder, name in zip(WHEEL_FOLDERS, NAMES, strict=True):
            attempts += [(str(Path(root, folder, name)), os.RTLD_LAZY) for root in sys.path if root]
        attempts += [(name, os.RTLD_LAZY) for name in NAMES]
    for name, mode in attempts:
        try:
            return ctypes.CDLL(name, mode=mode)
        except OSError:
            continue
    raise WorkerError(
        f"cuBLASLt not found: neither {' nor '.join(NAMES)}",
        fix="install the wheel nvidia-cublas, or the CUDA toolkit; without it, the vendor's algorithms are not tried",
    )


def _check(what: str, status: int) -> None:
    if status != 0:
        raise WorkerError(f"cuBLASLt refuses the {what}: status {status}")
