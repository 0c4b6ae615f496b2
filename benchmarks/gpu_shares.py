"""Shares problems among GPUs: finds the GPUs, divides the tasks, and ends all threads if one of them fails."""

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
        SystemExit: when there are fewer, or of several models.
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
            f"benchmarks: {' and '.join(models)} would be in one table: choose one model by CUDA_VISIBLE_DEVICES"
        )
    return [device.uuid for device in found.devices[:count]]


def shared_out(tasks: Sequence[Task], count: int) -> list[list[Task]]:
    """Shares with equal numbers of each kind of task: max-autotune compiles 20 s for a product, 4 s for rows."""
    shares: list[list[Task]] = [[] for _ in range(count)]
    placed = Counter[str]()
    for task in tasks:
        shares[placed[task.kind] % count].append(task)
        placed[task.kind] += 1
    return shares


def run_together(jobs: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run each job in a thread. If one raises, or on Ctrl-C, `stop` ends the others, and the error is raised."""
    with ThreadPoolExecutor(len(jobs)) as executor:
        try:
            running = [executor.submit(job) for job in jobs]
            for one in wait(running, return_when=FIRST_EXCEPTION).done:
                one.result()
        except BaseException:
            stop()
            raise
