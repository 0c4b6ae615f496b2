"""What is verified before the link, and what becomes of it where no worker can be started."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from aot_tune.bench import Device
from aot_tune.bench.cuda import device_of
from aot_tune.errors import BuildError, WorkerError
from aot_tune.pipeline import verification

GPU = device_of(name="GPU", uuid="GPU-1", capability=90, sm_count=1, l2_bytes=1, memory_bytes=1, driver="1")


CPU = Device(family="cpu", name="CPU", slug="cpu", identity={"name": "CPU"})


def variant(target: str, generic: bool = True) -> Any:
    candidate = SimpleNamespace(id=target, operator="scale", target=target, generic=generic)
    return SimpleNamespace(candidate=candidate, digest="d")


def build(
    mode: str, *, generic: bool = True, may_measure: bool = True, targets: Sequence[str] = ("cuda-ptx_80",)
) -> list[str]:
    """Verify variants that nothing vouches for; what is printed."""
    lines: list[str] = []
    session: Any = SimpleNamespace(
        operators={"scale": SimpleNamespace(operator=None)},
        device_for=lambda target: GPU if target.family == "cuda" else CPU,
        options=SimpleNamespace(mode=mode),
        plan=SimpleNamespace(may_measure=may_measure),
        progress=SimpleNamespace(line=lines.append),
    )
    verification.verify_shipped(session, {}, {"scale": [variant(t, generic) for t in targets]})
    return lines


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise WorkerError("a worker never answered", why="No module named 'torch'")

    monkeypatch.setattr(verification, "_verify", fail)


@pytest.mark.parametrize("mode", ["replay", "generic"])
def test_a_build_that_measures_nothing_goes_on_without_what_workers_of_gpus_need(mode: str) -> None:
    (line,) = build(mode)
    assert line.startswith("1 generic variant NOT verified on GPU: a worker never answered")
    assert "No module named 'torch'" in line


def test_an_editable_install_measures_nothing_either() -> None:
    assert len(build("auto", may_measure=False)) == 1


@pytest.mark.parametrize(("mode", "generic"), [("auto", True), ("tune", True), ("replay", False)])
def test_elsewhere_nothing_ships_unverified(mode: str, generic: bool) -> None:
    with pytest.raises(WorkerError):
        build(mode, generic=generic)


BOTH = ("cpu-x86-64", "cuda-ptx_80")


def test_devices_verify_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    meet, seen = threading.Barrier(2, timeout=60), set[str]()

    def verify(_session: object, bench: Any, _loaded: object, entry: Any) -> None:
        meet.wait()  # broken unless both are there at once
        seen.add(f"{bench.device.name} {entry.candidate.target}")

    monkeypatch.setattr(verification, "_verify", verify)
    assert build("auto", targets=BOTH) == []
    assert seen == {"CPU cpu-x86-64", "GPU cuda-ptx_80"}


@pytest.mark.parametrize("bad", BOTH)
def test_what_fails_on_one_device_ends_the_build(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    def verify(_session: object, _bench: object, _loaded: object, entry: Any) -> None:
        if entry.candidate.target == bad:
            raise BuildError(f"wrong on {bad}")

    monkeypatch.setattr(verification, "_verify", verify)
    with pytest.raises(BuildError, match=f"wrong on {bad}"):
        build("auto", targets=BOTH)
