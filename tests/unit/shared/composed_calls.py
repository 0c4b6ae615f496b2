"""Runs in a process of its own: calls composed kernels that were compiled for the host, with the vendor's stand-in.

What `answers` gets: {"candidate": path, "symbol": ..., "templates": folder, "operator": name, "dtype": ..., "rounded":
whether the first stage's results are rounded to the dtype, "libraries": the stand-ins' paths, the vendor's first,
"calls": [...]}. A call has `dims`, and may have `present`, `attributes`, `strides` by tensor, `given` values by tensor,
tensors that are `shifted` by an element, and `room`, or is {"set": [name, value]} for the stand-in. The answer: a list
with what each call came to; `off` is the largest error, in units of the result's last place.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rounded_products import RoundedProducts
from rows_on_host import Stored, decode, encode

from aot_tune.spec import Operator, row_major
from aot_tune.spec.load_operators import load_operator

UNIT = {"f32": 2.0**-19, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Of floats, what functions may be off as well."""


class Called:
    """One call: its tensors, and what came of it."""

    def __init__(self, operator: Operator, dtype: str, one: dict[str, Any]) -> None:
        self._operator, self._dtype = operator, dtype
        self._attributes = {a.name: one.get("attributes", {}).get(a.name, a.choices[0]) for a in operator.attributes}
        draws, self._stored = np.random.default_rng(1), dict[str, Stored]()
        for tensor in operator.tensors:
            if tensor.optional and tensor.name not in one.get("present", ()):
                continue
            shape = tuple(e.evaluate(one["dims"]) for e in tensor.shape)
            strides = one.get("strides", {}).get(tensor.name) or row_major(shape, None)
            shift = int(tensor.name in one.get("shifted", ()))  # elements
            held = (*shape[:-1], shape[-1] + shift)
            made = self._stored[tensor.name] = Stored(held, strides, dtype, None if tensor.output else draws)
            made.view = made.view[..., shift:]
            made.extents[0, -1] -= shift
            made.tensor.data += shift * made.view.itemsize
            made.tensor.dtype[0] = 4 if dtype == "bf16" else 2
            if not tensor.output and not tensor.optional:  # products and sums of these are exact
                made.view[...] = encode(draws.integers(-3, 4, shape) / 2.0, dtype)
            if tensor.name in one.get("given", {}):
                made.view[...] = encode(np.array(one["given"][tensor.name], np.float64).reshape(shape), dtype)

    @property
    def arguments(self) -> list[Any]:
        """As the functions of a candidate take them."""
        tensors = [self._stored.get(t.name) for t in self._operator.tensors]
        chosen = [a.choices.index(self._attributes[a.name]) for a in self._operator.attributes]
        return [*(None if t is None else ctypes.byref(t.tensor) for t in tensors), *chosen]

    def result(self, between: str) -> dict[str, Any]:
        """How far off the output is where products are rounded to the dtype `between`, and its first elements."""
        values = {t.name: None for t in self._operator.tensors}
        inputs = [t.name for t in self._operator.inputs if t.name in self._stored]
        values |= {name: decode(self._stored[name].view.copy(), self._dtype) for name in inputs}
        (output,) = self._operator.outputs
        with np.errstate(all="ignore"):
            wanted = self._operator.reference(RoundedProducts(between), SimpleNamespace(**values, **self._attributes))
            want = wanted[output.name]
            got = decode(self._stored[output.name].view.copy(), self._dtype)
            off = np.abs(got - want) / (UNIT[self._dtype] * np.abs(want) + 1e-5)
        off[(got == want) | (np.isnan(got) & np.isnan(want))] = 0
        first = [float(v) for v in got.ravel()[:8]]
        clean = self._stored[output.name].spare_is_untouched()
        return {"off": float(np.nan_to_num(off, nan=np.inf).max(initial=0)), "first": first, "clean": clean}


def run(functions: dict[str, Any], called: Called, room: int | None) -> dict[str, Any]:
    """Ask for the workspace, launch and, where there is one, ask for the note."""
    size, text = ctypes.c_size_t(99), ctypes.create_string_buffer(200)
    found = {"workspace": functions["workspace"](*called.arguments, ctypes.byref(size)), "bytes": size.value}
    memory = np.full(size.value + 320, 0xFF, np.uint8)
    begin = -memory.ctypes.data % 64
    found["launch"] = functions["launch"](
        *called.arguments,
        ctypes.c_void_p(memory.ctypes.data + begin),
        ctypes.c_size_t(size.value if room is None else room),
        None,
    )
    found["workspace_kept"] = bool((memory[begin + size.value :] == 0xFF).all())
    if "note" in functions:
        functions["note"](*called.arguments, text, ctypes.c_size_t(len(text)))
        found["note"] = text.value.decode()
    return found


@functools.cache
def loaded(folder: str) -> Operator:
    """The operator of a folder, which forks of this process have too."""
    return load_operator(Path(folder))


def answers(given: dict[str, Any]) -> list[dict[str, Any]]:
    """What each call came to. A library of the name that the kernel looks for is found when it is loaded."""
    stub, *_ = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in given["libraries"]] or [None]
    library = ctypes.CDLL(given["candidate"])
    names = [f for f in ("workspace", "launch", "preload", "note") if hasattr(library, f"{given['symbol']}_{f}")]
    functions = {f: getattr(library, f"{given['symbol']}_{f}") for f in names}
    if stub is not None:
        stub.stub_log.restype = ctypes.c_char_p
    operator = loaded(str(Path(given["templates"], given["operator"])))
    found = []
    for one in given["calls"]:
        if "set" in one:
            assert stub is not None
            stub.stub_set(one["set"][0].encode(), ctypes.c_int64(one["set"][1]))
            continue
        called = Called(operator, given["dtype"], one)
        answer = {"preload": functions["preload"](), **run(functions, called, one.get("room"))}
        answer |= called.result(given["dtype"] if given["rounded"] else "f32")
        if stub is not None:
            answer["log"] = stub.stub_log().decode().splitlines()
            stub.stub_clear()
        found.append(answer)
    return found
