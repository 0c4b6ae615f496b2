"""Odd problems are fitted while workers start."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from overlapping import OPERATOR, TARGET, entry, everyone

from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.pipeline.scheduling.early_checks import checks_fitted_beside
from aot_tune.pipeline.session import Session
from aot_tune.support.errors import BuildError


class _Noting:
    """Notes what is asked for; `fault` is raised for the first."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.threads, self.all, self.fault = set[int](), threading.Event(), fault

    def of(self, folder: Path, operator: object, requires: Any, policy: Policy, on_host: bool) -> None:
        assert (folder, operator, on_host) == (Path("scale"), OPERATOR, False)
        assert policy.digest == Policy().digest
        self.asked.append(requires)
        self.threads.add(threading.get_ident())
        if len(self.asked) == 4:
            self.all.set()
        if self.fault is not None and len(self.asked) == 1:
            raise self.fault


def _session(checks: _Noting) -> Session:
    loaded = SimpleNamespace(operator=OPERATOR, folder=Path("scale"))
    found = SimpleNamespace(checks=checks, operators={"scale": loaded}, policy_of=lambda _: Policy())
    return cast(Session, found)


@pytest.mark.parametrize("fault", [None, BuildError("no such thing")])
def test_they_are_asked_for_in_another_thread_whatever_fails(fault: Exception | None) -> None:
    checks, entries = _Noting(fault), everyone()[:4]
    with checks_fitted_beside(_session(checks), TARGET, entries):
        assert checks.all.wait(10)
    assert checks.asked == [e.requires for e in entries]
    assert threading.get_ident() not in checks.threads


def test_it_ends_with_the_block() -> None:
    """After the one that is being fitted."""
    checks, begun, ended = _Noting(), threading.Event(), threading.Event()
    given = checks.of

    def of(*one: Any) -> None:
        given(*one)
        begun.set()
        assert ended.wait(10)

    checks.of = of  # type: ignore[method-assign,assignment]
    timer = threading.Timer(0.05, ended.set)
    with checks_fitted_beside(_session(checks), TARGET, [entry("generic", "bf16")] * 9):
        assert begun.wait(10)
        timer.start()
    timer.join()
    assert len(checks.asked) == 1
