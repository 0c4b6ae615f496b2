"""Kernels for CPUs, and CUDA kernels by a stand-in for CUDA, compiled and called on arrays of numpy."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bundled import RENDERER
from host_compiler import CUDA, shared_object

from aot_tune.bench.worker.cpu_engine import Region
from aot_tune.bench.worker.loaded_objects import Arguments, load
from aot_tune.compile import target_by_name
from aot_tune.compile.cxx import CxxToolchain
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Config, Operator, Target

TOOLCHAIN = CxxToolchain({**os.environ, "CXX": "g++ -Wall -Wextra -Werror"})
TARGETS = TOOLCHAIN.native()
"""Those that this machine runs."""
HOPPER = target_by_name("cuda-sm_90a")


class CpuKernel:
    """A kernel of an operator in one config and one dtype, compiled below `folder` for a target."""

    def __init__(
        self,
        folder: Path,
        operator: Operator,
        kernel: str,
        target: Target = TARGETS[0],
        config: Config | None = None,
        dtypes: Mapping[str, str] | None = None,
        renderer: Renderer = RENDERER,
    ) -> None:
        candidate = candidate_for(operator, operator.kernel(kernel), dict(config or {}), target, dtypes=dtypes)
        rendered = renderer.render(operator, candidate, target)
        self.operator, self.source, self.symbol = operator.concrete(candidate.dtypes), rendered.source, rendered.symbol
        place = folder / rendered.symbol
        place.mkdir()
        self.path = self._compiled(rendered, target, place)
        self._loaded = load(self.path, self.symbol)
        self.workspace: Any = None
        """What the last call left there."""

    def _compiled(self, rendered: Rendered, target: Target, folder: Path) -> Path:
        out = folder / "candidate.o"
        outcome = TOOLCHAIN.compile(rendered.source, target, out, timeout=120)
        assert outcome.status == "ok", outcome.log
        TOOLCHAIN.link_shared([out], folder / "candidate.so")
        return folder / "candidate.so"

    def __call__(self, scalars: Mapping[str, float] | None = None, **arrays: Any) -> int:
        """Call it on arrays (of bf16 those of their bits) by the names of tensors; what it returns.

        `scalars` may also have indices of attributes, which are 0 otherwise.
        """
        arguments = Arguments(
            self.operator,
            {n: a.ctypes.data for n, a in arrays.items()},
            {n: a.shape for n, a in arrays.items()},
            {n: tuple(s // a.itemsize for s in a.strides) for n, a in arrays.items()},
            {s.name: s.sample for s in self.operator.scalars} | dict(scalars or {}),
            {x.name: int((scalars or {}).get(x.name, 0)) for x in self.operator.attributes},
        )
        workspace = Region(self._loaded.workspace_bytes(arguments))
        workspace.storage.fill(0xFF)
        code = self._loaded.launch(*arguments.launch(workspace if workspace.size else None))
        assert not workspace.damage()
        self.workspace = workspace.storage.copy()
        return code


class CudaKernel(CpuKernel):
    """A CUDA kernel, compiled for the host.

    `before` goes in front of the source: it includes warps.h, and defines what the kernel takes from CUDA's headers.
    """

    def __init__(
        self,
        folder: Path,
        operator: Operator,
        kernel: str,
        target: Target = HOPPER,
        config: Config | None = None,
        dtypes: Mapping[str, str] | None = None,
        before: str = '#include "warps.h"\n',
    ) -> None:
        self._before = before
        super().__init__(folder, operator, kernel, target, config, dtypes)

    def _compiled(self, rendered: Rendered, target: Target, folder: Path) -> Path:
        (folder / "candidate.cpp").write_text(self._before + rendered.source)
        return shared_object(folder / "candidate.cpp", *CUDA)
