"""A build on a Ray cluster of this machine: two models of a stub GPU on three nodes, a driver and a node that die."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from environments import run
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


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
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
    made = Project.make(tmp_path_factory.mktemp("clusters") / "project", AOT_TUNE_TARGETS="cuda")
    made.env |= {"AOT_TUNE_EXECUTOR": "ray", "RAY_ADDRESS": cluster.address}
    return with_gpu_kernels(made)


def agreeing(project: Project) -> tuple[subprocess.Popen[str], str]:
    """A build whose two devices of a model agree, and what it said; the host's clock, which they have, may be noisy."""
    for _ in range(3):
        build = project.start()
        said = read_until(build, " on a probe", " for the same probe")
        if "2 devices agree" in said:
            return build, said
        os.killpg(build.pid, signal.SIGKILL)
        build.wait()
    raise AssertionError(said)


def records(project: Project) -> dict[str, OperatorDatabase]:
    """What the last build measured, by the device's name."""
    folder = project.folder / "exported"
    shutil.rmtree(folder, ignore_errors=True)
    run(project.command("records", "export", "--library", "tiny", folder), env=project.environment())
    return {d.device.name: d for d in load_databases(folder)}


def test_two_models_are_tuned_in_one_run_though_a_driver_and_a_node_die(cluster: Any, project: Project) -> None:
    project.configure()
    killed = project.start()
    read_until(killed, "NVML is not here")  # a bench has begun on a node
    wait_for(lambda: bool(benches()))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    wait_for(lambda: not benches())

    add_node(cluster, 1, B)
    dying = add_node(cluster, 1, LATE_B)
    assert "targets cuda-sm_80, cuda-sm_90a\n" in project.configure()  # of each model its best
    build, said = agreeing(project)
    cluster.remove_node(dying, allow_graceful=False)
    said += build.communicate(timeout=200)[0]
    assert build.returncode == 0, said
    assert "LOST Stub B host-late-b: node " in said, said
    found = records(project)
    assert set(found) == {"Stub A", "Stub B"}
    for database in found.values():
        assert {m.problem.id for m in database.measurements} == {"N=20000", "N=60000"}
