"""What the tests on a GPU share: a library that is built for it once, and a bench with kernels that go wrong.

Without a GPU, torch built for CUDA, nvcc or CMake, every test is skipped and says why.
"""

import ctypes
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # for what these test modules share


def _missing() -> str:
    """Why there is nothing to run on; empty when all is here. Makes no context on a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver here: {error}"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver lists no GPU here"
    if importlib.util.find_spec("torch") is None:
        return "there is a GPU, but no torch, which makes references and baselines"
    for program in ("cmake", "ninja"):
        if shutil.which(program) is None:
            return f"there is a GPU, but no {program} on the path"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is below this folder where it cannot run."""
    ours = [i for i in items if HERE in Path(i.path).parents]
    why = _missing() if ours else ""
    for item in ours if why else ():
        item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def import_path() -> str:
    """What subprocesses find aot_tune and its dependencies on: the source tree, then what this process was given."""
    return os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH", "")])])


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Any:
    """The bundled operators with a few problems each, tuned quickly and linked for this GPU by the real build.

    Or those of the installed package in the folder AOT_TUNE_GPU_TEST_LIBRARY.
    """
    from building import Library, build_bundled
    from environments import ROOT

    if installed := os.environ.get("AOT_TUNE_GPU_TEST_LIBRARY", ""):
        return Library(Path(installed), ROOT / "templates", "", import_path)
    return build_bundled(tmp_path_factory.mktemp("library"), import_path)


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A kernel of tests/gpu/templates, compiled and linked for the bench, by what is wrong with it."""
    from building import compile_twice

    folder = tmp_path_factory.mktemp("objects")
    found: dict[str, Any] = {}

    def get(fault: str) -> Any:
        if fault not in found:
            found[fault] = compile_twice(folder, fault)
        return found[fault]

    return get


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory, objects: Callable[[str], Any]) -> Iterator[Any]:
    """A bench on the first GPU that outlives what its candidates do."""
    from building import Bed

    made = Bed(tmp_path_factory.mktemp("bed"), objects, {})
    yield made
    made.close()


@pytest.fixture
def make_bed(tmp_path: Path, objects: Callable[[str], Any]) -> Iterator[Callable[..., Any]]:
    """Another bench, entered, with deadlines of its own: `make_bed(check=5.0)`."""
    from building import Bed

    beds: list[Any] = []

    def make(**deadlines: float) -> Any:
        beds.append(Bed(tmp_path / f"scratch{len(beds)}", objects, deadlines))
        return beds[-1]

    yield make
    for bed in beds:
        bed.close()
