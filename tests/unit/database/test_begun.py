"""Builds that measure anew: one that did not end is gone on with, by itself alone, for a day."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.database import Begun, MeasurementStore, begin, forget
from aot_tune.spec import problem
from aot_tune.support.storage import CacheLocation

SHARED = {"name": "gemm", "contract": "con", "device": "dev", "policy": "pol"}
PROBLEM = problem(M=16, N=64)


def location(root: Path | None, mode: str = "rw") -> CacheLocation:
    return CacheLocation(root=root, mode=mode)  # type: ignore[arg-type]


def begun_at(root: Path, key: str = "key") -> Begun:
    """What a build begins that is killed at once."""
    found = begin(location(root), key)
    assert found is not None
    found.leave()
    return found


def put(root: Path, candidate: str, seconds_ago: float = 0.0) -> None:
    MeasurementStore(root).operator(**SHARED).put(
        Measurement(candidate=candidate, code="o" + candidate, problem=PROBLEM, device="dev", policy="pol", status="ok")
    )
    then = time.time() - seconds_ago
    for path in (root / "measurements").rglob("*.json") if seconds_ago else ():
        os.utime(path, (then, then))


def known(root: Path, begun: Begun | None, candidate: str) -> bool:
    store = MeasurementStore.at(location(root), begun)
    return store.operator(**SHARED).find(candidate, "o" + candidate, PROBLEM) is not None


def test_only_what_was_measured_since_is_known(tmp_path: Path) -> None:
    put(tmp_path, "before", 60.0)
    first = begun_at(tmp_path)
    assert not first.resumed
    assert not MeasurementStore.at(location(tmp_path), first).knew_any
    put(tmp_path, "since")
    assert not known(tmp_path, first, "since")  # it began with nothing, whatever the times of files say
    again = begun_at(tmp_path)
    assert again.resumed
    assert again.since == first.since
    assert MeasurementStore.at(location(tmp_path), again).knew_any
    assert known(tmp_path, again, "since")
    assert not known(tmp_path, again, "before")
    assert known(tmp_path, None, "before")


def test_what_has_ended_is_begun_anew(tmp_path: Path) -> None:
    first = begun_at(tmp_path)
    first.end()
    first.end()
    last = begun_at(tmp_path)
    assert not last.resumed


@pytest.mark.parametrize("hours", [25.0, -1.0])
def test_after_a_day_all_is_measured(tmp_path: Path, hours: float) -> None:
    """Also where the clock was set back."""
    first = begun_at(tmp_path)
    then = time.time() - hours * 3600
    first.path.write_text(str(int(then * 1e9)))
    os.utime(first.path, (then, then))
    last = begun_at(tmp_path)
    assert not last.resumed
    assert abs(last.since / 1e9 - time.time()) < 60


def test_two_builds_at_a_time_do_not_take_each_others_times(tmp_path: Path) -> None:
    first = begin(location(tmp_path), "key")
    assert first is not None
    assert begin(location(tmp_path), "key") is None
    assert begin(location(tmp_path), "other") is not None
    first.leave()
    assert begun_at(tmp_path).resumed


@pytest.mark.parametrize("mode", ["rw", "fresh"])
def test_what_is_forgotten_is_begun_anew(tmp_path: Path, mode: str) -> None:
    begun_at(tmp_path)
    forget(location(tmp_path, "ro"), "key")
    assert begun_at(tmp_path).resumed
    forget(location(tmp_path, mode), "key")
    assert not begun_at(tmp_path).resumed
    forget(location(None, "off"), "key")
