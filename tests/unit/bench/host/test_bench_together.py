"""Two devices of one model that share what they find out, each with workers and a thread; on the host's tensors."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from compiled import Bed
from cuda_bench import CONTRACT, OPERATOR

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.findings import Findings
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Deadlines, Measurement, Policy
from aot_tune.spec import problem

pytest.importorskip("torch")
pytestmark = pytest.mark.alone  # a hang is told by its deadline

NAMES = ("good", "one_wrong", "segfault", "past_end")
OWN = ({"R": 16, "D": 256}, {"R": 8, "D": 64})


class Asked:
    """What the workers of both devices are asked for."""

    def __init__(self) -> None:
        self.references, self.checks = Counter[str](), Counter[str]()
        self._lock = threading.Lock()

    def watch(self, bench: Bench) -> None:
        request = bench.pool.request

        def noting(worker: Any, one: Any, seconds: float) -> messages.Reply:
            with self._lock:
                if isinstance(one, messages.Reference):
                    self.references[Path(one.folder).name] += 1
                if isinstance(one, messages.Verify) and len(one.keys) > 1:
                    self.checks[one.handle] += 1
            return request(worker, one, seconds)

        bench.pool.request = noting  # type: ignore[method-assign]


def test_two_devices_share_references_and_verdicts_and_agree(tmp_path: Path) -> None:
    folder, findings, asked = tmp_path / "axpb", Findings(tmp_path / "references"), Asked()
    folder.mkdir()
    (folder / "operator.py").write_text(OPERATOR)
    for name in NAMES:
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", tmp_path / f"{name}.so"]
        subprocess.run([*command, CONTRACT / f"{name}.cpp"], check=True, timeout=60)
    policy = policy_for("cuda", Policy(race_ns=20_000_000, screen_ns=1_000_000))
    policy = msgspec.structs.replace(policy, deadlines=Deadlines(handshake=120))
    device = device_of(
        name="Host", uuid="host", capability=90, sm_count=1, l2_bytes=1 << 16, memory_bytes=1 << 30, driver="1"
    )
    beds: list[Bed] = []
    for i in range(2):
        bench = Bench(device, policy, scratch=tmp_path / f"bench-{i}", threads=1, findings=findings)
        asked.watch(bench)
        beds.append(Bed(bench, folder, lambda name: tmp_path / f"{name}.so", []))

    def screen(bed: Bed, own: dict[str, int], name: str) -> Measurement:
        return bed.screen(name, bed.bench.prepare(folder, bed.operator, problem(**own)))

    def measure(bed: Bed, own: dict[str, int], names: list[str]) -> dict[str, Measurement]:
        found, waiting = dict[str, Measurement](), list(names)
        while waiting:
            suites = [findings.suite(str(folder), bed.entry(n).code, ()) for n in waiting]
            name = waiting.pop(findings.choose(suites))
            found[name] = screen(bed, own, name)
        return found

    def race(bed: Bed, other: dict[str, int]) -> list[Measurement]:
        return bed.bench.race(bed.prepare(**other), [bed.entry("good"), bed.entry("one_wrong")])

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        threads = list(zip((one, two), beds, OWN, strict=True))
        try:
            begun = [thread.submit(bed.bench.__enter__) for thread, bed, _ in threads]
            assert all(f.result(150) for f in begun)
            screens = [thread.submit(measure, bed, own, list(NAMES)) for thread, bed, own in threads]
            found = [f.result(150) for f in screens]
            races = [t.submit(race, bed, other) for (t, bed, _), other in zip(threads, OWN[::-1], strict=True)]
            raced = [{m.candidate: m.status for m in f.result(150)} for f in races]
        finally:
            for thread, bed, _ in threads:
                thread.submit(bed.bench.__exit__, None, None, None).result(60)
    wanted = {"good": "ok", "one_wrong": "wrong-result", "segfault": "crashed", "past_end": "wrong-result"}
    for measured in found:
        assert {n: m.status for n, m in measured.items()} == wanted, measured
    assert raced == [{"good": "ok", "one_wrong": "wrong-result", "baseline:torch": "ok"}] * 2
    checks = {n: asked.checks[beds[0].entry(n).code] for n in NAMES}
    assert checks.pop("segfault") <= 2 * policy.strikes  # twice where something else may have killed the first worker
    assert set(checks.values()) == {1}
    assert set(asked.references.values()) == {1}
    assert {f.name for f in findings.folder.iterdir()} == set(asked.references)
    assert len(asked.references) > 10
