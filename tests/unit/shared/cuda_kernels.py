"""CUDA kernels that are compiled for the host and called on arrays of numpy."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bundled import RENDERER
from host_compiler import CUDA, shared_object

from aot_tune.bench.worker.loaded_objects import Arguments
from aot_tune.render import candidate_for
from aot_tune.spec import Config, Operator, Target


class CudaKernel:
    """A kernel of an operator without workspace, in one config and one dtype, compiled below `folder`.

    `before` goes in front of the source: it includes warps.h, and defines what the kernel takes from CUDA's headers.
    """

    def __init__(
        self,
        folder: Path,
        operator: Operator,
        kernel: str,
        target: Target,
        config: Config | None = None,
        dtypes: Mapping[str, str] | None = None,
        before: str = '#include "warps.h"\n',
    ) -> None:
        candidate = candidate_for(operator, operator.kernel(kernel), dict(config or {}), target, dtypes=dtypes)
        rendered = RENDERER.render(operator, candidate, target)
        source = folder / f"{rendered.symbol}.cpp"
        source.write_text(before + rendered.source)
        self.operator = operator.concrete(candidate.dtypes)
        self._launch = ctypes.CDLL(str(shared_object(source, *CUDA)))[f"{rendered.symbol}_launch"]

    def __call__(self, scalars: Mapping[str, float] | None = None, **arrays: Any) -> int:
        """Call it on arrays by the names of tensors; what it returns.

        `scalars` may also have indices of attributes, which are 0 otherwise.
        """
        arguments = Arguments(
            self.operator,
            {n: a.ctypes.data for n, a in arrays.items()},
            {n: a.shape for n, a in arrays.items()},
            {n: tuple(s // a.itemsize for s in a.strides) for n, a in arrays.items()},
            dict(scalars or {}),
            {x.name: int((scalars or {}).get(x.name, 0)) for x in self.operator.attributes},
        )
        return int(self._launch(*arguments.launch(None)))
