"""Watches a GPU from the bench's process: waits while others use it, and says when samples were spoiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aot_tune.bench.devices.nvml import POWER_CAP, REASONS, Gpu
from aot_tune.bench.protocol.measurement_records import Device, DeviceState, GpuTiming
from aot_tune.support.errors import WorkerError

__all__ = ["GpuMonitor"]

_IDLE_STEP = 0.5
_COUNT_SECONDS = 1.0


class GpuMonitor:
    """See `family.Monitor`. `gpu` is None if there is no NVML. Tests pass their own `sleep`.

    A GPU that stays slow is measured as it is.
    """

    def __init__(
        self,
        device: Device,
        log: Callable[[str], None],
        gpu: Gpu | None,
        rules: GpuTiming,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._device, self._log, self._gpu, self._rules, self._sleep = device, log, gpu, rules, sleep
        self._expected = (gpu.max_sm_mhz() or 0) if gpu is not None else 0
        self._in_a_row = self._recoveries = 0
        self._capped_ns = gpu.capped_ns() if gpu is not None else None
        self._others, self._counted = 0, -_COUNT_SECONDS
        self._told: set[str] = set()

    def begin(self) -> None:
        """Refuses a GPU that serves no second process. Waits for a busy GPU, but not for ever."""
        if self._gpu is None:
            self._say("NVML is not here: clocks, temperature and other processes of the GPU are not watched")
            return
        if self._expected and self._capped_ns is None:
            self._say(
                "NVML does not count the time under the power cap here: large products may be timed again after pauses"
            )
        mode = self._gpu.compute_mode()
        if mode:
            prohibited = mode == 2
            raise WorkerError(
                f"{self._device.name} ({self._device.unit}) is in compute mode "
                f"{'prohibited' if prohibited else 'exclusive'}",
                why="no process may use it"
                if prohibited
                else "candidates and the frameworks they are compared with are two processes on it",
                fix=f"`nvidia-smi -i {self._device.unit} -c DEFAULT` as administrator, or leave it out of "
                "CUDA_VISIBLE_DEVICES",
            )
        waited = 0.0
        while (others := self._busy(self._gpu)) >= 0:
            if waited >= self._rules.busy_seconds:
                self._say(
                    f"noisy: {self._device.name} is still busy after {waited:.0f} s, with {others} other processes; "
                    "measuring anyway"
                )
                return
            if not waited:
                self._say(f"{self._device.name} is busy, {others} other processes use it: waiting")
            self._sleep(_IDLE_STEP)
            waited += _IDLE_STEP

    def _busy(self, gpu: Gpu) -> int:
        """How many other processes use the GPU while it computes, or -1 when it is idle."""
        percent = gpu.utilization()
        others = len(gpu.processes())
        busy = percent >= self._rules.busy_percent if percent is not None else others > 0
        return others if busy else -1

    def read(self, workers: Sequence[int]) -> DeviceState | None:
        """Clocks, temperature, power, reasons, and how many processes beside `workers` have a context.

        The power cap is one of the reasons if it held the clocks down at any time since the last reading.
        """
        gpu = self._gpu
        if gpu is None:
            return None
        return DeviceState(
            sm_mhz=gpu.sm_mhz() or 0,
            memory_mhz=gpu.memory_mhz() or 0,
            celsius=gpu.celsius() or 0,
            watts=round((gpu.milliwatts() or 0) / 1000, 1),
            reasons=(gpu.reasons() or 0) | (POWER_CAP if self._was_capped(gpu) else 0),
            others=self._count(gpu, workers),
        )

    def _was_capped(self, gpu: Gpu) -> bool:
        before, self._capped_ns = self._capped_ns, gpu.capped_ns()
        return before is not None and self._capped_ns is not None and self._capped_ns > before

    def _count(self, gpu: Gpu, workers: Sequence[int]) -> int:
        """Other processes on the GPU. NVML is slow to list them, so the answer is kept for a second."""
        if time.monotonic() - self._counted >= _COUNT_SECONDS:
            self._others, self._counted = _others(gpu.processes(), workers), time.monotonic()
            if self._others:
                self._say(f"noisy: other processes use {self._device.name} during measurements; the records note it")
        return self._others

    def spoiled(self, state: DeviceState | None) -> str:
        """Thermal and hardware slowdowns, and clocks that fell without a stated reason.

        A slowdown that lasts is accepted in the end. A clock that stays low is then the expected clock.
        """
        why = self._why(state) if state is not None else ""
        if not why or state is None:
            self._in_a_row = 0
            return ""
        self._in_a_row += 1
        if self._in_a_row > 3 or self._recoveries >= self._rules.recoveries:
            self._say(f"noisy: {self._device.name}: {why}, which does not pass; its times are kept")
            if "clock" in why:
                self._expected = state.sm_mhz
            self._in_a_row = 0
            return ""
        return why

    def _why(self, state: DeviceState) -> str:
        dropped = state.reasons & self._rules.dropped
        if dropped:
            names = [name for bit, name in REASONS.items() if dropped & bit] or [f"clock event reasons {dropped:#x}"]
            return f"{names[0]} at {state.celsius} C, {state.sm_mhz} MHz"
        low = 0 < state.sm_mhz < self._rules.least_clock * self._expected
        if low and not state.reasons & self._rules.kept:
            return f"a clock of {state.sm_mhz} MHz instead of {self._expected}"
        return ""

    def capped(self, state: DeviceState) -> bool:
        """Whether the software power cap acts. Large matrix products reach it."""
        return bool(state.reasons & POWER_CAP)

    def recover(self, why: str) -> None:
        """Let the GPU cool down, and say why."""
        self._recoveries += 1
        self._log(
            f"{self._device.name}: {why}: what was just timed is timed again in "
            f"{self._rules.recovery_seconds:g} s ({self._recoveries} of at most {self._rules.recoveries} times)"
        )
        self._sleep(self._rules.recovery_seconds)

    def _say(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._log(line)


def _others(pids: Sequence[int], workers: Sequence[int]) -> int:
    """Processes that are not the bench's. In a container NVML may number them otherwise. Then they are only counted."""
    known = set(pids) & set(workers)
    if known or not workers:
        return len(set(pids) - set(workers))
    return max(len(set(pids)) - len(workers), 0)
