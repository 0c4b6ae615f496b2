"""What benches on devices of one model find out once for all: references, odd problems, what objects did to workers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot_tune.bench.host import bench_context
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.findings import Findings, Once
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.host.worker_process import DiedError, Holdings
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Policy
from aot_tune.spec.load_operators import bundled_templates, load_operator

FOLDER = bundled_templates() / "softmax"
OPERATOR = load_operator(FOLDER)
PROBLEM = OPERATOR.workload_for("cpu")[0]


def test_a_value_is_made_once_and_the_others_wait_for_it() -> None:
    once, made, begun, go = Once[int](), list[int](), threading.Event(), threading.Event()

    def make() -> int:
        made.append(1)
        begun.set()
        assert go.wait(10)
        return 7

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(once.get, "name", make)
        assert begun.wait(10)
        others = [threads.submit(once.get, "name", make) for _ in range(2)]
        assert once.making("name")
        assert not once.has("name")
        assert once.get("another name", lambda: 8) == 8
        go.set()
        assert [f.result(10) for f in (first, *others)] == [7, 7, 7]
    assert made == [1]
    assert once.has("name")
    assert not once.making("name")


def test_what_could_not_be_made_is_made_by_the_next_one() -> None:
    once, begun, go = Once[int](), threading.Event(), threading.Event()

    def fail() -> int:
        begun.set()
        assert go.wait(10)
        raise DiedError("crashed", "killed by SIGKILL")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(once.get, "name", fail)
        assert begun.wait(10)
        second = threads.submit(once.get, "name", lambda: 7)
        go.set()
        with pytest.raises(DiedError):
            first.result(10)
        assert second.result(10) == 7


def test_an_object_is_named_by_its_bytes_operator_and_guards(tmp_path: Path) -> None:
    findings, kernel = Findings(tmp_path), next(k for k in OPERATOR.kernels if k.requires)
    names = {
        findings.suite("folder", "digest", ()),
        findings.suite("folder", "digest", kernel.requires),
        findings.suite("folder", "another", kernel.requires),
        findings.suite("another", "digest", kernel.requires),
    }
    assert len(names) == 4
    assert findings.suite("folder", "digest", tuple(kernel.requires)) in names


class Workers:
    """A pool without workers that counts what they are asked for."""

    asked: Counter[str]
    on_check: Callable[[], messages.Reply | None] = staticmethod(lambda: None)

    def __init__(self, *_given: object, references: Path) -> None:
        self._references, self.deaths = references, 0
        self._worker: Any = Holdings()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def candidates(self) -> Any:
        return self._worker

    def workers(self) -> list[Any]:
        return []

    def relieve(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def refer(self, request: messages.Reference, _seconds: float) -> messages.Reply:
        assert self._references in Path(request.folder).parents  # else the worker may not write there
        self.asked[f"reference of {request.check.problem.id} {request.check.scalars} {request.check.special}"] += 1
        return messages.Done()

    def request(self, _worker: object, request: messages.Request, _seconds: float) -> messages.Reply:
        if isinstance(request, messages.Verify):
            what = "check" if len(request.keys) > 1 else "verify"
            self.asked[f"{what} {request.handle}"] += 1
            if what == "check" and (reply := self.on_check()) is not None:
                return reply
            return messages.Checked(status="ok", runs=(1e6,) * 3)
        return messages.Timed(samples=(1e6,) * 4) if isinstance(request, messages.Screen) else messages.Done()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Bench]]:
    """Benches of equal devices, with findings in common or not."""
    monkeypatch.setattr(bench_context, "Pool", Workers)
    monkeypatch.setattr(Workers, "asked", Counter(), raising=False)

    def make(count: int, *, common: bool) -> list[Bench]:
        findings = Findings(tmp_path / "references") if common else None
        device = Device(family="cpu", name="CPU", slug="cpu", identity={"name": "CPU"})
        return [Bench(device, Policy(), scratch=tmp_path / str(i), threads=1, findings=findings) for i in range(count)]

    return make


def screen(bench: Bench, digest: str) -> str:
    prepared = bench.prepare(FOLDER, OPERATOR, PROBLEM)
    candidate = SimpleNamespace(id=digest)
    entrant = Entrant(candidate=candidate, shared_object=Path("x.so"), symbol="symbol", code=digest)
    return bench.screen(prepared, entrant).status


@pytest.mark.parametrize("common", [True, False])
def test_an_object_is_checked_once_for_all_devices_and_verified_on_each(
    pool: Callable[..., list[Bench]], common: bool
) -> None:
    benches = pool(3, common=common)
    for digest in ("a", "b"):
        assert [screen(bench, digest) for bench in benches] == ["ok"] * 3
    times = 1 if common else 3
    assert {k: n for k, n in Workers.asked.items() if k.startswith("check")} == {"check a": times, "check b": times}
    assert Workers.asked["verify a"] == Workers.asked["verify b"] == 3
    references = [n for k, n in Workers.asked.items() if k.startswith("reference")]
    assert len(references) > 10
    assert set(references) == {times}


def test_what_has_killed_workers_of_one_device_is_not_run_on_another(
    pool: Callable[..., list[Bench]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pool(2, common=True)

    def die() -> None:
        raise DiedError("crashed", "killed by SIGSEGV", certain=True)

    monkeypatch.setattr(Workers, "on_check", staticmethod(die))
    assert [screen(bench, "a") for bench in (one, other)] == ["crashed", "crashed"]
    assert Workers.asked["check a"] == Policy().strikes == 2
    assert screen(one, "a") == screen(other, "a") == "crashed"
    assert Workers.asked["check a"] == 2
