"""Two benches on devices of one model that share what they find out, each with workers and a thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from compiled import Bed

from aot_tune.bench.devices.family import devices
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.findings import Findings
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Policy

pytestmark = pytest.mark.slow

WANTED = {"good": "ok", "one_wrong": "wrong-result", "segfault": "crashed", "past_end": "wrong-result"}
OWN = ({"R": 16, "D": 256}, {"R": 8, "D": 64})


def test_two_devices_share_references_and_verdicts_and_agree(
    tmp_path: Path, operator_folder: Path, objects: Callable[[str], Path]
) -> None:
    findings, policy, lock = Findings(tmp_path / "references"), Policy(race_ns=20_000_000), threading.Lock()
    references, checks = Counter[str](), Counter[str]()

    def watched(number: int) -> Bed:
        bench = Bench(devices("cpu", 1)[0], policy, scratch=tmp_path / f"bench-{number}", threads=1, findings=findings)
        request = bench.pool.request

        def noting(worker: Any, one: Any, seconds: float) -> messages.Reply:
            with lock:
                if isinstance(one, messages.Reference):
                    references[Path(one.folder).name] += 1
                if isinstance(one, messages.Verify) and len(one.keys) > 1:
                    checks[one.handle] += 1
            return request(worker, one, seconds)

        bench.pool.request = noting  # type: ignore[method-assign]
        return Bed(bench, operator_folder, objects)

    def measure(bed: Bed, own: dict[str, int]) -> dict[str, str]:
        found, waiting = dict[str, str](), [*WANTED]
        while waiting:
            suites = [findings.suite(str(bed.folder), bed.entry(n).code, ()) for n in waiting]
            name = waiting.pop(findings.choose(suites))
            found[name] = bed.screen(name, bed.prepare(**own)).status
        return found

    beds = [watched(0), watched(1)]
    for name in WANTED:
        objects(name)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        threads = list(zip((one, two), beds, OWN, strict=True))
        try:
            begun = [thread.submit(bed.bench.__enter__) for thread, bed, _ in threads]
            assert all(f.result(60) for f in begun)
            screens = [thread.submit(measure, bed, own) for thread, bed, own in threads]
            assert [f.result(150) for f in screens] == [WANTED] * 2
            races = [
                t.submit(b.race, "good", "one_wrong", **o) for (t, b, _), o in zip(threads, OWN[::-1], strict=True)
            ]
            raced = [{n: m.status for n, m in f.result(150).items()} for f in races]
        finally:
            for thread, bed, _ in threads:
                thread.submit(bed.bench.__exit__, None, None, None).result(60)
    assert raced == [{"good": "ok", "one_wrong": "wrong-result", "baseline:numpy": "ok"}] * 2
    asked = {n: checks[beds[0].entry(n).code] for n in WANTED}
    assert asked.pop("segfault") <= 2 * policy.strikes  # twice where something else may have killed the first worker
    assert set(asked.values()) == {1}
    assert set(references.values()) == {1}
    assert {f.name for f in findings.folder.iterdir()} == set(references)
    assert len(references) > 10
