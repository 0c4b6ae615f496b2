"""A cluster that is asked for and cannot be had: each reason in its own words, and soon."""

from __future__ import annotations

import socket
import sys

import pytest

from aot_tune.pipeline.executor import reach_cluster
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
