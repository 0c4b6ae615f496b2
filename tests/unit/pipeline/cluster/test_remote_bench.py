"""A bench on a device of a node, asked from elsewhere: what it measures, shares, is killed at. A stub GPU, no Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from project import Project

from aot_tune.bench.devices.cuda import FAMILY, Cuda, device_of
from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.host.findings import Findings
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.compile import ObjectCache, target_by_name, toolchain_for
from aot_tune.pipeline.cluster import device_host
from aot_tune.pipeline.cluster.cluster_messages import Begin, GpuFacts, decode
from aot_tune.pipeline.cluster.device_host import DeviceHost
from aot_tune.pipeline.cluster.remote_bench import RemoteBench
from aot_tune.plan.library_plan import Plan, Request, make_plan
from aot_tune.render import Renderer, candidate_for, requirements
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import AotTuneError, WorkerError

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="no torch: references of a GPU are its")
GPU = device_of(
    name="Stub", uuid="host-alone", capability=80, sm_count=1, l2_bytes=1 << 16, memory_bytes=1 << 30, driver="1"
)
TARGET = target_by_name("cpu-x86-64")


class Direct:
    """A node's process that is this one."""

    def __init__(self) -> None:
        self.host, self.sent = DeviceHost(), list[Any]()

    def ask(self, method: str, *arguments: Any, log: Callable[[str], None]) -> bytes:
        self.sent.append((method, *arguments))
        answer = getattr(self.host, method)(*arguments)
        for line in self.host.lines():
            log(line)
        return bytes(answer)

    def tell(self, method: str) -> None:
        getattr(self.host, method)()


class Bed:
    """A project, and benches on the stub GPU that share findings."""

    def __init__(self, folder: Path) -> None:
        self.project, self.lines = Project.make(folder / "project"), list[str]()
        request = Request(name="tiny", prefix="tiny", header="tiny.h", templates=(str(self.project.templates),))
        self.plan: Plan = make_plan(msgspec.structs.replace(request, options={"AOT_TUNE_TARGETS": "cpu"}), {})[0]
        self.folder = self.project.templates / "twice"
        self.operator = load_operator(self.folder)
        self.problems = self.operator.workload_for("cuda")
        self.findings = Findings(folder / "references")
        self._scratch = folder

    def bench(self, node: Direct, patience: float | None = None) -> RemoteBench:
        begin = Begin(
            plan=self.plan,
            roots=(str(self.project.templates),),
            policy=policy_for("cuda", Policy(race_ns=20_000_000, screen_ns=1_000_000)),
            threads=1,
            exclusive=True,
            patience=patience,
        )
        return RemoteBench(GPU, begin, node, Path.read_bytes, self.lines.append, self.findings)

    def entrant(self, kernel: str, code: str) -> Entrant:
        """A kernel of the CPU's, which runs on the stub's tensors too."""
        chain, one = toolchain_for("cxx"), self.operator.kernel(kernel)
        candidate = candidate_for(self.operator, one, next(iter(one.configs(TARGET.facts))), TARGET)
        rendered = Renderer([self.project.templates]).render(self.operator, candidate, TARGET)
        made = ObjectCache(self._scratch / "objects", chain).get(rendered, TARGET)
        linked = self._scratch / f"{code}.so"
        chain.link_shared([Path(made.path)], linked)
        return Entrant(
            candidate=candidate,
            shared_object=linked,
            symbol=rendered.symbol,
            code=code,
            requires=requirements(self.operator, candidate),
        )


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cuda, "devices", lambda _self, _threads: [GPU])
        patch.setattr(device_host, "native_targets", lambda: [target_by_name("cuda-sm_80"), TARGET])
        assert FAMILY.devices(1) == [GPU]
        yield Bed(tmp_path_factory.mktemp("remote"))


def test_the_device_is_told_with_its_targets(bed: Bed) -> None:
    assert decode(DeviceHost().facts(), GpuFacts) == GpuFacts(device=GPU, targets=("cuda-sm_80",))


@pytest.mark.slow
def test_what_is_measured_on_a_node_comes_back_and_what_is_found_out_there_is_shared(bed: Bed) -> None:
    loop, generic, problem = bed.entrant("loop", "loop"), bed.entrant("generic", "generic"), bed.problems[0]
    first, second = Direct(), Direct()
    with bed.bench(first) as bench:
        prepared = bench.prepare(bed.folder, bed.operator, problem)
        found = bench.screen(prepared, loop)
        assert (found.status, found.candidate, found.problem) == ("ok", loop.candidate.id, problem)
        assert (found.device, found.policy) == (GPU.digest, bench.policy.digest)
        assert found.screen
        assert found.phases["check"] > 0
        assert bench.referring > 0
        raced = bench.race(prepared, [loop, generic])
        assert [len(m.final or ()) >= 7 for m in raced] == [True, True]
        surveyed = bench.survey(bed.folder, bed.operator, bed.problems[1], [loop, generic])
        assert [m.status for m in surveyed] == ["ok", "ok"]
        with pytest.raises(WorkerError, match="Stub is not free"), bed.bench(second, patience=0.1):
            pass
    assert any("NVML is not here" in line for line in bed.lines)

    with bed.bench(second) as bench:  # the device is free again
        prepared = bench.prepare(bed.folder, bed.operator, problem)
        assert bench.verify(prepared, loop).status == "ok"
        with bench.alone():
            alone = bench.screen(bench.prepare(bed.folder, bed.operator, problem), loop)
        assert alone.phases["check"] > 0
        known = bench.screen(prepared, loop)
        assert known.phases.get("check", 0.0) < alone.phases["check"] / 2  # another device has found that out


@pytest.mark.slow
def test_what_a_node_is_busy_with_is_killed_from_elsewhere(bed: Bed) -> None:
    bed.project.change("  return 0;", "  for (volatile int forever = 1; forever;) {}\n  return 0;", "loop.cpp.j2")
    endless, node, found = bed.entrant("loop", "endless"), Direct(), list[str]()
    with bed.bench(node) as bench:
        prepared = bench.prepare(bed.folder, bed.operator, bed.problems[0])

        def screen() -> None:
            try:
                found.append(bench.screen(prepared, endless).reason)
            except AotTuneError as error:
                found.append(str(error))

        thread = threading.Thread(target=screen)
        thread.start()
        begun = time.monotonic()
        while thread.is_alive():
            bench.interrupt()
            thread.join(0.5)
            assert time.monotonic() - begun < 60
    assert "SIGKILL" in found[0] or "no worker can" in found[0], found
