"""What the tests of one stage share among their files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "shared"))

import linked
import linked_cuda
import odd_operators
from places import SHARED

from aot_tune.link import LibrarySpec
from aot_tune.render import Rendered


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library of `linked.library_spec`, linked."""
    folder = tmp_path_factory.mktemp("linked")
    return linked.link_library(linked.library_spec(folder / "objects"), folder / "out")


@pytest.fixture(scope="session")
def ops(built: linked.Built) -> ModuleType:
    """Its Python module."""
    return linked.load_module(built.module)


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library of `odd_operators`, linked."""
    folder = tmp_path_factory.mktemp("odd")
    return linked.link_library(odd_operators.library_spec(folder / "objects"), folder / "out")


@pytest.fixture(scope="session")
def odd_ops(odd: linked.Built) -> ModuleType:
    """Its Python module."""
    return linked.load_module(odd.module)


@pytest.fixture(scope="session")
def cuda_spec(tmp_path_factory: pytest.TempPathFactory) -> LibrarySpec:
    """The library of `linked_cuda.library_spec` with stand-ins for kernels."""
    return linked_cuda.library_spec(tmp_path_factory.mktemp("standins"), device=False)


@pytest.fixture(scope="session")
def standin(cuda_spec: LibrarySpec, tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library with kernels that run on the host, linked with the driver of fake_cuda.cpp; no toolkit is needed."""
    folder = tmp_path_factory.mktemp("standin")
    fake = folder / "libcuda.so.1"
    source = str(SHARED / "fake_cuda.cpp")
    run = ["g++", "-std=c++17", "-shared", "-fPIC", source, "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*run, "-o", str(fake)], check=True)
    found = ["-Wl,--no-as-needed", str(fake), "-Wl,-rpath,$ORIGIN"]  # so that dlopen gets this one
    return linked.link_library(cuda_spec, folder, families=["cuda"], libraries=found)


@pytest.fixture
def make_cuda(make_rendered: Callable[..., Rendered]) -> Callable[..., Rendered]:
    """A rendered candidate of a CUDA source: `make_cuda(source, target)`."""

    def make(text: str, target: str = "cuda-sm_80") -> Rendered:
        rendered = make_rendered(0, text, target)
        candidate = type(rendered.candidate)(
            operator="test", kernel="kernel", backend="nvcc", target=target, config={"N": 0}
        )
        return type(rendered)(
            candidate=candidate,
            source=rendered.source,
            digest=rendered.digest,
            symbol=rendered.symbol,
            lines=[("test/kernel.cu.j2", n + 101) for n in range(text.count("\n") + 1)],
        )

    return make
