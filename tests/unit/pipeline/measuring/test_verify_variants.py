"""What is verified before the link, and what becomes of it where no worker can be started."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.measuring import verify_variants as verification
from aot_tune.support.errors import BuildError, WorkerError

GPU = device_of(name="GPU", uuid="GPU-1", capability=90, sm_count=1, l2_bytes=1, memory_bytes=1, driver="1")


CPU = Device(family="cpu", name="CPU", slug="cpu", identity={"name": "CPU"})


def variant(target: str, generic: bool = True) -> Any:
    candidate = SimpleNamespace(id=target, label="k f32", operator="scale", kernel="k", target=target, generic=generic)
    return SimpleNamespace(candidate=candidate, id=target, code="d")


def session_of(lines: list[str], failures: Failures, mode: str, **given: Any) -> Any:
    """A session that verifies: `fills_in`, `may_measure` and the `devices` by family are given, or usual."""
    devices = given.get("devices", {"cuda": GPU, "cpu": CPU})
    kernel = SimpleNamespace(fills_in=given.get("fills_in", False))
    return SimpleNamespace(
        failures=failures,
        operators={"scale": SimpleNamespace(kernel=lambda _: kernel)},
        device_for=lambda target: devices.get(target.family),
        options=SimpleNamespace(mode=mode),
        plan=SimpleNamespace(may_measure=given.get("may_measure", True)),
        progress=SimpleNamespace(line=lines.append),
    )


def build(
    mode: str,
    *,
    generic: bool = True,
    targets: Sequence[str] = ("cuda-ptx_80",),
    failures: Failures | None = None,
    **given: Any,
) -> list[str]:
    """Verify variants that nothing vouches for; what is printed."""
    lines: list[str] = []
    session = session_of(lines, failures if failures is not None else Failures(), mode, **given)
    verification.verify_shipped(session, {}, {"scale": [variant(t, generic) for t in targets]})
    return lines


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise WorkerError("a worker never answered", why="No module named 'torch'")

    monkeypatch.setattr(verification, "verify_variant", fail)


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


@pytest.mark.parametrize("bad", BOTH)
def test_an_operator_fails_by_what_fails_on_one_device_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    seen = []

    def verify(_session: object, _bench: object, _loaded: object, entry: Any) -> None:
        seen.append(entry.candidate.target)
        if entry.candidate.target == bad:
            raise BuildError(f"wrong on {bad}")

    monkeypatch.setattr(verification, "verify_variant", verify)
    failures = Failures()
    build("auto", targets=BOTH, failures=failures)
    assert failures.told() == [f"scale: wrong on {bad}"]
    assert sorted(seen) == sorted(BOTH)


@pytest.mark.parametrize("measured", [False, True])
def test_what_fills_in_and_is_wrong_is_left_out_unless_it_was_measured(
    monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    def verify(_session: object, _bench: object, _loaded: object, entry: Any) -> None:
        if entry.candidate.target == "cuda-sm_90a":
            raise BuildError("wrong on 'M=1'")

    monkeypatch.setattr(verification, "verify_variant", verify)
    found, failures, lines = [variant("cuda-sm_90a", False), variant("cuda-sm_80", False)], Failures(), list[str]()
    session = session_of(lines, failures, "replay", fills_in=True)
    entries = {e.candidate.id: e for e in found}
    made = [SimpleNamespace(candidate="cuda-sm_90a", status="ok", code="another")] if measured else []
    selection = SimpleNamespace(kept=tuple(entries))
    chosen: Any = SimpleNamespace(
        evidence=SimpleNamespace(variants=entries, made=lambda: made, standing_in=()), selection=selection
    )
    wrong = verification.verify_shipped(session, {"scale": [chosen]}, {"scale": []})
    assert failures.told() == (["scale: wrong on 'M=1'"] if measured else [])
    assert wrong == (frozenset() if measured else {"cuda-sm_90a"})
    told = "LEFT OUT k f32, for which the generic variant serves: wrong on 'M=1'"
    assert [line for line in lines if line.startswith("LEFT OUT")] == ([] if measured else [told])
