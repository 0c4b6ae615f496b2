"""Answers, in a process without a GPU, for packages that ask about the device when they are imported.

Packages choose configs by these numbers and store them in globals, so the code of a target depends on them. So they are
the numbers of one named device for each target, the same on every machine. Torch's answers are installed only when a
package imports torch.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from aot_tune.support.errors import ToolchainError

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
    """The device that stands for a target. Raises ToolchainError when Triton does not have the target."""
    return DEVICES[target_of(name)[0]]


class TorchDtype:
    """An element type for when torch is not loaded, recognised by torch's name for it. `itemsize` is in bytes."""

    def __init__(self, name: str, itemsize: int) -> None:
        self._name, self.itemsize, self.is_floating_point = f"torch.{name}", itemsize, "float" in name

    def __repr__(self) -> str:
        return self._name

    def __eq__(self, other: object) -> bool:
        return str(other) == self._name

    def __hash__(self) -> int:
        return hash(self._name)


def stand_in(device: DeviceFacts) -> None:
    """Make torch answer for a device that does not exist here, for the rest of this process."""
    if "torch" in sys.modules:
        _replace(sys.modules["torch"], device)
    else:
        sys.meta_path.insert(0, _Finder(device))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch where it would be found anyway, and changes it as soon as it is loaded."""

    def __init__(self, device: DeviceFacts) -> None:
        self._device = device

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run, device = spec.loader.exec_module, self._device

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                _replace(module, device)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _replace(torch: Any, device: DeviceFacts) -> None:
    properties = types.SimpleNamespace(
        name=device.name,
        major=device.capability[0],
        minor=device.capability[1],
        multi_processor_count=device.multiprocessors,
        total_memory=device.memory,
        shared_memory_per_block=48 << 10 if device.backend == "cuda" else device.shared,
        shared_memory_per_block_optin=device.shared,
        shared_memory_per_multiprocessor=device.shared_unit,
        max_threads_per_multi_processor=device.threads_unit,
        max_threads_per_block=1024,
        regs_per_multiprocessor=device.registers_unit,
        warp_size=device.warp_size,
        L2_cache_size=device.cache,
        gcnArchName=str(device.arch) if device.backend == "hip" else "",
    )
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": device.name,
        "get_device_capability": device.capability,
        "get_device_properties": properties,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_given, answer=answer, **_named: answer)
    if device.backend == "hip":
        torch.version.hip, torch.version.cuda = "6.4", None
    elif torch.version.cuda is None:
        torch.version.cuda = "12.8"
