"""Ray clusters of this machine for tests: nodes with and without a stub GPU, and a project with kernels for it."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from environments import ROOT
from project import OPERATOR, Project

CUDA_KERNELS = """
        Kernel("on_gpu", "twice/on_gpu.cu.j2", backend="nvcc", generic=True),
        Kernel(
            "loop_on_gpu",
            "twice/loop.cu.j2",
            backend="nvcc",
            parameters=(Parameter("TIMES", (1, 64)),),
            requires=(stride("x", 0) == 1, stride("y", 0) == 1),
        ),
"""
# What a GPU would be asked to do is done by the host: the stub GPU's memory is the host's.
ON_GPU = """
{{ prelude() }}

__global__ void unused() {}

{{ no_workspace() }}

{{ kernel_signature("preload") }} {
  return 0;
}

{{ kernel_signature("launch") }} {
  const Arguments args = {{ pack() }};
  (void)stream;
  for (int t = 0; t < {{ TIMES | default(8) }}; ++t) {
    for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
      {{ store("y", ["i"], "2 * " ~ load("x", ["i"])) }}
    }
    asm volatile("" ::: "memory");
  }
  return 0;
}
"""


NODE_PATH = os.pathsep.join([str(ROOT / "tests" / "stub_node"), str(ROOT)])
"""Where Python on a node imports from."""


def with_gpu_kernels(project: Project) -> Project:
    operator = OPERATOR.replace("    kernels=(\n", f"    kernels=({CUDA_KERNELS}")
    project.operator.write_text(operator)
    for name in ("on_gpu", "loop"):
        (project.templates / "twice" / f"{name}.cu.j2").write_text(ON_GPU)
    return project


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """A cluster without nodes, whose processes end with the block."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(shutdown_at_exit=False)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any, cpus: int, gpu: str = "") -> Any:
    given = {"STUB_GPU": gpu, "PYTHONPATH": NODE_PATH}
    given |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    before = dict(os.environ)
    os.environ.update(given)
    try:
        return cluster.add_node(num_cpus=cpus, num_gpus=int(bool(gpu)), include_dashboard=False)
    finally:
        os.environ.clear()
        os.environ.update(before)
