"""The stub as type checkers read it, and beside the module that it is of."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import linked
import pytest
from places import SHARED

from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.link.emit.python_stub import render_stub
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

TYPED = SHARED / "typed"
WRONG = [i for i, line in enumerate((TYPED / "bad.py").read_text().splitlines(), 1) if line.endswith("# wrong")]


@pytest.fixture(scope="module")
def folder(built: linked.Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module and its stub, as a wheel has them, and the programs."""
    place = tmp_path_factory.mktemp("typed")
    for path in (built.library, built.module, Path(built.made.stub), *TYPED.iterdir()):
        shutil.copy(path, place)
    return place


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MYPYPATH": f"{folder}{os.pathsep}{folder / 'stubs'}", "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *argv], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_program_runs(folder: Path) -> None:
    pytest.importorskip("torch")
    done = run(folder, "good.py")
    assert done.returncode == 0, done.stderr
    assert "axis 0 has extent 2, wanted K = 3" in done.stdout


TORCH = """
from enum import IntEnum
from typing import Any

class Tensor:
    T: Tensor
    def __dlpack__(
        self, *, stream: Any | None = -1, max_version: tuple[int, int] | None = None,
        dl_device: tuple[IntEnum, int] | None = None, copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[IntEnum, int]: ...
    def __getitem__(self, at: int) -> Tensor: ...
    def view(self, *shape: int) -> Tensor: ...

class cuda:
    class Stream:
        @property
        def cuda_stream(self) -> int: ...

class nn:
    class Parameter(Tensor):
        def __init__(self, data: Tensor, requires_grad: bool = True) -> None: ...

uint8: Any
def ones(*shape: int) -> Tensor: ...
def empty(*shape: int, dtype: Any = None) -> Tensor: ...
"""


@pytest.mark.slow
def test_mypy(folder: Path) -> None:
    """With what the programs use of torch, which takes long to be read; the other checker reads torch's own."""
    (folder / "stubs").mkdir()
    (folder / "stubs" / "torch.pyi").write_text(TORCH)
    done = run(folder, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "good.py", "bad.py")
    errors = re.findall(r"^(\w+\.py):(\d+): error", done.stdout, re.MULTILINE)
    assert {name for name, _ in errors} == {"bad.py"}, done.stdout + done.stderr
    assert sorted({int(n) for _, n in errors}) == WRONG, done.stdout


@pytest.mark.slow
def test_pyright(folder: Path) -> None:
    pytest.importorskip("torch")
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    settings = {"typeCheckingMode": "strict", "extraPaths": ["."], "reportMissingModuleSource": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run(folder, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", "good.py", "bad.py")
    found = json.loads(done.stdout)["generalDiagnostics"]
    said = {(Path(d["file"]).name, d["range"]["start"]["line"] + 1): d["message"] for d in found}
    assert {place for place in said if place[0] == "good.py"} == set(), said
    assert sorted({line for name, line in said if name == "bad.py"}) == WRONG, said


CHANGES = {
    '] = "none"': ('] = "relu"', "ops.gemm is inconsistent"),
    "eps: float = 1e-05": ("epsilon: float = 1e-05", "ops.rms_norm is inconsistent"),
    "def manifest()": ("def manifests()", "ops.manifests is not present at runtime"),
    "operator: str, /,": ("operator: str,", "ops.explain is inconsistent"),
}


@pytest.mark.slow
def test_the_stub_is_of_the_module_and_one_of_something_else_is_told(folder: Path) -> None:
    done = run(folder, "-m", "mypy.stubtest", "ops")
    assert done.returncode == 0, done.stdout + done.stderr
    stub = folder / "ops.pyi"
    whole = text = stub.read_text()
    for old, (new, _) in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    try:
        stub.write_text(text)
        said = run(folder, "-m", "mypy.stubtest", "ops").stdout
    finally:
        stub.write_text(whole)
    assert [told for _, told in CHANGES.values() if told not in said] == [], said


def stub_of(*tensors: Tensor) -> str:
    names = sorted({n for t in tensors for e in t.shape for n in ("R", "D") if e.key() == n})
    operator = Operator(
        name="op",
        dims=tuple(names),
        tensors=tensors,
        reference=lambda xp, call: {},
        flops=R,
        workload=(problem(**dict.fromkeys(names, 4)),),
        kernels=(Kernel("generic", "op/op.cpp.j2", generic=True),),
    )
    text = render_stub(LibrarySpec(operators=(OperatorTable(operator=operator, variants=()),)))
    return re.sub(r",\n +", ", ", text).replace("(\n    ", "(").replace(",\n)", ")")


R, D = dims("R D")


def test_results_that_are_not_as_the_first_tensor_are_of_any_type() -> None:
    x = Tensor("x", (R, D))
    whole, sums = Tensor("y", (R, D), "i8", output=True), Tensor("y", (R,), output=True)
    for other in (whole, sums):
        text = stub_of(x, other)
        assert "y: Tensor | None = None, stream" in text
        assert "-> Any:" in text
    assert "y: _T | None = None, stream" in stub_of(x, Tensor("y", (D, R), output=True))


def test_what_is_written_says_what_is_returned() -> None:
    x, y = Tensor("x", (R, D)), Tensor("y", (R, D), output=True)
    both = [Tensor(name, (R, D), output=True, optional=True) for name in ("p", "q")]
    text = stub_of(x, y, *both)
    returned = re.findall(r"p: (.*?), q: (.*?), stream.*?-> (.*?):", text)
    absent, present = "Literal[False] | None = None", "_T | Literal[True]"
    assert returned == [
        (absent, absent, "_T"),
        (absent, present, "tuple[_T, _T]"),
        (present, absent, "tuple[_T, _T]"),
        (present, present, "tuple[_T, _T, _T]"),
    ]
    many = [Tensor(name, (R, D), output=True, optional=True) for name in "abcd"]
    text = stub_of(x, y, *many)
    assert "a: _T | bool | None = None, b: _T | bool | None = None" in text
    assert "@overload" not in text
    assert "-> Any:" in text


def test_a_result_that_has_to_be_passed_and_an_operator_without_results() -> None:
    """Where its extents tell a dim nobody could make it."""
    text = stub_of(Tensor("x", (R,)), Tensor("y", (R, D), output=True))
    assert "def op(x: Tensor, *, y: Tensor, stream" in text
    assert "-> Any:" in text
    text = stub_of(Tensor("y", (R, D), output=True))
    assert "def op(*, y: _T, stream" in text
    assert "-> _T:" in text
    text = stub_of(Tensor("x", (R, D), inout=True))
    assert "def op(x: Tensor, *, stream" in text
    assert "-> None:" in text
