"""The Tritons that tests run with: the one that can be imported, and those of the folders in AOT_TUNE_TEST_TRITON."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from places import SHARED

from aot_tune.compile.triton_toolchain import TritonToolchain
from aot_tune.spec import Expr, stride
from aot_tune.support.errors import ToolchainError
from aot_tune.triton.ask_declarations import ROOTS, child_environment, inspect
from aot_tune.triton.installed import find_triton
from aot_tune.triton.triton_messages import Answer, FunctionRequest, Given, InspectRequest, TensorFacts

FUNCTIONS = SHARED / "triton_functions"
"""The folder of the functions; its parent is their root."""


def _found() -> dict[str, list[str]]:
    """Version to the folders to import from."""
    found: dict[str, list[str]] = {}
    extra = [f for f in os.environ.get("AOT_TUNE_TEST_TRITON", "").split(os.pathsep) if f]
    for search in (list(sys.path), *([folder, *sys.path] for folder in extra)):
        try:
            found.setdefault(find_triton(search).version, search)
        except ToolchainError as error:
            if search[0] in extra:
                raise AssertionError(f"AOT_TUNE_TEST_TRITON: {search[0]}: {error}") from error
    return found


VERSIONS = _found()
"""The folders to import each version from."""

_SKIPPED = pytest.mark.skip(reason="no Triton: install triton==3.6.0, or name folders in AOT_TUNE_TEST_TRITON")
EACH_TRITON = pytest.mark.parametrize(
    "search",
    [pytest.param(search, id=version) for version, search in VERSIONS.items()]
    or [pytest.param([], id="none", marks=_SKIPPED)],
)
"""A test runs once for each version, with the folders to import from as `search`."""
ONE_TRITON = pytest.mark.parametrize(
    "search",
    [pytest.param(search, id=version) for version, search in VERSIONS.items()][:1]
    or [pytest.param([], id="none", marks=_SKIPPED)],
)
"""A test of what is of processes and files, and so the same with every version."""


def chain(search: list[str], root: Path = FUNCTIONS.parent) -> TritonToolchain:
    """The toolchain of a version, with functions below `root`."""
    return TritonToolchain({**os.environ, ROOTS: str(root)}, search)


def integer(expr: Expr) -> Given:
    return Given(kind="integer", expr=expr.data())


def pointer(name: str, *shape: Expr, dtypes: tuple[str, ...] = ("f32",), optional: bool = False) -> Given:
    return Given(
        kind="pointer",
        tensor=TensorFacts(
            name=name,
            dtypes=list(dtypes),
            dtype_fact="dtype.T" if len(dtypes) > 1 else "",
            shape=[e.data() for e in shape],
            strides=[stride(name, i).data() for i in range(len(shape))],
            optional=optional,
        ),
    )


def request(function: str, arguments: dict[str, Given], **more: Any) -> FunctionRequest:
    return FunctionRequest(name="tested", function=f"triton_functions/{function}", arguments=arguments, **more)


def ask(search: list[str], target: str, *functions: FunctionRequest, root: Path = FUNCTIONS.parent) -> list[Answer]:
    asked = InspectRequest(target=target, roots=[str(root)], functions=list(functions))
    return inspect(asked, os.environ, search=search)


def jit_of(search: list[str]) -> _Jit:
    """What the JIT itself makes of a call: that of a version, for all tests."""
    if search[0] not in _JITS:
        scratch = Path(tempfile.mkdtemp())
        made = _JITS[search[0]] = _Jit(search, scratch)
        atexit.register(made.close)
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return _JITS[search[0]]


class _Jit:
    """`triton_jit.py` in a process of its own. One JSON line each way."""

    def __init__(self, search: list[str], scratch: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SHARED / "triton_jit.py"), str(FUNCTIONS.parent)],
            cwd=scratch,
            env=child_environment(os.environ, search, scratch),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()


_JITS: dict[str, _Jit] = {}
