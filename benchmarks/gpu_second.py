"""A second tuned library beside the installed package, called through its C functions.

A process treats libraries of one name as the same one. The second library's Python module would get the first library.
If the second were loaded first, the installed package's module would get the second.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from aot_tune.bench.worker.loaded_objects import Arguments
from aot_tune.spec import Call, Operator, Problem

__all__ = ["Bound", "SecondLibrary"]

_PREFIX = "aot_tune"
_PACKAGES = "libaot_tune_ops.so"
_DEVICES = {"cpu": 1, "cuda": 2}
_TEXT = 8192
"""Bytes for a library's explanation of a call."""


class _Execution(ctypes.Structure):
    _fields_ = (("stream", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("workspace_size", ctypes.c_size_t))


def _execution(stream: int, workspace: Any) -> _Execution:
    return _Execution(stream, *((None, 0) if workspace is None else (workspace.data_ptr(), workspace.numel())))


class SecondLibrary:
    """The library below a folder, which is from a wheel (`pip install --target`) or from a build.

    Raises:
        OSError: when there is not exactly one, or when it cannot be loaded.
    """

    def __init__(self, folder: Path, name: str = _PACKAGES) -> None:
        found = sorted(folder.rglob(name))
        if len(found) != 1:
            raise OSError(f"{folder} holds {len(found)} files {name}, wanted one")
        if name == _PACKAGES and importlib.util.find_spec("aot_tune.ops"):
            importlib.import_module("aot_tune.ops")
        self._library = ctypes.CDLL(str(found[0]), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        for function in ("manifest", "last_error"):
            self._function(function).restype = ctypes.c_char_p

    def manifest(self) -> dict[str, Any]:
        """The library's manifest."""
        found: dict[str, Any] = json.loads(self._function("manifest")())
        return found

    def has_kernels_of(self, backend: str) -> bool:
        """Whether it was built with a backend. If so, its manifest names the backend's tools."""
        return any(name.startswith(f"{backend}.") for name in self.manifest()["tools"])

    def bind(self, operator: Operator, problem: Problem, call: Call) -> Bound:
        """One call with its tensors (torch's, None if absent), which must live as long as the call."""
        return Bound(self, operator, problem, call)

    def checked(self, name: str, *arguments: Any) -> None:
        """Call a function by its name without the prefix.

        Raises:
            RuntimeError: with the library's own message, when it fails.
        """
        status = self._function(name)(*arguments)
        if status != 0:
            said = self._function("last_error")()
            raise RuntimeError(f"status {status}: {said.decode() if said else 'no message'}")

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"{_PREFIX}_{name}")


class Bound:
    """A call that is made many times on the same tensors."""

    def __init__(self, library: SecondLibrary, operator: Operator, problem: Problem, call: Call) -> None:
        self._library, self._name = library, operator.name
        given = {t.name: tensor for t in operator.tensors if (tensor := getattr(call, t.name)) is not None}
        device = next(iter(given.values())).device
        self._arguments = Arguments(
            operator.concrete(problem.dtypes),
            {name: tensor.data_ptr() for name, tensor in given.items()},
            {name: tuple(tensor.shape) for name, tensor in given.items()},
            {name: tensor.stride() for name, tensor in given.items()},
            {s.name: getattr(call, s.name) for s in operator.scalars},
            {a.name: a.choices.index(getattr(call, a.name)) for a in operator.attributes},
            (_DEVICES[device.type], device.index or 0),
        )

    def run(self, stream: int, workspace: Any) -> None:
        """Compute on a stream with a workspace: a tensor of bytes, or None for the library's own."""
        self._library.checked(self._name, *self._arguments.call, ctypes.byref(_execution(stream, workspace)))

    def explain(self, workspace: Any = None) -> dict[str, str]:
        """What the library says of such a call: variant, kernel, target, tuned (`yes` or `no`), and more."""
        text, how = ctypes.create_string_buffer(_TEXT), ctypes.byref(_execution(0, workspace))
        self._library.checked(f"{self._name}_explain", *self._arguments.call, how, text, ctypes.c_size_t(_TEXT))
        lines = (line.partition(": ") for line in text.value.decode().splitlines())
        return {key: value for key, _, value in lines}
