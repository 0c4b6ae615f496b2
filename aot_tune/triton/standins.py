"""Answers torch's questions about the device. They are installed only when a package imports torch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from aot_tune.triton.absent_devices import DeviceFacts

__all__ = ["stand_in"]


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
