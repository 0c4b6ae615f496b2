"""Asking a vendor's library for its algorithms: in several processes at a time, with a stand-in for the library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cublaslt_stand_in import build_stub

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import Jobs
from aot_tune.pipeline.measuring import vendor_process
from aot_tune.pipeline.scheduling import vendor_candidates as vendors
from aot_tune.pipeline.session import Session
from aot_tune.spec import Kernel
from aot_tune.support import run_program as compile_run
from aot_tune.support.run_program import Finished

KERNEL = Kernel("vendor", "v.cpp.j2", backend="cublaslt", algorithms=lambda _: None)
DEVICE = Device(family="cuda", name="GPU", slug="cuda-gpu", identity={"name": "GPU"}, unit="GPU-0")
NOWHERE = Path("/nonexistent")
PRODUCTS = [{"m": 16 * (i + 1), "n": 256, "k": 128 * (i + 1)} for i in range(19)]


class World:
    """A session of so many cores that keeps what is printed, and how many processes began.

    `libraries` says where the process of a number finds its libraries.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cores: int, libraries: Callable[[int], Path] = lambda _: NOWHERE
    ) -> None:
        self.lines: list[str] = []
        self.runs = 0
        self._lock = threading.Lock()
        real = compile_run.run

        def run(argv: list[str], **options: Any) -> Finished:
            with self._lock:
                self.runs += 1
                number = self.runs
            options["environ"] = {**options["environ"], "LD_LIBRARY_PATH": str(libraries(number))}
            return real(argv, **options)

        monkeypatch.setattr(vendor_process, "run", run)
        self.session = SimpleNamespace(
            options=SimpleNamespace(effort="default"),
            progress=SimpleNamespace(now=lambda: 0.0, line=self.lines.append),
            jobs_of=lambda _: Jobs(count=cores, reason=""),
            executor=None,
        )

    def ask(self, products: list[dict[str, int]]) -> list[vendor_process.Products]:
        return vendors.ask_library(cast(Session, self.session), KERNEL, DEVICE, products)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


def test_several_processes_give_the_answer_of_one(monkeypatch: pytest.MonkeyPatch, stub: Path) -> None:
    alone = World(monkeypatch, 1, lambda _: stub)
    answer = alone.ask(PRODUCTS)
    assert (alone.runs, len(answer)) == (1, len(PRODUCTS))
    assert len({str(one.configs) for one in answer}) > 1  # the order can be told from the answer
    meet = threading.Barrier(4, timeout=60)

    def libraries(_number: int) -> Path:
        meet.wait()  # broken unless all four are there at once
        return stub

    together = World(monkeypatch, 16, libraries)
    assert together.ask(PRODUCTS) == answer
    assert together.runs == 4  # of 4 products or more each
    assert together.lines == alone.lines
    assert together.lines[0].endswith(" algorithms listed for 19 problems in 0 s")


def test_without_an_answer_a_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 16)
    assert world.ask(PRODUCTS) == []
    assert len(world.lines) == 1
    assert world.lines[0].startswith("cublaslt: its algorithms are not tried one by one: ")
    assert "cuBLASLt not found" in world.lines[0]
