"""The process of one library. It prepares problems and times them on request, one JSON line for each request."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

__all__: list[str] = []

_SAMPLE_NS = 50_000
"""Shorter calls are timed in batches of about this time, so that reading the clock does not matter."""
_LONG_NS = 200_000_000
_POINTS = 97
"""How many elements of each output are compared between libraries."""


class Server:
    """What the process keeps between requests."""

    def __init__(self, library: str, threads: int) -> None:
        self.library, self.threads = library, threads
        self.prepared: dict[str, Any] = {}
        self.cycles: dict[tuple[str, str], Any] = {}
        self.call_ns: dict[tuple[str, str], float] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what one request asks for."""
        match request["do"]:
            case "prepare":
                return self.prepare(request)
            case "time":
                return {"samples": self.time(request["key"], request["way"], request["budget_ns"])}
            case "limits":
                return self.limits(request)
            case "drop":
                self.prepared.clear()
                self.cycles.clear()
                return {}
        raise ValueError(request["do"])

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Allocate, run each way, and return its results."""
        from libraries import prepare_copy, prepare_operator

        key = request["key"]
        if request["kind"] == "copy":
            prepared = prepare_copy(self.library, request["bytes"], self.threads, request["machine"])
        else:
            prepared = prepare_operator(self.library, request["operator"], request["problem"], request["copies"])
        self.prepared[key] = prepared
        ways = {}
        for way, runs in prepared.ways.items():
            for output in prepared.outputs.values():
                output.fill(np.nan)
            spent = _once(runs[0])
            if spent < _LONG_NS:
                spent = _once(runs[-1])
            self.call_ns[key, way] = spent
            self.cycles[key, way] = itertools.cycle(runs)
            results = {n: _points(o) for n, o in prepared.outputs.items()} if request["kind"] != "copy" else {}
            ways[way] = {"results": results}
        return {"ways": ways, "facts": prepared.facts}

    def time(self, key: str, way: str, budget_ns: float) -> list[float]:
        """ns per call of as many samples as fit the budget, at least one, after a warm-up."""
        cycle = self.cycles[key, way]
        expected = self.call_ns[key, way]
        batch = max(1, round(_SAMPLE_NS / expected))
        if expected < _LONG_NS:
            end = time.perf_counter_ns() + min(2_000_000, budget_ns / 4)
            _batch(cycle, batch)
            while time.perf_counter_ns() < end:
                _batch(cycle, batch)
        samples: list[float] = []
        end = time.perf_counter_ns() + budget_ns
        while not samples or time.perf_counter_ns() < end:
            samples.append(_batch(cycle, batch) / batch)
        self.call_ns[key, way] = float(np.median(samples))
        return samples

    def limits(self, request: dict[str, Any]) -> dict[str, float]:
        """Peak GFLOP/s and the bandwidths (bytes per ns) of reading and of copying, the best of several tries."""
        from libraries import prepare_copy
        from native import load_machine

        probe = load_machine(request["machine"])
        size = request["bytes"]
        flops = max(probe.machine_gflops(2_000_000, self.threads) for _ in range(5))
        data = np.ones(size // 4, dtype=np.float32)
        read = min(_once(lambda: probe.machine_read(data.ctypes.data, data.nbytes, self.threads)) for _ in range(7))
        copies = prepare_copy(self.library, size, self.threads, request["machine"]).ways
        copy = min(_once(runs[0]) for runs in copies.values() for _ in range(7))
        return {"gflops": flops, "read": data.nbytes / read, "copy": size / copy}


def _once(run: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def _batch(cycle: Any, count: int) -> int:
    start = time.perf_counter_ns()
    for _ in itertools.repeat(None, count):
        next(cycle)()
    return time.perf_counter_ns() - start


def _points(array: Any) -> list[float]:
    return [float(array.flat[i * 104729 % array.size]) for i in range(_POINTS)]


def settle() -> None:
    """Wait until all other threads of this process sleep, so that the next process has the cores for itself.

    Threads of OpenMP and OpenBLAS spin for a while after a call. Their states show it at once. Processor times do not,
    because the kernel updates them only once per tick of its clock.
    """
    asleep = 0
    for _ in range(2000):
        time.sleep(0.0005)
        asleep = 0 if _others_run() else asleep + 1
        if asleep == 2:
            return
    raise RuntimeError("threads of the library still run a second after its last call")


def _others_run() -> bool:
    me = str(threading.get_native_id())
    for thread in Path("/proc/self/task").iterdir():
        if thread.name == me:
            continue
        try:
            text = (thread / "stat").read_text()
        except OSError:  # it has ended
            continue
        if text.rpartition(")")[2].split()[0] == "R":
            return True
    return False


def serve(server: Server, requests: TextIO, replies: TextIO) -> None:
    """Answer until the parent closes the pipe."""
    for line in requests:
        try:
            reply = server.answer(json.loads(line))
            settle()
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    """Run under the name of a library with a number of threads."""
    library, threads = sys.argv[1], int(sys.argv[2])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    if library == "torch":
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
    serve(Server(library, threads), sys.stdin, replies)


if __name__ == "__main__":
    main()
