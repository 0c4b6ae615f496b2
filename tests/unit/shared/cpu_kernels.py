"""Kernels for CPUs that are compiled and called on arrays of numpy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aot_tune.bench.worker.cpu_engine import Region
from aot_tune.bench.worker.loaded_objects import Arguments, load
from aot_tune.compile.cxx import CxxToolchain
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import Config, Operator, Target

TOOLCHAIN = CxxToolchain()
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
        size = self._loaded.workspace_bytes(arguments)
        workspace = Region(size) if size else None
        if workspace is not None:
            workspace.storage.fill(0xFF)
        return self._loaded.launch(*arguments.launch(workspace))
