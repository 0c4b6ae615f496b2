"""Python imports this as it starts on the nodes of these tests: a node with STUB_GPU has a GPU that is the host.

STUB_GPU is `name|capability|unit`. Processes that Ray has given no GPU see none, as with a driver. Workers do not
get the variable. They use the host's memory and clock.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class _Patched(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Changes a module once it is imported."""

    def __init__(self, module: str, change: Callable[[Any], None]) -> None:
        self._module, self._change = module, change
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        assert self._loader is not None
        self._loader.exec_module(module)
        self._change(module)


def _with_stub(module: Any) -> None:
    """Have the module that asks the driver answer for it."""
    name, capability, unit = os.environ["STUB_GPU"].split("|")
    gpu = module.CudaDevice(
        ordinal=0,
        name=name,
        uuid=unit,
        capability=int(capability),
        sm_count=1,
        l2_bytes=1 << 16,
        memory_bytes=1 << 30,
        shared_bytes=1 << 16,
    )
    found = module.DeviceQuery(devices=(gpu,), driver=13000, driver_text="580.1")
    module.query_with = lambda asked: found if dict(asked).get("CUDA_VISIBLE_DEVICES") else module.DeviceQuery()
    module.check_torch = lambda _built_for, _driver: None  # a torch of the CPU will do


def _on_host(module: Any) -> None:
    tests = Path(__file__).resolve().parents[1]
    sys.path += [str(tests / "unit" / "shared"), str(tests)]
    from host_engine import HostEngine

    module.GpuStream = HostEngine


if os.environ.get("STUB_GPU"):
    sys.meta_path.insert(0, _Patched("aot_tune.compile.visible_gpus", _with_stub))
sys.meta_path.insert(0, _Patched("aot_tune.bench.worker.cuda_engine", _on_host))
