"""The process that uses the GPU. It reads what to measure as JSON, and answers with one JSON line for each problem."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

import torch
from gpu_calls import OFF, compiled, difference, eager, facts, ours, product
from gpu_race import Arena, Contender, copy_of, copy_speed, empty_kernel, race
from gpu_tasks import LARGE, Task

__all__: list[str] = []


class Server:
    """What the process keeps for all tasks."""

    def __init__(self, plan: dict[str, Any], replies: TextIO) -> None:
        self.plan, self.replies = plan, replies
        self.end = time.monotonic() + plan["seconds"]
        self.workspace: int | None = plan["workspace"]
        self.empty, self.empty_name = empty_kernel()

    def tell(self, **what: Any) -> None:
        """Write one line."""
        self.replies.write(json.dumps(what) + "\n")
        self.replies.flush()

    def run(self) -> None:
        """Run all tasks, or as many as fit the time. max-autotune's tasks run only while there is time for another."""
        self.tell(event="machine", **machine(), empty_kernel=self.empty_name, copy_speed=copy_speed())
        slowest = 30.0
        for plain in self.plan["tasks"]:
            task = Task.from_plain(plain)
            left = self.end - time.monotonic()
            if left < (slowest if self.plan["compile"] else 0):
                continue
            began = time.monotonic()
            self.tell(event="begin", key=task.key)
            try:
                self.tell(event="result", key=task.key, **self.measure(task))
            except Exception as error:  # a task's failure becomes a line of the table
                self.tell(event="result", key=task.key, error=f"{type(error).__name__}: {str(error)[:300]}")
                torch.cuda.synchronize()  # after a sticky error this ends the process, and a new one continues
            torch.cuda.empty_cache()
            slowest = max(slowest, 1.2 * (time.monotonic() - began)) if self.plan["compile"] else 0.0
        self.tell(event="end", copy_speed=copy_speed(), clocks=clocks())

    def measure(self, task: Task) -> dict[str, Any]:
        """Verify and race one task."""
        torch.backends.cuda.matmul.allow_tf32 = task.mode == "f32 tf32"
        arena = Arena(task)
        run = ours(arena, self.workspace)
        off = difference(arena, run, eager(arena))
        if not off <= OFF[task.mode]:
            raise ArithmeticError(f"it differs from torch by {off:.2e} of the norm")
        contenders = [Contender("aot_tune", run, arena.sets), *self._others(task, arena)]
        if task.kind != "rows" and task.group == "M <= 16":
            contenders.append(Contender("empty", self.empty, arena.sets))
        times = race(contenders, self.plan["rounds"])
        return {
            "us": times,
            "facts": facts(arena, self.workspace),
            "sets": arena.sets,
            "nodes": contenders[0].nodes,
            "difference": off,
            "clocks": clocks(),
        }

    def _others(self, task: Task, arena: Arena) -> Sequence[Contender]:
        found = []
        if task.kind != "rows":
            found.append(Contender("torch.matmul", product(arena), arena.sets))
        if task.kind != "product":
            found.append(Contender("eager", eager(arena), arena.sets))
        if self.plan["compile"]:
            found.append(Contender("max-autotune", compiled(arena), arena.sets))
        if task.kind == "rows" and task.bytes >= LARGE:
            found.append(Contender("copy", *copy_of(task.bytes)))
        return found


def machine() -> dict[str, Any]:
    """The machine and the versions in use."""
    device = torch.cuda.get_device_properties(0)
    return {
        "gpu": device.name,
        "multiprocessors": device.multi_processor_count,
        "l2_bytes": device.L2_cache_size,
        "memory_bytes": device.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cublas": _cublas(),
        "clocks": clocks(),
    }


def _cublas() -> str:
    from importlib.metadata import PackageNotFoundError, version

    for name in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "not told"


def clocks() -> dict[str, Any]:
    """The current clock, temperature and power, if the driver's library tells."""
    try:
        return {
            "sm_mhz": torch.cuda.clock_rate(),
            "celsius": torch.cuda.temperature(),
            "watts": torch.cuda.power_draw() / 1000,
        }
    except Exception as error:  # without nvidia-ml-py
        return {"missing": str(error)[:100]}


def main() -> None:
    """Run the plan from standard input."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    torch.set_grad_enabled(False)
    Server(json.load(sys.stdin), replies).run()


if __name__ == "__main__":
    main()
