"""A bench with a tiny operator, y = 2 * x + 1 (+ bias), and compiled candidates that go wrong in every known way."""

import functools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compiled import Bed, CompiledBed
from project import Project

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.protocol.measurement_records import Deadlines, Policy

SOURCES = Path(__file__).parent / "candidates"

OPERATOR = '''
"""The operator of the fault tests."""
import os

from aot_tune.spec import Baseline, Kernel, Operator, Tensor, dims, problem

R, D = dims("R D")


def reference(xp, call):
    y = 2 * call.x + 1
    return {"y": y if call.bias is None else y + call.bias}


def numpy_axpb(numpy, call):
    return lambda: numpy.add(numpy.multiply(call.x, 2, out=call.y), 1, out=call.y)


def raises(numpy, call):
    raise TypeError("no such backend")


def sleeps(numpy, call):
    import time

    compute = numpy_axpb(numpy, call)
    return lambda: (time.sleep(0.05), compute())


def crash(numpy, call):
    return lambda: os._exit(3)


operator = Operator(
    name="axpb",
    dims=("R", "D"),
    tensors=(Tensor("x", (R, D)), Tensor("bias", (D,), optional=True), Tensor("y", (R, D), output=True)),
    reference=reference,
    flops=2 * R * D,
    workload=(problem(R=16, D=256),),
    baselines=(
        Baseline("numpy", "numpy", numpy_axpb, partial=lambda p: p.dims["R"] == 16),
        Baseline("absent", "no_such_module_anywhere", numpy_axpb),
        Baseline("crash", "numpy", crash, supports=lambda p: p.dims["R"] == 17),
        Baseline("raises", "numpy", raises, supports=lambda p: p.dims["R"] == 18),
        Baseline("sleeps", "numpy", sleeps, supports=lambda p: p.dims["R"] == 19),
    ),
    kernels=(Kernel("generic", "axpb/generic.cpp.j2", generic=True),),
)
'''


FLAGS = ("-std=c++17", "-O1", "-fopenmp", "-Wall", "-Wextra", "-Wno-unused-function", "-shared", "-fPIC")


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compile a candidate of the fault tests, once per session."""
    folder = tmp_path_factory.mktemp("objects")

    def get(name: str) -> Path:
        path = folder / f"{name}.so"
        if not path.exists():
            source = SOURCES / f"{name}.cpp"
            begin = [] if '"contract.h"' in source.read_text() else ["-include", SOURCES / "contract.h"]
            command = ["g++", *FLAGS, f'-DOUTSIDE="{folder}/outside"', *begin, "-o", path, source]
            subprocess.run(command, check=True, timeout=60)
        return path

    return get


def write_operator(root: Path) -> Path:
    folder = root / "templates" / "axpb"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OPERATOR)
    return folder


def bench_in(root: Path, log: Callable[[str], None] = lambda _line: None, threads: int = 2, **policy: Any) -> Bench:
    """A bench whose scratch is below a root."""
    deadlines = Deadlines(handshake=60, load=20, check=20, verify=20, bench=20)
    made = Policy(**{"deadlines": deadlines, "memory_bytes": 1 << 29, "race_ns": 50_000_000, **policy})
    return Bench(family("cpu").devices(threads)[0], made, scratch=root / "scratch", threads=threads, log=log)


@pytest.fixture
def project(tmp_path: Path, forks: Callable[..., str]) -> Project:
    made = Project.make(tmp_path / "project")
    made.runs = forks
    return made


@pytest.fixture
def operator_folder(tmp_path: Path) -> Path:
    return write_operator(tmp_path)


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    return functools.partial(bench_in, tmp_path)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory, objects: Callable[[str], Path]) -> Iterator[Bed]:
    """A bench that the tests of a module share: who dies in one is replaced before the next."""
    root, lines = tmp_path_factory.mktemp("bed"), list[str]()
    with bench_in(root, lines.append) as bench:
        yield Bed(bench, write_operator(root), objects, lines)


@pytest.fixture
def make_bed(operator_folder: Path, objects: Callable[[str], Path]) -> Callable[[Bench], Bed]:
    return lambda bench: Bed(bench, operator_folder, objects)


@pytest.fixture(scope="module")
def compiled_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], CompiledBed]]:
    """Makes a bed for the operator in a folder; the module's tests share the bench."""
    with bench_in(tmp_path_factory.mktemp("compiled")) as bench:
        yield lambda folder: CompiledBed(bench, folder)
