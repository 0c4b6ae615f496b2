"""A cluster that is asked for and cannot be had: each reason in its own words, and soon."""

from __future__ import annotations

import contextlib
import socket
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aot_tune.pipeline.choose_executor import agree, reach_cluster
from aot_tune.pipeline.session import Session
from aot_tune.support.errors import BuildError


def refused() -> str:
    with pytest.raises(BuildError) as caught, reach_cluster(print):
        raise AssertionError
    return str(caught.value)


def test_without_ray_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused()
    assert "Ray is not installed here" in said
    assert "pip install 'aot_tune[ray]'" in said


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="no ray: install aot_tune[ray]")
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{bound.getsockname()[1]}")
        assert "Connection refused" in refused()


class Targets:
    """Machines whose devices run no target but those here; it agrees with everything."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def agree(self, _plan: object, _paths: object, files: list[Any]) -> None:
        self.files = [f.name for f in files]


@pytest.mark.parametrize(
    ("mode", "recorded", "fails"), [("tune", True, True), ("auto", False, True), ("auto", True, False)]
)
def test_a_target_that_no_device_of_the_cluster_runs(tmp_path: Any, mode: str, recorded: bool, fails: bool) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "operator.py").write_text("")
    (tmp_path / "own" / "k.cpp.j2").write_text("")
    target = SimpleNamespace(name="cuda-sm_80")
    session = SimpleNamespace(
        plan=SimpleNamespace(may_measure=True),
        options=SimpleNamespace(mode=mode),
        operators={"own": SimpleNamespace(operator=SimpleNamespace(kernels=()))},
        databases=[SimpleNamespace(targets=["cuda-sm_80"])] if recorded else [],
        targets=[target],
        devices=[SimpleNamespace(name="NVIDIA H100"), SimpleNamespace(name="NVIDIA H100")],
        device_for=lambda _: None,
    )
    machines, paths = Targets(), SimpleNamespace(templates=(str(tmp_path),))
    told = pytest.raises(BuildError, match="no device of target cuda-sm_80\n  why: its devices are: NVIDIA H100\n")
    with told if fails else contextlib.nullcontext():
        agree(cast(Session, session), cast(Any, machines), cast(Any, paths))
    assert {"operator.py", "k.cpp.j2"} <= set(machines.files)
    assert "choose_executor.py" not in machines.files
