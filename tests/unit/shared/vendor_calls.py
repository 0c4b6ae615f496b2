"""Kernels that call vendors' libraries, compiled for the host and called beside stand-ins, in processes of their own.

A call has `dims`, and may have `present`, `attributes`, `scalars`, `strides` by tensor, tensors that are `shifted` by
an element, `room`, `stream`, `device`, and may `preload` first; or it is {"set": [name, value]} for the stand-in. Its
answer says what came of each function, what the library was asked for, and whether the output was touched.
"""

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
from bundled import RENDERER
from dltensors import tensor_of
from forked import answer
from host_compiler import CUDA, shared_object

from aot_tune.compile.toolchain import target_by_name, toolchain_for
from aot_tune.render import Rendered, candidate_for
from aot_tune.spec import ConfigValue, Operator, row_major
from aot_tune.spec.load_operators import bundled_templates, load_operator

Call = dict[str, Any]
HOPPER = target_by_name("cuda-sm_90a")


def render(operator: Operator, kernel: str, config: dict[str, ConfigValue], dtype: str) -> Rendered:
    """A candidate: a config with these values, or the first one changed to them."""
    declared = operator.kernel(kernel)
    every = list(declared.configs(HOPPER.facts))
    like = (c for c in every if all(c.get(n) == v for n, v in config.items()))
    chosen = next(like, {**(every[0] if every else {}), **config})
    candidate = candidate_for(operator, declared, chosen, HOPPER, None, {"T": dtype})
    return RENDERER.render(operator, candidate, HOPPER)


class OnHost:
    """A compiled candidate."""

    def __init__(self, folder: Path, rendered: Rendered) -> None:
        self.rendered, self.operator = rendered, bundled_templates() / rendered.candidate.operator
        if rendered.candidate.backend in ("cublaslt", "cudnn"):
            toolchain = toolchain_for(rendered.candidate.backend)
            outcome = toolchain.compile(rendered.source, HOPPER, folder / "candidate.o", 120.0)
            assert (outcome.status, outcome.log) == ("ok", "")
            self.program = folder / "candidate.so"
            toolchain.link_shared([folder / "candidate.o"], self.program)
        else:
            (folder / "candidate.cpp").write_text(rendered.source)
            self.program = shared_object(folder / "candidate.cpp", *CUDA)

    def call(self, calls: list[Call], libraries: Path | None, program: Path | None = None) -> list[Any]:
        """What each call came to, in one process; `program` is a copy of the candidate."""
        given = {
            "candidate": str(program or self.program),
            "symbol": self.rendered.symbol,
            "operator": str(self.operator),
            "dtype": self.rendered.candidate.dtypes["T"],
            "libraries": sorted(map(str, libraries.iterdir()) if libraries else (), key=lambda p: "libcuda" in p),
            "calls": calls,
        }
        found: list[Any] = answer("from vendor_calls import *", "answers(given)", given)
        return found


# -- what runs in the other process


class _Called:
    """The tensors of a call, all zeros but the output."""

    def __init__(self, operator: Operator, dtype: str, one: Call) -> None:
        self._operator, self._tensors, self._memory = operator, dict[str, Any](), dict[str, Any]()
        self._scalars = [one.get("scalars", {}).get(s.name, s.default) for s in operator.scalars]
        self._attributes = {a.name: one.get("attributes", {}).get(a.name, a.choices[0]) for a in operator.attributes}
        code = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16)}[dtype]
        for tensor in operator.tensors:
            if tensor.optional and tensor.name not in one.get("present", ()):
                continue
            shape = tuple(e.evaluate(one["dims"]) for e in tensor.shape)
            strides = one.get("strides", {}).get(tensor.name) or row_major(shape, None)
            count = sum(s * (n - 1) for s, n in zip(strides, shape, strict=True)) + 2
            memory = np.full(count * 4 + 64, 0xFF if tensor.output else 0, np.uint8)
            at = memory.ctypes.data + -memory.ctypes.data % 64 + (tensor.name in one.get("shifted", ())) * code[1] // 8
            self._memory[tensor.name] = memory
            self._tensors[tensor.name] = tensor_of(at, (2, one.get("device", 0)), shape, strides, code)

    @property
    def arguments(self) -> list[Any]:
        tensors = [self._tensors.get(t.name) for t in self._operator.tensors]
        chosen = [a.choices.index(self._attributes[a.name]) for a in self._operator.attributes]
        scalars = [ctypes.c_float(value) for value in self._scalars]
        return [*(None if t is None else ctypes.byref(t) for t in tensors), *scalars, *chosen]

    def touched(self) -> bool:
        """Whether any of the output was written."""
        (output,) = self._operator.outputs
        return not (self._memory[output.name] == 0xFF).all()


def _run(functions: dict[str, Any], called: _Called, one: Call) -> dict[str, Any]:
    """Ask for the workspace, launch and, where there is one, ask for the note."""
    size, text = ctypes.c_size_t(99), ctypes.create_string_buffer(200)
    found = {"workspace": functions["workspace"](*called.arguments, ctypes.byref(size)), "bytes": size.value}
    memory = np.full(size.value + 320, 0xFF, np.uint8)
    begin = -memory.ctypes.data % 64
    where, room = ctypes.c_void_p(memory.ctypes.data + begin), ctypes.c_size_t(one.get("room", size.value))
    stream = ctypes.c_void_p(one.get("stream", 0))
    found["launch"] = functions["launch"](*called.arguments, where, room, stream)
    if "note" in functions:
        functions["note"](*called.arguments, text, ctypes.c_size_t(len(text)))
        found["note"] = text.value.decode()
    return found


@functools.cache
def _loaded(folder: str) -> Operator:
    return load_operator(Path(folder))


def answers(given: dict[str, Any]) -> list[dict[str, Any]]:
    """What each call came to. A library of the name that the kernel looks for is found when it is loaded."""
    stub, *_ = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in given["libraries"]] or [None]
    library = ctypes.CDLL(given["candidate"])
    names = [f for f in ("workspace", "launch", "preload", "note") if hasattr(library, f"{given['symbol']}_{f}")]
    functions = {f: getattr(library, f"{given['symbol']}_{f}") for f in names}
    if stub is not None:
        stub.stub_log.restype = ctypes.c_char_p
    found = []
    for one in given["calls"]:
        if "set" in one:
            assert stub is not None
            stub.stub_set(one["set"][0].encode(), ctypes.c_int64(one["set"][1]))
            continue
        called = _Called(_loaded(given["operator"]), given["dtype"], one)
        preloaded = {"preload": functions["preload"]()} if one.get("preload") else {}
        told = preloaded | _run(functions, called, one) | {"touched": called.touched()}
        if stub is not None:
            told["log"] = stub.stub_log().decode().splitlines()
            told["live"] = stub.stub_live() if hasattr(stub, "stub_live") else 0
            stub.stub_clear()
        found.append(told)
    return found
