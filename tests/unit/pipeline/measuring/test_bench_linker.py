"""Which candidates are linked for the benchmark, where, and how many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pipelines import FAST, GENERIC, OPERATOR, SMALL, evidence, measured

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import Jobs, Object
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring import bench_files as shared_module
from aot_tune.pipeline.measuring.bench_linker import BenchLinker
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.search import Budget
from aot_tune.spec import CompileOptions, Problem

ONE, TWO = OPERATOR.workload
Link = Callable[..., None]


def compiled(digest: str, status: str = "ok") -> Object:
    return Object(key="", path="x.o", digest=digest, symbol="", source="", target="", status=cast(Any, status))


def linker(found: Evidence, known: Sequence[tuple[Problem, str]], link: Link) -> BenchLinker:
    """With a store that knows the screens of so many objects."""

    def knows(_loaded: object, where: Problem, _candidate: str, digest: str) -> bool:
        return (where, digest) in known

    pool = SimpleNamespace(shared=SimpleNamespace(link=link), knows=knows)
    session = SimpleNamespace(jobs_of=lambda _: Jobs(count=2, reason=""))
    loaded = cast(LoadedOperator, SimpleNamespace(operator=OPERATOR))
    return BenchLinker(cast(Session, session), cast(DevicePool, pool), [(loaded, found)])


def test_an_object_is_linked_unless_all_its_screens_are_known() -> None:
    linked: list[str] = []

    def link(backend: str, made: Object, _options: CompileOptions) -> None:
        linked.append(f"{backend} {made.digest}")

    found = evidence(FAST, SMALL, GENERIC)
    found.add(measured(GENERIC, ONE, (1.0,)))
    one = linker(found, [(ONE, "f"), (TWO, "f"), (ONE, "s"), (ONE, "old")], link)
    assert one.after(FAST, compiled("f")) is None
    assert one.after(SMALL, compiled("s")) is None  # meant for the first problem alone
    assert one.after(FAST, compiled("", "compile-failed")) is None
    for task in (one.after(FAST, compiled("old")), one.after(GENERIC, compiled("g"))):
        assert task is not None
        task()
    assert linked == ["cxx old", "cxx g"]


def test_an_object_is_linked_once_for_all_benches_of_a_crew(monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[Path] = []

    def link_shared(objects: list[Path], out: Path, libraries: tuple[str, ...]) -> None:
        assert libraries == ()
        linked.extend(objects)
        out.touch()

    chain = SimpleNamespace(link_shared=link_shared, libraries=lambda _options: ())
    monkeypatch.setattr(shared_module, "toolchain_for", lambda _backend, _environment: chain)
    devices = [Device(family="cpu", name="CPU", slug="cpu", identity={"name": "CPU"}, unit=u) for u in "01"]
    with DevicePool(cast(Session, SimpleNamespace(environment={}, turn=Budget(None), leave_out=id)), devices) as pool:
        one, other = (bench.shared for bench in pool.benches)
        first = one.link("cxx", compiled("a"))
        assert other.link("cxx", compiled("a")) == first
        assert other.link("cxx", compiled("b")) != first
        assert first.is_file()
        assert one.own_folder() != other.own_folder()
        pool.leave_out(0)
        assert first.is_file()
    assert linked == [Path("x.o"), Path("x.o")]
    assert not first.exists()
