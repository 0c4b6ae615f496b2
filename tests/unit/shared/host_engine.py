"""The host as a GPU of a session: its tensors and its clock. Needs torch."""

import ctypes
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from stand_ins import StandIn

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.bench.worker.cuda_memory import Mapper
from aot_tune.bench.worker.cuda_stream import Play, Recorded, one_by_one
from aot_tune.bench.worker.engine import Call
from aot_tune.bench.worker.loaded_objects import HOST


def _alone(play: Play, before: Play) -> float:
    before()
    begin = time.perf_counter_ns()
    play()
    return float(time.perf_counter_ns() - begin)


class HostEngine:
    """See `DeviceStream`: the host's tensors and clock."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.dlpack = HOST
        self.stream: int | None = None
        self.last_busy = -math.inf
        self.mapper: Any = None

    def guard(self) -> Any:
        return torch.no_grad()

    def check(self) -> None:
        """Nothing is left to wait for."""

    def forget(self) -> None:
        """Nothing is left behind."""

    def claim(self, device: Device, share: float) -> None:
        """It is the host's, whatever it is called."""

    def free(self) -> None:
        """Nothing is kept."""

    def use_streams(self, count: int) -> None:
        """The host has none."""

    def record(self, calls: Sequence[Call], framework: bool = False) -> Recorded:
        return one_by_one(calls)

    def callers(self) -> Any:
        return [(None, torch.no_grad)] * 2

    def burden(self) -> Play:
        return lambda: time.sleep(0.001)

    def copying(self, pairs: Sequence[tuple[Any, Any]], waits: bool = False) -> Call:

        def call() -> int:
            for to, source in pairs:
                to.copy_(source)
            return 0

        return call

    def time(self, play: Play, count: int, warm: bool = True, before: Play | None = None) -> list[float]:
        if before is not None:
            return [_alone(play, before) for _ in range(count + warm)][int(warm) :]
        if warm:
            play()
        times = [time.perf_counter_ns()]
        for _ in range(count):
            play()
            times.append(time.perf_counter_ns())
        return [float(b - a) for a, b in itertools.pairwise(times)]

    def empty(self) -> Call:
        return lambda: 0

    def clock_mhz(self, cycles: int) -> float:
        return 0.0

    def read_rate(self, storages: Sequence[Any]) -> float:
        return 0.0


def mapper_of(driver: StandIn) -> Mapper:
    """The host's memory, as a GPU's driver maps it."""

    def view(memory: Any) -> Any:
        held = (ctypes.c_uint8 * memory.size).from_address(memory.address)
        held.memory = memory
        return torch.frombuffer(held, dtype=torch.uint8)

    return Mapper(driver.library, 0, view)
