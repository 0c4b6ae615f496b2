"""Problems shared out among GPUs: which there are, which one has what, and threads that end when one of them fails."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from gpu_tasks import Task

__all__ = ["named_gpus", "run_together", "shared_out"]


def named_gpus(count: int) -> list[str]:
    """The first `count` GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them, or by UUID.

    Raises:
        SystemExit: where there are fewer.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        found = [name for name in given.split(",") if name]
        where = f"CUDA_VISIBLE_DEVICES={given} names"
    else:
        argv = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise SystemExit(f"benchmarks: --gpus {count}: nvidia-smi lists none: {error}") from error
        found, where = done.stdout.split(), "nvidia-smi lists"
    if len(found) < count:
        raise SystemExit(f"benchmarks: --gpus {count}, but {where} {len(found)}: ask for no more than there are")
    return found[:count]


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
