"""What is verified before the link, and what becomes of it where no worker can be started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aot_tune.bench.cuda import device_of
from aot_tune.errors import WorkerError
from aot_tune.pipeline import verification

GPU = device_of(name="GPU", uuid="GPU-1", capability=90, sm_count=1, l2_bytes=1, memory_bytes=1, driver="1")


def build(mode: str, *, generic: bool = True, may_measure: bool = True) -> list[str]:
    """Verify a variant that nothing vouches for; what is printed."""
    lines: list[str] = []
    entry = SimpleNamespace(
        candidate=SimpleNamespace(id="one", operator="scale", target="cuda-ptx_80", generic=generic), digest="d"
    )
    session: Any = SimpleNamespace(
        operators={"scale": SimpleNamespace(operator=None)},
        device_for=lambda _target: GPU,
        options=SimpleNamespace(mode=mode),
        plan=SimpleNamespace(may_measure=may_measure),
        progress=SimpleNamespace(line=lines.append),
    )
    entries: Any = {"scale": [entry]}
    verification.verify_shipped(session, {}, entries)
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
