"""Runs in a process of its own: loads a Triton candidate and makes the calls that standard input lists.

Input: {"library": path, "symbol": ..., "driver": bool, "calls": [...]}. A call is {"set": [name, value]} or
{"enter": device} for the driver's stand-in, {"preload": true}, {"threads": n} around another call, or has `arguments`:
tensors as {"shape", "strides", "dtype", "offset", "device"}, None, or {"scalar": type, "value"}. {"grids": [[shape,
...], ...]} makes a call of each row of shapes and answers with the grids. Output: a list with what each call came to.
"""

import ctypes
import json
import sys
import threading
from typing import Any

from dltensors import Tensor, tensor_of

CODES = {"f32": (2, 32), "f64": (2, 64), "f16": (2, 16), "bf16": (4, 16), "i32": (0, 32), "i64": (0, 64), "u8": (1, 8)}
SCALARS: dict[str, Any] = {"f32": ctypes.c_float, "f64": ctypes.c_double}
SCALARS |= {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


def row_major(shape: list[int]) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * max(shape[i], 1)
    return strides


class Memory:
    """Bytes of 0xff at an address that 256 divides, plus an offset."""

    def __init__(self, size: int, offset: int = 0) -> None:
        self.size = size
        self.buffer = (ctypes.c_char * (size + 512 + offset))()
        self.address = (ctypes.addressof(self.buffer) + 255) // 256 * 256 + offset
        ctypes.memset(self.address, 0xFF, size)

    def bytes(self) -> bytes:
        return ctypes.string_at(self.address, self.size)


def tensor(given: dict[str, Any] | None) -> Tensor | None:
    if given is None:
        return None
    shape, (code, bits) = given["shape"], CODES[given.get("dtype", "f32")]
    strides = given.get("strides") or row_major(shape)
    low = min(0, sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0))
    high = sum(max(n - 1, 0) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    size = (high - low + 1) * bits // 8 if given.get("memory", True) else 1
    memory = Memory(size, given.get("offset", 0))
    data = given.get("address") or memory.address - low * bits // 8
    made = tensor_of(data, (2, given.get("device", 0)), shape, strides, (code, bits))
    made.memory = memory
    return made


class Candidate:
    def __init__(self, path: str, symbol: str) -> None:
        library = ctypes.CDLL(path)
        self.functions = {f: getattr(library, f"{symbol}_{f}") for f in ("workspace", "launch", "preload", "note")}
        for function in self.functions.values():
            function.restype = ctypes.c_int32

    def call(self, one: dict[str, Any]) -> dict[str, Any]:
        made = []
        for given in one["arguments"]:
            is_scalar = given is not None and "scalar" in given
            made.append(SCALARS[given["scalar"]](given["value"]) if is_scalar else tensor(given))
        passed = [ctypes.byref(a) if isinstance(a, Tensor) else a for a in made]
        size = ctypes.c_size_t(99)
        found: dict[str, Any] = {"workspace": self.functions["workspace"](*passed, ctypes.byref(size))}
        found["bytes"] = size.value
        note = ctypes.create_string_buffer(b"untouched", 256)
        self.functions["note"](*passed, note, ctypes.c_size_t(len(note)))
        found["note"] = note.value.decode()
        room = one.get("room", size.value)
        memory = Memory(room, one.get("skew", 0))
        address = memory.address if room else None
        stream = ctypes.c_void_p(one.get("stream", 0))
        for _ in range(one.get("repeat", 1)):
            found["launch"] = self.functions["launch"](*passed, ctypes.c_void_p(address), ctypes.c_size_t(room), stream)
        found["address"], found["memory"] = address, memory.bytes().hex()
        tensors = [a for a in made if isinstance(a, Tensor)]
        found["data"] = [a.data for a in tensors]
        found["tensors"] = [a.memory.bytes().hex() for a in tensors if len(a.memory.bytes()) < 4096]
        return found


def in_threads(candidate: Candidate, one: dict[str, Any]) -> list[int]:
    ready, statuses = threading.Barrier(one["threads"]), []

    def run() -> None:
        ready.wait()
        statuses.append(candidate.call(one)["launch"])

    threads = [threading.Thread(target=run) for _ in range(one["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def grids(candidate: Candidate, stub: Any, rows: list[list[list[int]]]) -> list[list[int]]:
    """The grid of each row of shapes; [0, 0, 0] where nothing was launched, and the status alone of an error."""
    found = []
    for shapes in rows:
        stub.stub_clear()
        made = [tensor({"shape": shape, "memory": False}) for shape in shapes]
        grid = (ctypes.c_int64 * 3)(0, 0, 0)
        status = candidate.functions["launch"](*(ctypes.byref(t) for t in made), None, ctypes.c_size_t(0), None)
        stub.stub_grid(grid)
        found.append([status] if status else list(grid))
    return found


def main() -> None:
    given = json.load(sys.stdin)
    stub: Any = None
    if given["driver"]:
        stub = ctypes.CDLL("libcuda.so.1")
        stub.stub_log.restype = ctypes.c_char_p
        stub.stub_enter(0)
    candidate = Candidate(given["library"], given["symbol"])
    answers = []
    for one in given["calls"]:
        if "set" in one:
            stub.stub_set(one["set"][0].encode(), ctypes.c_int64(one["set"][1]))
            continue
        if "enter" in one:
            stub.stub_enter(one["enter"])
            continue
        if "grids" in one:
            answers.append({"grids": grids(candidate, stub, one["grids"])})
            continue
        if one.get("preload"):
            answer: dict[str, Any] = {"preload": candidate.functions["preload"]()}
        elif "threads" in one:
            answer = {"statuses": in_threads(candidate, one)}
        else:
            answer = candidate.call(one)
        if stub is not None:
            answer["log"], answer["loads"] = stub.stub_log().decode().splitlines(), stub.stub_loads()
            stub.stub_clear()
        answers.append(answer)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
