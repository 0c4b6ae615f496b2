"""Kernels for CPUs that are compiled and called on arrays of numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aot_tune.bench.worker.cpu_engine import Region
from aot_tune.bench.worker.loaded_objects import Arguments, load
from aot_tune.compile.cxx import TOOLCHAIN
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import Config, Operator, Target

__all__ = ["TARGETS", "CpuKernel", "bf16_bits", "bf16_values"]

TARGETS = TOOLCHAIN.native()
"""Those that this machine runs."""


class CpuKernel:
    """A kernel of an operator in one config and one dtype, compiled for a target below `folder`."""

    def __init__(
        self,
        folder: Path,
        roots: Sequence[Path],
        operator: Operator,
        kernel: str,
        target: Target,
        config: Config | None = None,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        candidate = candidate_for(operator, operator.kernel(kernel), dict(config or {}), target, dtypes=dtypes)
        rendered = Renderer(roots).render(operator, candidate, target)
        place = folder / rendered.symbol
        place.mkdir()
        out = place / "candidate.o"
        outcome = TOOLCHAIN.compile(rendered.source, target, out, timeout=120)
        assert outcome.status == "ok", outcome.log
        TOOLCHAIN.link_shared([out], place / "candidate.so")
        self.operator, self.source = operator.concrete(candidate.dtypes), rendered.source
        self.path, self.symbol = place / "candidate.so", rendered.symbol
        self._loaded = load(self.path, self.symbol)

    def __call__(self, scalars: Mapping[str, float] | None = None, **arrays: Any) -> int:
        """Call it on arrays (of bf16 those of their bits) by the names of tensors; what it returns."""
        arguments = Arguments(
            self.operator,
            {n: a.ctypes.data for n, a in arrays.items()},
            {n: a.shape for n, a in arrays.items()},
            {n: tuple(s // a.itemsize for s in a.strides) for n, a in arrays.items()},
            {s.name: s.sample for s in self.operator.scalars} | dict(scalars or {}),
            {},
        )
        size = self._loaded.workspace_bytes(arguments)
        workspace = Region(size) if size else None
        if workspace is not None:
            workspace.storage.fill(0xFF)
        return self._loaded.launch(*arguments.launch(workspace))


def bf16_bits(values: Any) -> Any:
    """The bits of the nearest bf16, ties to even, worked out in integers; NaN becomes one."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), nearest)


def bf16_values(bits: Any) -> Any:
    """What bits of bf16 stand for."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)
