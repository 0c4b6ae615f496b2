"""One wheel of the project, built in isolation from a read-only copy, and a fresh environment that holds it."""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from environments import ROOT, Builder, Built, Compiler, Venv, copy_source, make_read_only, make_sdist, pip, tree_digest
from module_files import load_module
from project import Project
from stand_ins import build

from aot_tune.compile import toolchain_for
from aot_tune.support.errors import ToolchainError

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def tuned_once(tuned_once: Project, forks: Callable[..., str]) -> Project:
    return replace(tuned_once, runs=forks)


FACED = """
{{ prelude() }}
#include <unistd.h>
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  if ({{ dim("N") }} > 1000000) usleep(300000);
  #pragma omp parallel for num_threads(2)
  for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
    {{ store("y", ["i"], "2 * " ~ load("x", ["i"])) }}
  }
  return 0;
}
"""


@pytest.fixture(scope="session")
def faced(once: Once, forks: Callable[..., str]) -> Project:
    """A library, not tuned, whose kernel has two threads, and takes long for a million of elements.

    Its module is `face`, in the folder `cmake`.
    """

    def make(folder: Path) -> None:
        made = Project.make(folder / "project", arguments="MODULE face")
        (made.templates / "twice" / "generic.cpp.j2").write_text(FACED)
        made.cmake(AOT_TUNE_MODE="generic")
        made.make_all(AOT_TUNE_MODE="generic")

    return replace(Project.at(once("faced", make) / "project"), runs=forks)


@pytest.fixture(scope="session")
def needs_nvcc() -> None:
    """Skips where CUDA's code cannot be compiled, and where there is a GPU."""
    try:
        toolchain_for("nvcc").identity()
    except ToolchainError as error:
        pytest.skip(f"no CUDA compiler: {error.what}")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU: tests/gpu is for it")


@pytest.fixture(scope="session")
def needs_triton() -> None:
    try:
        toolchain_for("triton").identity()
    except ToolchainError as error:
        pytest.skip(f"no Triton: {error.what}")


@pytest.fixture(scope="session")
def triton_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for libcuda.so.1, which logs what is loaded and launched."""
    return build(tmp_path_factory.mktemp("driver"), "libcuda.so.1", "-DLEVELS=90").parent


@pytest.fixture(scope="session")
def made_wheel(once: Once) -> Path:
    """A folder with the wheel, what it is made of and with, and what its build said: made once in a run of the tests.

    Its `house` has what a build and the package need: from that all else is built without an index.
    """

    def make(folder: Path) -> None:
        head = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[0]
        requirements = re.findall(r'^  "([^":]+)",$', head, re.MULTILINE)
        assert {"scikit-build-core", "rich"} <= {re.split("[<>=]", r)[0] for r in requirements}
        pip("wheel", "-q", "-w", folder / "house", *requirements)
        (folder / "sdist").mkdir()
        (folder / "source").mkdir()
        source = copy_source(folder / "source" / "aot_tune", make_sdist(folder / "sdist"))
        make_read_only(source)
        before = tree_digest(source)
        made = builder_in(folder, Compiler.make(folder / "compiler"), folder).build(source, "out", read_only=True)
        assert tree_digest(source) == before
        (folder / "house" / made.wheel.name).write_bytes(made.wheel.read_bytes())
        (folder / "log").write_text(made.log)
        Venv.make(folder / "venv").install("--find-links", folder / "house", made.wheel)

    return once("wheel", make)


def builder_in(folder: Path, compiler: Compiler, out: Path) -> Builder:
    """Builds for this machine, with quick effort and the cache of `folder`."""
    env = {
        "AOT_TUNE_CACHE_DIR": str(folder / "cache" / "aot_tune"),
        "AOT_TUNE_EFFORT": "quick",
        "AOT_TUNE_TARGETS": "native",
        "CXX": str(compiler.path),
    }
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is not None and jaxlib.origin is not None:  # for test_jax; isolated builds see none
        env["AOT_TUNE_XLA_FFI"] = str(Path(jaxlib.origin).parent / "include")
    return Builder(folder / "house", out, env)


@pytest.fixture(scope="session")
def cache(made_wheel: Path) -> Path:
    """The object cache and measurement store of the wheel's build."""
    return made_wheel / "cache" / "aot_tune"


@pytest.fixture(scope="session")
def source(made_wheel: Path) -> Path:
    """What the sdist holds, read-only; its workloads are cut to a problem an operator."""
    return made_wheel / "source" / "aot_tune"


@pytest.fixture(scope="session")
def built(made_wheel: Path) -> Built:
    (wheel,) = (made_wheel / "out").glob("*.whl")
    return Built(wheel, (made_wheel / "log").read_text())


@pytest.fixture(scope="session")
def venv(made_wheel: Path) -> Venv:
    """A fresh environment with the wheel and what it depends on."""
    return Venv(made_wheel / "venv")


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler.make(tmp_path_factory.mktemp("compiler"))


@pytest.fixture(scope="session")
def builder(made_wheel: Path, tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Builder:
    return builder_in(made_wheel, compiler, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def ops(venv: Venv) -> ModuleType:
    return load_module(venv.packages / "aot_tune" / "ops.abi3.so", "ops")
