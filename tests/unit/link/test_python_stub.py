"""The stub as type checkers read it, and beside the module that it is of."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import linked
import pytest
from places import SHARED

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
