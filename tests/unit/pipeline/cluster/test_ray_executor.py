"""What a build does with the nodes of a cluster, without one: devices, targets, compilers, what nodes answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import CompileOutcome, ObjectCache, native_targets, target_by_name, toolchain_for
from aot_tune.pipeline.cluster.cluster_messages import (
    CompileOrder,
    GpuFacts,
    MadeObject,
    SentError,
    decode,
    encode,
)
from aot_tune.pipeline.cluster.node_tasks import compile_here, tell_node
from aot_tune.pipeline.cluster.ray_cluster import ClusterNode, CompilesEndedError, RayCluster
from aot_tune.pipeline.cluster.ray_executor import RayExecutor
from aot_tune.render import Candidate, Rendered
from aot_tune.support.errors import BuildError, ToolchainError

TARGET = target_by_name("cpu-x86-64")
SOURCE = '#include <cstdint>\nextern "C" int {} () {{ return 0; }}\n'
FUNCTIONS = ("one_workspace", "one_launch")


def gpu(name: str, capability: int, uuid: str) -> Device:
    return device_of(
        name=name, uuid=uuid, capability=capability, sm_count=1, l2_bytes=1, memory_bytes=1 << 30, driver="1"
    )


def node(name: str, cpus: int = 0, gpus: int = 0, gib: int = 8) -> ClusterNode:
    return ClusterNode(id=f"id-of-{name}", name=name, cpus=cpus, gpus=gpus, memory=gib << 30)


class World:
    """A cluster of which this process is all nodes; its GPUs are those that it is given, by node."""

    address = "10.0.0.1:6379"

    def __init__(self, *nodes: ClusterNode, gpus: tuple[tuple[str, Device, tuple[str, ...]], ...] = ()) -> None:
        self.all, self.gpus = list(nodes), gpus
        self.released: list[str] = []
        self.compile: Callable[[bytes, int], bytes] = lambda order, _memory: compile_here(order)
        self.asked = 0

    def nodes(self) -> list[ClusterNode]:
        return self.all

    def ask_nodes(self, question: bytes, nodes: list[ClusterNode]) -> dict[str, bytes]:
        self.asked += 1
        return {n.id: tell_node(question) for n in nodes}

    def hold_devices(self, nodes: list[ClusterNode], _log: object) -> list[Any]:
        return [
            SimpleNamespace(
                node=n,
                facts=encode(GpuFacts(device=device, targets=targets)),
                release=lambda unit=device.unit: self.released.append(unit),
            )
            for n in nodes
            for where, device, targets in self.gpus
            if where == n.name
        ]

    def executor(self, log: Callable[[str], None] = print, targets: tuple[str, ...] | None = None) -> RayExecutor:
        return RayExecutor(cast(RayCluster, self), log, targets)


HOPPER, AMPERE = ("cuda-sm_90", "cuda-sm_90a"), ("cuda-sm_80",)
MIXED = (
    ("a", gpu("H100", 90, "GPU-1"), HOPPER),
    ("a", gpu("H100", 90, "GPU-2"), HOPPER),
    ("b", gpu("A100", 80, "GPU-3"), AMPERE),
)


def test_targets_and_devices_are_those_of_all_models_and_of_the_builds_own_cpu() -> None:
    executor = World(node("a", gpus=2), node("b", gpus=1), gpus=MIXED).executor()
    cpu = [t.name for t in native_targets() if t.on_host]
    assert [t.name for t in executor.best()] == [cpu[-1], "cuda-sm_80", "cuda-sm_90a"]
    assert [t.name for t in executor.native()] == [*cpu, "cuda-sm_80", *HOPPER]
    assert [d.unit for d in executor.devices(1, ["cuda"])] == ["GPU-1", "GPU-2", "GPU-3"]
    both = executor.devices(3, ["cpu", "cuda"])
    assert [(d.family, d.identity["threads"]) for d in both if d.family == "cpu"] == [("cpu", 3)]
    assert [executor.has(d) for d in both] == [False, True, True, True]


def test_devices_that_run_nothing_of_the_build_are_left_to_others() -> None:
    world = World(node("a", gpus=2), node("b", gpus=1), gpus=MIXED)
    lines: list[str] = []
    executor = world.executor(lines.append, ("cpu-x86-64", "cuda-sm_80"))
    assert [d.unit for d in executor.devices(1, ["cuda"])] == ["GPU-3"]
    assert world.released == ["GPU-1", "GPU-2"]
    assert lines == [
        "Ray cluster at 10.0.0.1:6379: 2 nodes, 0 CPUs",
        "device A100 GPU-3 on node b (id-of-b)",
    ]
    world.released.clear()
    assert world.executor(targets=("cpu-x86-64",)).devices(1, ["cuda"]) == []
    assert world.released == []  # they were not taken


def cached(world: World, folder: Path) -> ObjectCache:
    return ObjectCache(folder, toolchain_for("cxx"), elsewhere=world.executor())


def rendered(text: str = SOURCE) -> Rendered:
    source = "".join(text.format(name) for name in FUNCTIONS)
    candidate = Candidate(operator="one", kernel="k", backend="cxx", target=TARGET.name)
    return Rendered(candidate=candidate, source=source, digest="d", symbol="one", lines=[])


def changed(**fields: Any) -> Callable[[bytes, int], bytes]:
    """A node whose answer has other fields."""

    def compile_there(order: bytes, _memory: int) -> bytes:
        assert decode(order, CompileOrder).backend == "cxx"
        return encode(MadeObject(node="seven", **fields))

    return compile_there


def test_headers_that_differ_and_compilers_that_do_not_start_are_told_with_the_node(tmp_path: Path) -> None:
    world = World(node("a", 1))
    header = str(tmp_path / "own.h")
    Path(header).write_text("")
    outcome = CompileOutcome(status="ok", includes=(header,))
    world.compile = changed(outcome=outcome, files={"object.o": b""}, includes={header: "other"})
    with pytest.raises(ToolchainError, match=r"own\.h on node seven is not what it is on this machine"):
        cached(world, tmp_path / "c").get(rendered(), TARGET)
    world.compile = changed(error=SentError.of(ToolchainError("g++ cannot be started", fix="mend it")))
    with pytest.raises(ToolchainError, match="seven: g\\+\\+ cannot be started\n  fix: mend it"):
        cached(world, tmp_path / "c").get(rendered(), TARGET)


def test_a_compile_that_was_ended_is_not_remembered(tmp_path: Path) -> None:
    world = World(node("a", 1))

    def ends(_order: bytes, _memory: int) -> bytes:
        raise CompilesEndedError("its node died 6 times")

    world.compile = ends
    made = cached(world, tmp_path).get(rendered(), TARGET)
    assert (made.status, made.error) == ("compile-failed", "error: its node died 6 times")
    world.compile = lambda order, _memory: compile_here(order)
    assert cached(world, tmp_path).get(rendered(), TARGET).status == "ok"


def test_a_build_needs_cpus_to_compile_on_and_tells_of_models_that_it_does_not_measure() -> None:
    plan = SimpleNamespace(toolchains={"cxx": {}}, targets=("cuda-sm_90a",), baselines=())
    paths = SimpleNamespace(templates=())
    world = World(node("a", gpus=2))
    with pytest.raises(BuildError, match="no node of the Ray cluster has CPUs to compile on"):
        world.executor().agree(cast(Any, plan), cast(Any, paths), [])
    others = (*MIXED[:2], ("b", gpu("H200", 90, "GPU-4"), HOPPER))
    lines: list[str] = []
    executor = World(node("a", 1, gpus=2), node("b", gpus=1), gpus=others).executor(lines.append)
    executor.agree(cast(Any, plan), cast(Any, paths), [])
    assert lines[-1] == "NOTE cuda-sm_90a is measured on H100 only, not on H200"
