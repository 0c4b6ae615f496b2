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
from aot_tune.spec import Kernel, Target, problem
from aot_tune.support import run_program as compile_run
from aot_tune.support.run_program import Finished

KERNEL = Kernel("vendor", "v.cpp.j2", backend="cublaslt", algorithms=lambda _: None)
DEVICE = Device(family="cuda", name="GPU", slug="cuda-gpu", identity={"name": "GPU"}, unit="GPU-0")
TARGET = Target(name="cuda-sm_90a", family="cuda", level=90)
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


def test_configs_are_in_the_order_of_records(monkeypatch: pytest.MonkeyPatch, stub: Path) -> None:
    """Labels show it, and are part of the library: a second build, which takes the recorded ones, makes the same."""
    world = World(monkeypatch, 1, lambda _: stub)
    monkeypatch.setattr(vendors, "recorded_configs", lambda *_: iter(()))
    world.session.options.mode = "auto"
    one = problem(M=16)
    operator = SimpleNamespace(workload_for=lambda _: (one,), facts=lambda _: {})
    kernel = Kernel("vendor", "v.cpp.j2", backend="cublaslt", algorithms=lambda _: PRODUCTS[0])
    found = list(vendors.configs_of(cast(Any, world.session), cast(Any, operator), kernel, TARGET, DEVICE))
    assert len(found) > 1
    for given, config in found:
        assert given == one
        assert list(config) == sorted(config)


def test_what_is_estimated_to_take_the_longest_is_not_tried() -> None:
    """Of the first of the library's list and the first that were enumerated; those that are left keep their order."""
    configs = [{"ALGO": i} for i in range(12)]
    products = vendor_process.Products(configs, [1, 9, 2, 3, 0, 8, 4, 5, 0, 0, 0, 0], 5)
    assert [c["ALGO"] for c in vendors.worth_trying(products, 5, 5)] == [0, 1, 2, 5, 6]  # 3 of 5 are the library's
    assert [c["ALGO"] for c in vendors.worth_trying(products, 5, 3)] == [0, 2, 6]
    assert [c["ALGO"] for c in vendors.worth_trying(products, 100, 100)] == list(range(12))
    assert vendors.worth_trying(vendor_process.Products([], [], 0), 16, 12) == []


@pytest.mark.parametrize(("dtype", "tried"), [("f32", 16), ("bf16", 12), ("f16", 12)])
def test_of_floats_all_that_are_drawn_are_tried(monkeypatch: pytest.MonkeyPatch, dtype: str, tried: int) -> None:
    """The estimate is of 16 bits."""
    world = World(monkeypatch, 1)
    listed = vendor_process.Products([{"ALGO": i} for i in range(32)], [float(-i) for i in range(32)], 16)
    monkeypatch.setattr(vendors, "recorded_configs", lambda *_: iter(()))
    monkeypatch.setattr(vendors, "ask_library", lambda *_: [listed])
    world.session.options.mode = "tune"
    operator = SimpleNamespace(workload_for=lambda _: (problem(M=16),), facts=lambda _: {})
    kernel = Kernel("vendor", "v.cpp.j2", backend="cublaslt", algorithms=lambda _: {**PRODUCTS[0], "dtype": dtype})
    found = list(vendors.configs_of(cast(Any, world.session), cast(Any, operator), kernel, TARGET, DEVICE))
    assert len(found) == tried


def test_a_device_that_takes_one_process_at_a_time_is_asked_by_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, stub: Path
) -> None:
    answer = World(monkeypatch, 1, lambda _: stub).ask(PRODUCTS)
    # Without a library a process ends as without a device.
    world = World(monkeypatch, 16, lambda number: stub if number > 4 else NOWHERE)
    assert world.ask(PRODUCTS) == answer
    assert world.runs == 8


def test_without_an_answer_a_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 16)
    assert world.ask(PRODUCTS) == []
    assert len(world.lines) == 1
    assert world.lines[0].startswith("cublaslt: its algorithms are not tried one by one: ")
    assert "cuBLASLt not found" in world.lines[0]


def test_libraries_are_asked_about_all_operators_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And while whoever asked does something else, until the answers are wanted."""
    meet = threading.Barrier(3, timeout=60)

    def configs(_session: object, operator: Any, *_: object) -> list[vendors.ProblemConfig]:
        meet.wait()  # broken unless both operators and the caller are there at once
        return [(problem(M=operator.rows), {"ALGO": 1})]

    rendered = SimpleNamespace(render=lambda _, candidate, __: candidate)
    session: Any = SimpleNamespace(environment={}, is_named=lambda *_: True, renderer=rendered)
    monkeypatch.setattr(vendors, "configs_of", configs)
    monkeypatch.setattr(vendors, "candidate_for", lambda op, _kernel, config, *_: SimpleNamespace(id=op.name, **config))
    monkeypatch.setattr(
        vendors, "Entry", SimpleNamespace(of=lambda _, one, only: SimpleNamespace(candidate=one, only=only))
    )
    operators: list[Any] = [
        SimpleNamespace(name=n, rows=r, kernels=[KERNEL], dtypes={}) for n, r in (("a", 1), ("b", 2))
    ]
    with vendors.Vendors(session, operators, TARGET, DEVICE) as asked:
        meet.wait()
        found = [asked.entries(one) for one in operators]
    assert [[(e.candidate.id, e.only) for e in own] for own in found] == [
        [("a", {problem(M=1).id})],
        [("b", {problem(M=2).id})],
    ]


def test_what_a_library_says_wrongly_ends_the_build_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def configs(*_: object) -> list[vendors.ProblemConfig]:
        raise OSError("no such library")

    monkeypatch.setattr(vendors, "configs_of", configs)
    session: Any = SimpleNamespace(environment={}, is_named=lambda *_: True)
    one: Any = SimpleNamespace(name="a", kernels=[KERNEL], dtypes={})
    with (
        pytest.raises(OSError, match="no such library"),
        vendors.Vendors(session, [one], TARGET, DEVICE) as asked,
    ):
        asked.entries(one)
