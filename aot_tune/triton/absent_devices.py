"""Answers, in a process without a GPU, for packages that ask about the device when they are imported.

Packages choose configs by these numbers and store them in globals, so the code of a target depends on them. So they are
the numbers of one named device for each target, the same on every machine.
"""

from __future__ import annotations

import dataclasses

from aot_tune.support.errors import ToolchainError

__all__ = ["DEVICES", "DeviceFacts", "device_of", "target_of"]

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


@dataclasses.dataclass(frozen=True)
class DeviceFacts:
    """A device. Sizes are in bytes: `shared` is the limit of a block, `shared_unit` that of a multiprocessor.


    `arch` is Triton's name of it: 90, or gfx942.
    """

    name: str
    arch: int | str
    capability: tuple[int, int]
    multiprocessors: int
    shared: int
    shared_unit: int
    cache: int
    memory: int
    warp_size: int = 32
    threads_unit: int = 2048
    registers_unit: int = 65536

    @property
    def backend(self) -> str:
        """Triton's name of the family."""
        return "cuda" if isinstance(self.arch, int) else "hip"


# For each architecture, the most used data-centre device. NVIDIA: the table of compute capabilities in the
# CUDA C++ programming guide, and the architecture white papers (A100, A10, L40S, H100 SXM, B200, RTX PRO 6000). AMD:
# the data sheets of MI250X (one of its two dies), MI300X and MI355X, and the CDNA 2, 3 and 4 ISA guides.
DEVICES = {
    "80": DeviceFacts("NVIDIA A100-SXM4-80GB", 80, (8, 0), 108, 163 * _KIB, 164 * _KIB, 40 * _MIB, 80 * _GIB),
    "86": DeviceFacts("NVIDIA A10", 86, (8, 6), 72, 99 * _KIB, 100 * _KIB, 6 * _MIB, 24 * _GIB, threads_unit=1536),
    "89": DeviceFacts("NVIDIA L40S", 89, (8, 9), 142, 99 * _KIB, 100 * _KIB, 96 * _MIB, 48 * _GIB, threads_unit=1536),
    "90": DeviceFacts("NVIDIA H100 80GB HBM3", 90, (9, 0), 132, 227 * _KIB, 228 * _KIB, 50 * _MIB, 80 * _GIB),
    "100": DeviceFacts("NVIDIA B200", 100, (10, 0), 148, 227 * _KIB, 228 * _KIB, 126 * _MIB, 180 * _GIB),
    "120": DeviceFacts(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        120,
        (12, 0),
        188,
        99 * _KIB,
        100 * _KIB,
        128 * _MIB,
        96 * _GIB,
        threads_unit=1536,
    ),
    "gfx90a": DeviceFacts(
        "AMD Instinct MI250X", "gfx90a", (9, 0), 110, 64 * _KIB, 64 * _KIB, 8 * _MIB, 64 * _GIB, 64, 2048, 131072
    ),
    "gfx942": DeviceFacts(
        "AMD Instinct MI300X", "gfx942", (9, 4), 304, 64 * _KIB, 64 * _KIB, 4 * _MIB, 192 * _GIB, 64, 2048, 131072
    ),
    "gfx950": DeviceFacts(
        "AMD Instinct MI355X", "gfx950", (9, 5), 256, 160 * _KIB, 160 * _KIB, 4 * _MIB, 288 * _GIB, 64, 2048, 131072
    ),
}


def target_of(name: str) -> tuple[str, bool]:
    """The architecture that a target is compiled for, a key of `DEVICES`; and whether it is compiled to PTX.

    Raises:
        ToolchainError: when Triton does not have the target.
    """
    family, _, rest = name.partition("-")
    virtual = rest.startswith("ptx_")
    arch = rest.removeprefix("sm_").removeprefix("ptx_")
    # From level 90 on, Triton compiles for exactly one device (the `a` of sm_90a). sm_90 has no other device. sm_100
    # and
    # sm_120 have others, and Triton cannot compile code for all of them.
    if family == "cuda" and arch.removesuffix("a") in DEVICES and arch not in ("100", "120", "80a", "86a", "89a"):
        return arch.removesuffix("a"), virtual
    if family == "hip" and rest in DEVICES:
        return rest, False
    fix = f"use {name}a" if name in ("cuda-sm_100", "cuda-sm_120") else "leave it out of AOT_TUNE_TARGETS"
    raise ToolchainError(f"Triton cannot compile for {name}", why="its code runs on only one architecture", fix=fix)


def device_of(name: str) -> DeviceFacts:
    """The device that stands for a target.

    Raises:
        ToolchainError: when Triton does not have the target.
    """
    return DEVICES[target_of(name)[0]]
