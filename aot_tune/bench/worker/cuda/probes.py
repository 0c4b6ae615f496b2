"""What a GPU reveals during measurements: the clock it runs at, and whether cold tensors are cold.

A probe that fails costs no measurement. It says so once, and is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.bench.worker.cuda.engine import Engine, FaultError

__all__ = ["Probes"]

_LEAST_READ = 64 << 20
"""The least bytes to read to find out how fast the memory is, if the L2 is small."""
_LARGEST = 64 << 20
"""From this size on, many blocks read a tensor at once, and more bytes do not make it faster."""


class Probes:
    """The probes of one worker's device. `said` is why a probe does not work, to be logged. Empty while all do."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        self._engine, self._policy = engine, policy
        self._memory: dict[int, float] = {}
        self._failed: set[str] = set()
        self.said = ""

    def clock_mhz(self) -> float:
        """The multiprocessors' clock now, or 0 when nothing tells."""
        cycles = self._policy.on_gpu.probe_cycles
        return (cycles and self._try("clock", lambda: self._engine.clock_mhz(cycles))) or 0.0

    def rotation(self, cold: Sequence[Any], last_cache: int) -> str:
        """What is wrong with a rotation of the storages of cold tensors. Empty when they are cold.

        They are not cold if they do not fill the L2 as often as the policy wants, or if the same kernel reads them
        faster than memory. `last_cache` is the L2's bytes.
        """
        held, wanted = sum(int(c.numel()) for c in cold), self._policy.cold_factor * last_cache
        if not cold:
            return ""
        if not last_cache:
            return "not known to be cold: nothing tells the size of the L2"
        if held < wanted:
            return (
                f"not all cold: the copies of cold tensors hold only {_mib(held)} of the {_mib(wanted)} that are wanted"
            )
        return self._try("read", lambda: self._warm(cold, wanted)) or ""

    def _warm(self, cold: Sequence[Any], wanted: float) -> str:
        """What is wrong if the copies are read faster than equally large tensors that hold as many bytes of memory."""
        size = min(max(int(c.numel()) for c in cold), _LARGEST)
        rate = self._engine.read_rate(cold)
        for again in (False, True):
            if rate and (again or size not in self._memory):
                self._memory[size] = max(self._memory.get(size, 0.0), self._read_memory(size, wanted))
            if rate <= self._policy.on_gpu.read_limit * self._memory.get(size, 0.0):
                return ""
        return (
            f"not cold: a read probe of the copies of cold tensors ran at {rate:.0f} GB/s, "
            f"memory at {self._memory[size]:.0f} GB/s"
        )

    def _read_memory(self, size: int, wanted: float) -> float:
        """Bytes per ns at which tensors of `size` bytes are read. There are so many of them that no cache helps."""
        count = -(-max(int(2 * wanted), _LEAST_READ) // size)
        memory: Any = torch.zeros(count * size, dtype=torch.uint8, device=self._engine.device)
        try:
            return self._engine.read_rate(memory.split(size))
        finally:
            del memory
            if self._engine.device.type == "cuda":
                torch.cuda.empty_cache()  # memory that torch keeps would be missing in the other worker

    def _try(self, name: str, probe: Callable[[], Any]) -> Any:
        """What a probe tells, or None when it has failed once. A fault of the device is raised."""
        if name in self._failed:
            return None
        try:
            self._engine.forget()  # what a candidate left behind is no error of the probe
            return probe()
        except FaultError:
            raise
        except Exception as error:  # any objection of a version of torch
            self._engine.forget()
            self._failed.add(name)
            first = str(error).partition("\n")[0]
            self.said = f"the {name} probe of the GPU does not work here: {type(error).__name__}: {first}"
            return None


def _mib(size: float) -> str:
    return f"{size / (1 << 20):.1f} MiB"
