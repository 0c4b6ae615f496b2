"""A build on a Ray cluster of this machine: two models of a stub GPU on three nodes, a driver and a node that die."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from project import Project, descendants, read_until
from ray_clusters import add_node, ray_cluster, with_gpu_kernels

from aot_tune.database import OperatorDatabase, load_databases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH: the stub GPU's kernels are nvcc's"),
]
A, B, LATE_B = "Stub A|90|host-a", "Stub B|80|host-b", "Stub B|80|host-late-b"
WORKER = "aot_tune.bench.worker"


def benches() -> list[int]:
    """Processes of benches below this one."""
    return [pid for pid, command in descendants(os.getpid()).items() if WORKER in command]


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> None:
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < seconds
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Its head has a GPU of model A."""
    pytest.importorskip("ray", reason="no ray: install aot_tune[ray]")
    pytest.importorskip("torch", reason="no torch: references of a GPU are its")
    with ray_cluster() as made:
        add_node(made, 1, A)
        yield made


@pytest.fixture(scope="module")
def project(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project.make(tmp_path_factory.mktemp("clusters") / "project", AOT_TUNE_EXECUTOR="ray")
    made.env["RAY_ADDRESS"] = cluster.address
    return with_gpu_kernels(made)


def records(project: Project, **given: str) -> list[OperatorDatabase]:
    """What the last build measured."""
    folder = project.folder / "exported"
    shutil.rmtree(folder, ignore_errors=True)
    argv = project.command("record", "--library", "tiny", folder)
    from environments import run

    run(argv, env=project.environment(**given))
    return load_databases(folder)


def test_two_models_are_tuned_in_one_run_though_a_driver_and_a_node_die(cluster: Any, project: Project) -> None:
    add_node(cluster, 1, B)
    dying = add_node(cluster, 1, LATE_B)
    assert "targets cuda-sm_80, cuda-sm_90a\n" in project.configure(AOT_TUNE_TARGETS="cuda")  # of each model its best
    before = len(benches())

    killed = project.start()
    read_until(killed, "agree on a probe")
    assert len(benches()) >= before + 4
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    wait_for(lambda: not benches())

    build = project.start()
    read_until(build, "agree on a probe")
    cluster.remove_node(dying, allow_graceful=False)
    said = build.communicate(timeout=200)[0]
    assert build.returncode == 0, said
    print(said)
    found = records(project)
    assert {d.device.name for d in found} == {"Stub A", "Stub B"}
