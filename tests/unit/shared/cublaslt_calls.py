"""Runs in a process of its own: loads a candidate that calls cuBLASLt and makes calls of it.

What `answers` gets: {"candidate": path, "symbol": ..., "libraries": the stand-ins'
paths, the vendor's first, "calls": [...]}. A call has the fields that `Candidate.call` reads, or is {"set": [name,
value]} for the stand-in of the library. The answer: a list with what each call came to.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

CODES = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16)}
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
UNTOUCHED = -77.0


class Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def matrix(rng: np.random.Generator, rows: int, columns: int, *, by_columns: bool, pad: int) -> np.ndarray[Any, Any]:
    """A float32 matrix whose rows (or columns) lie `pad` elements apart."""
    inner, outer = (rows, columns) if by_columns else (columns, rows)
    memory = rng.standard_normal(outer * (inner + pad)).astype(np.float32)
    strides = (4, 4 * (inner + pad)) if by_columns else (4 * (inner + pad), 4)
    return as_strided(memory, (rows, columns), strides)


def stack(
    rng: np.random.Generator, count: int, rows: int, columns: int, *, by_columns: bool, pad: int, where: str
) -> np.ndarray[Any, Any]:
    """`count` float32 matrices: one after another, `apart`, `shared` (one for all), or their rows `between` others."""
    inner, outer = (rows, columns) if by_columns else (columns, rows)
    row, step = inner + pad, outer * (inner + pad) + (3 if where == "apart" else 0)
    if where == "between":
        row, step = count * (inner + pad), inner + pad
    memory = rng.standard_normal(count * (outer * (inner + pad) + 3)).astype(np.float32)
    strides = (0 if where == "shared" else 4 * step, *((4, 4 * row) if by_columns else (4 * row, 4)))
    return as_strided(memory, (count, rows, columns), strides)


def tensor(array: np.ndarray[Any, Any] | None, dtype: str, device: int) -> Tensor | None:
    if array is None:
        return None
    rank = array.ndim
    shape = (ctypes.c_int64 * rank)(*array.shape)
    strides = (ctypes.c_int64 * rank)(*(s // 4 for s in array.strides))
    made = Tensor(array.ctypes.data, Device(2, device), rank, DataType(*CODES[dtype], 1), shape, strides, 0)
    made.keep = (array, shape, strides)
    return made


class Candidate:
    def __init__(self, path: str, symbol: str) -> None:
        library = ctypes.CDLL(path)
        self.functions = {f: getattr(library, f"{symbol}_{f}") for f in ("workspace", "launch", "preload", "note")}

    def call(self, one: dict[str, Any]) -> dict[str, Any]:
        if one.get("preload"):
            return {"preload": self.functions["preload"]()}
        if "batch" in one:
            return self.call_batch(one)
        m, n, k, dtype = one["m"], one["n"], one["k"], one.get("dtype", "f32")
        pad, activation = one.get("pad", 0), one.get("activation", "none")
        rng = np.random.default_rng(1)
        a = matrix(rng, m, k, by_columns=one.get("a_by_columns", False), pad=pad)
        b = matrix(rng, k, n, by_columns=one.get("b_by_columns", True), pad=pad)
        bias = rng.standard_normal(n).astype(np.float32) if one.get("bias") else None
        residual = matrix(rng, m, n, by_columns=False, pad=2 * pad) if one.get("residual") else None
        out = matrix(rng, m, n, by_columns=False, pad=pad)
        out[:] = UNTOUCHED
        tensors = [tensor(t, dtype, one.get("device", 0)) for t in (a, b, bias, residual, out)]
        given = [*(None if t is None else ctypes.byref(t) for t in tensors), ACTIVATIONS.index(activation)]
        given.append(int(one.get("math") == "tf32"))
        found = self.run(one, given, out)
        wanted = a.astype(np.float64) @ b + (0 if bias is None else bias)
        if activation == "relu":
            wanted = np.maximum(wanted, 0)
        if activation == "gelu_tanh":
            wanted = 0.5 * wanted * (1 + np.tanh(np.sqrt(2 / np.pi) * (wanted + 0.044715 * wanted**3)))
        wanted = wanted + (0 if residual is None else residual)
        found["error"] = float(np.abs(out - wanted).max())
        return found

    def call_batch(self, one: dict[str, Any]) -> dict[str, Any]:
        count, m, n, k = one["batch"], one["m"], one["n"], one["k"]
        pad, where = one.get("pad", 0), one.get("where", {})
        rng = np.random.default_rng(1)
        by_columns = {"a": one.get("a_by_columns", False), "b": one.get("b_by_columns", True), "out": False}
        extents = {"a": (m, k), "b": (k, n), "out": (m, n)}
        a, b, out = (
            stack(rng, count, *extents[t], by_columns=by_columns[t], pad=pad, where=where.get(t, "")) for t in extents
        )
        wanted = a.astype(np.float64) @ b
        out[:] = UNTOUCHED
        tensors = [tensor(t, one.get("dtype", "f32"), one.get("device", 0)) for t in (a, b, out)]
        found = self.run(one, [*(ctypes.byref(t) for t in tensors), int(one.get("math") == "tf32")], out)
        found["error"] = float(np.abs(out - wanted).max())
        return found

    def run(self, one: dict[str, Any], given: list[Any], out: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Ask for the workspace, launch and ask for the note, with the operator's arguments `given`."""
        size, text = ctypes.c_size_t(99), ctypes.create_string_buffer(200)
        found = {"workspace": self.functions["workspace"](*given, ctypes.byref(size)), "bytes": size.value}
        room = one.get("room", size.value)
        found["launch"] = self.functions["launch"](
            *given, None, ctypes.c_size_t(room), ctypes.c_void_p(one.get("stream", 0))
        )
        found["note_status"] = self.functions["note"](*given, text, ctypes.c_size_t(len(text)))
        found["note"] = text.value.decode()
        found["touched"] = bool((out != UNTOUCHED).any())
        return found


def answers(given: dict[str, Any]) -> list[dict[str, Any]]:
    """What each call came to. A library of the name that the candidate looks for is found when it is loaded."""
    stub, *_ = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in given["libraries"]] or [None]
    candidate = Candidate(given["candidate"], given["symbol"])
    if stub is not None:
        stub.stub_log.restype = ctypes.c_char_p
    found = []
    for one in given["calls"]:
        if "set" in one:
            assert stub is not None
            stub.stub_set(one["set"][0].encode(), ctypes.c_int64(one["set"][1]))
            continue
        answer = candidate.call(one)
        if stub is not None:
            answer["log"] = stub.stub_log().decode().splitlines()
            stub.stub_clear()
        found.append(answer)
    return found
