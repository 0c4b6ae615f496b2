"""How long the bytes or the operations of a call take at the device's peaks: its roofline, and the floor of all times.

Well-known GPUs have the peaks of their data sheets, dense and without sparsity. Other devices have the generous peaks
that also expose impossible times. Both follow from the device's record alone, so a replay says the same on every
machine.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.spec import Operator, Problem

__all__ = ["Roofline", "floor_of", "roofline_of"]


class Roofline(NamedTuple):
    """`ns` is the least time by the peaks, and `of` names the peaks.

    `bound` is what takes it, or empty if they cannot tell.
    """

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


def roofline_of(device: Device, operator: Operator, problem: Problem) -> Roofline | None:
    """The roofline of a call. None if nothing is known of the device, or if the call does nothing."""
    flops, size = operator.flops.evaluate(operator.facts(problem)), operator.compulsory_bytes(problem)
    math = _math_of(operator, problem)
    sheet = _SHEETS.get(device.name)
    if sheet is not None:
        rate = sheet.rates.get(math, sheet.rates["f32"])
        moving, computing = size / sheet.memory, flops / (1e3 * rate)
        bound = "memory" if moving >= computing else "compute"
        roofline = Roofline(max(moving, computing), bound, f"{device.name}'s data sheet")
    else:  # these peaks are too generous to say what bounds a call
        plain = msgspec.structs.replace(device, unit="")  # a driver may tell its clocks, but the record has none
        own = family(device.family)
        roofline = Roofline(own.floor_ns(plain, flops, size, math), "", f"generous peaks of {device.name}{own.peaks}")
    return roofline if roofline.ns > 0 else None


def floor_of(device: Device, operator: Operator, problem: Problem) -> float:
    """A time in ns per call. No true measurement of an operator on a problem and a device is below it."""
    flops = operator.flops.evaluate(operator.facts(problem))
    math = _math_of(operator, problem)
    return family(device.family).floor_ns(device, flops, operator.compulsory_bytes(problem), math)


def _math_of(operator: Operator, problem: Problem) -> str:
    """What an operator computes in on a problem: the dtype of its first input, or `tf32` if f32 may be computed so."""
    math = operator.dtype(problem, operator.inputs[0]).name if operator.inputs else "f32"
    return problem.attributes.get("math", math) if math == "f32" else math
