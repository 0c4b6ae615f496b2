"""What the tests of one stage share among their files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import linked
import linked_cuda

from aot_tune.link import LibrarySpec


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
def cuda_spec(tmp_path_factory: pytest.TempPathFactory) -> LibrarySpec:
    """The library of `linked_cuda.library_spec` with stand-ins for kernels."""
    return linked_cuda.library_spec(tmp_path_factory.mktemp("standins"), device=False)


@pytest.fixture(scope="session")
def standin(cuda_spec: LibrarySpec, tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library with kernels that run on the host, linked with the runtime of fake_cuda.cpp."""
    includes, _ = linked_cuda.cuda_runtime()
    if not includes:
        pytest.skip("no CUDA headers are here")
    folder = tmp_path_factory.mktemp("standin")
    fake = folder / "libcuda.so.1"
    source = str(Path(__file__).with_name("fake_cuda.cpp"))
    run = ["g++", "-std=c++17", "-shared", "-fPIC", source, "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*run, "-o", str(fake)], check=True)
    return linked.link_library(cuda_spec, folder, includes=includes, libraries=[str(fake), "-Wl,-rpath,$ORIGIN"])
