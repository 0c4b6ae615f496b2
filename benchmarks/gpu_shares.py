"""Problems shared out among GPUs: which there are, which one has what, and threads that end when one of them fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from gpu_tasks import Task

from aot_tune.compile.cuda.visible_gpus import visible_devices

__all__ = ["named_gpus", "run_together", "shared_out"]


def named_gpus(count: int) -> list[str]:
    """UUIDs of the first `count` GPUs that this process may use.

    Raises:
        SystemExit: where there are fewer, or they are of several models.
    """
    found = visible_devices()
    if len(found.devices) < count:
        why = f" ({found.error})" if found.error else ""
        raise SystemExit(
            f"benchmarks: --gpus {count}: {len(found.devices)} are visible{why}: ask for no more than that"
        )
    models = sorted({device.name for device in found.devices[:count]})
    if len(models) > 1:
        raise SystemExit(
            f"benchmarks: {' and '.join(models)} would share a table: choose some of one model by CUDA_VISIBLE_DEVICES"
        )
    return [device.uuid for device in found.devices[:count]]


def shared_out(tasks: Sequence[Task], count: int) -> list[list[Task]]:
    """Shares with as many tasks of each kind: max-autotune takes 20 s to compile a product, and 4 for rows."""
    shares: list[list[Task]] = [[] for _ in range(count)]
    placed = Counter[str]()
    for task in tasks:
        shares[placed[task.kind] % count].append(task)
        placed[task.kind] += 1
    return shares


def run_together(jobs: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run each job in a thread. When one raises, or Ctrl-C comes, `stop` has the others end, and that is raised."""
    with ThreadPoolExecutor(len(jobs)) as executor:
        try:
            running = [executor.submit(job) for job in jobs]
            for one in wait(running, return_when=FIRST_EXCEPTION).done:
                one.result()
        except BaseException:
            stop()
            raise
