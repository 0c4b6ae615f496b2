"""How long the bytes or the operations of a call take at the device's peaks: its roofline, and the floor of all times.

Well-known GPUs have the peaks of their data sheets, dense and without sparsity. On other devices, bytes take as long as
in the fastest calls that were measured there, and operations have the generous peaks that also expose impossible times.
All follows from records alone, so a replay says the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.spec import Operator, Problem

_STREAMS = 2.0
"""Calls with at most so many operations for a byte show how fast bytes move."""


class Roofline(NamedTuple):
    """`ns` is the least time by the peaks that `of` names; `bound` is what takes it, or empty."""

    ns: float
    bound: str
    of: str


class _Sheet(NamedTuple):
    """GB/s of the memory, and TFLOP/s by the dtype of the factors. Narrow dtypes are summed in f32."""

    memory: float
    rates: dict[str, float]


def _rates(f16: float, tf32: float, f32: float, f64: float, i8: float) -> dict[str, float]:
    return {"f16": f16, "bf16": f16, "tf32": tf32, "f32": f32, "f64": f64, "i8": i8, "u8": i8}


_HOPPER = _rates(989.4, 494.7, 66.9, 66.9, 1978.9)
_HOPPER_NVL = _rates(835.0, 417.5, 60.0, 60.0, 1671.0)
_AMPERE = _rates(312.0, 156.0, 19.5, 19.5, 624.0)
_SHEETS = {
    "NVIDIA B200": _Sheet(8000.0, _rates(2250.0, 1125.0, 75.0, 37.0, 4500.0)),
    "NVIDIA H200": _Sheet(4800.0, _HOPPER),
    "NVIDIA H200 NVL": _Sheet(4800.0, _HOPPER_NVL),
    "NVIDIA H100 80GB HBM3": _Sheet(3352.0, _HOPPER),
    "NVIDIA H100 NVL": _Sheet(3938.0, _HOPPER_NVL),
    "NVIDIA H100 PCIe": _Sheet(2039.0, _rates(756.0, 378.0, 51.2, 51.2, 1513.0)),
    "NVIDIA A100-SXM4-80GB": _Sheet(2039.0, _AMPERE),
    "NVIDIA A100 80GB PCIe": _Sheet(1935.0, _AMPERE),
    "NVIDIA A100-SXM4-40GB": _Sheet(1555.0, _AMPERE),
    "NVIDIA A100-PCIE-40GB": _Sheet(1555.0, _AMPERE),
    "NVIDIA L40S": _Sheet(864.0, _rates(362.0, 183.0, 91.6, 1.4, 733.0)),
    "NVIDIA L4": _Sheet(300.0, _rates(121.0, 60.0, 30.3, 0.5, 242.0)),
    "NVIDIA A10": _Sheet(600.0, _rates(125.0, 62.5, 31.2, 0.98, 250.0)),
}
"""By the name that the driver gives."""


class TimedCall(NamedTuple):
    """A call that took `ns` on the device with that digest."""

    device: str
    operator: Operator
    problem: Problem
    ns: float


class _Moved(NamedTuple):
    """Bytes of a call that come from the memory, and others. As rates, GB/s; 0 where nothing tells."""

    memory: float
    caches: float


class Peaks:
    """The peaks of devices, by their digests. `calls` show how fast bytes move."""

    def __init__(self, devices: Mapping[str, Device], calls: Iterable[TimedCall] = ()) -> None:
        self._devices = devices
        self._rates: dict[str, _Moved] = {}
        for device, operator, problem, ns in calls:
            size = operator.compulsory_bytes(problem)
            if device in devices and ns and operator.flops.evaluate(operator.facts(problem)) <= _STREAMS * size:
                moved, (memory, caches) = _moved(devices[device], operator, problem), self._rates.get(device, (0, 0))
                if not moved.caches:
                    memory = max(memory, size / ns)
                elif moved.memory < moved.caches:
                    caches = max(caches, size / ns)
                self._rates[device] = _Moved(memory, caches)

    def roofline(self, digest: str, operator: Operator, problem: Problem) -> Roofline | None:
        """The roofline of a call on a device. None if nothing is known of it, or if the call does nothing."""
        device = self._devices.get(digest)
        if device is None:
            return None
        flops, size = operator.flops.evaluate(operator.facts(problem)), operator.compulsory_bytes(problem)
        math = _math_of(operator, problem)
        sheet = _SHEETS.get(device.name)
        if sheet is not None:
            rate = sheet.rates.get(math, sheet.rates["f32"])
            moving, computing = size / sheet.memory, flops / (1e3 * rate)
            bound = "memory" if moving >= computing else "compute"
            roofline = Roofline(max(moving, computing), bound, f"{device.name}'s data sheet")
        else:  # generous peaks cannot tell that operations bound a call
            plain = msgspec.structs.replace(device, unit="")  # a driver may tell its clocks, but the record has none
            least = family(device.family).floor_ns(plain, flops, size, math)
            rates = self._rates.get(digest, _Moved(0, 0))
            moved = _moved(device, operator, problem)
            moving = sum(count / rate for count, rate in zip(moved, rates, strict=True) if rate)
            roofline = Roofline(max(moving, least), "memory" if moving >= least else "", _named(device, rates))
        return roofline if roofline.ns > 0 else None


def _named(device: Device, rates: _Moved) -> str:
    """Peaks in words."""
    own = family(device.family)
    seen = [f"{rate:.3g} GB/s from {where}" for where, rate in rates._asdict().items() if rate]
    bytes_as = f"; {', '.join(seen)}, as in the fastest calls here" if seen else ", bytes as if from L1" * own.on_host
    return f"generous peaks of {device.name}{own.peaks}{bytes_as}"


def _moved(device: Device, operator: Operator, problem: Problem) -> _Moved:
    """What comes from the memory: what is cold or does not fit in the last cache; all, if it would not fit twice."""
    size, cache = operator.compulsory_bytes(problem), family(device.family).cache_of(device)
    far = max(operator.compulsory_bytes(problem, cold=True), size - cache) if size < 2 * cache else size
    return _Moved(far, size - far)


def floor_of(device: Device, operator: Operator, problem: Problem) -> float:
    """A time in ns per call. No true measurement of an operator on a problem and a device is below it."""
    flops = operator.flops.evaluate(operator.facts(problem))
    math = _math_of(operator, problem)
    return family(device.family).floor_ns(device, flops, operator.compulsory_bytes(problem), math)


def _math_of(operator: Operator, problem: Problem) -> str:
    """What an operator computes in on a problem: the dtype of its first input, or `tf32` if f32 may be computed so."""
    math = operator.dtype(problem, operator.inputs[0]).name if operator.inputs else "f32"
    return problem.attributes.get("math", math) if math == "f32" else math
