"""What benches on devices of one model find out once for all: references, odd problems, what objects did to workers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aot_tune.bench.host.findings import Findings, Once
from aot_tune.bench.host.worker_process import DiedError
from aot_tune.spec import dim


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
    findings, requires = Findings(tmp_path), (dim("N") == 4,)
    names = {
        findings.suite("folder", "digest", ()),
        findings.suite("folder", "digest", requires),
        findings.suite("folder", "another", requires),
        findings.suite("another", "digest", requires),
    }
    assert len(names) == 4
    assert findings.suite("folder", "digest", (dim("N") == 4,)) in names
