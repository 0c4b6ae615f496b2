"""Small projects whose kernels are functions of sources, loaded, rendered, and run on the host."""

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dltensors import F32, Given
from host_compiler import CUDA, shared_object
from numpy.typing import NDArray

from aot_tune.compile.programs import option_flags
from aot_tune.compile.toolchain import target_by_name
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operator

HEAD = "from aot_tune.spec import *\n\nR, D = dims('R D')\n"
FIELDS = """
operator = Operator(
    name="own",
    dims=("R", "D"),
    tensors=(Tensor("x", (R, D)), Tensor("out", (R, D), output=True)),
    scalars=(Scalar("factor"),),
    reference=lambda xp, call: {"out": call.x * call.factor},
    flops=R * D,
    workload=(problem(R=3, D=5),),
    kernels=kernels,
)
"""


def project(folder: Path, kernels: str, sources: Mapping[str, str], head: str = HEAD, fields: str = FIELDS) -> Path:
    """A project with one operator; `kernels` is the text behind `kernels =`. Returns the operator's folder."""
    own = folder / "templates" / "own"
    own.mkdir(parents=True, exist_ok=True)
    (folder / "CMakeLists.txt").touch()
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (own / "operator.py").write_text(f"{head}\nkernels = {kernels}\n{fields}")
    return own


def rendered(own: Path, kernel: str, target: str, **config: Any) -> tuple[Operator, Rendered]:
    """The operator of a folder, and a candidate: the config that has these values."""
    operator = load_operator(own)
    declared, to = operator.kernel(kernel), target_by_name(target)
    chosen = next(c for c in declared.configs(to.facts) if all(c[n] == v for n, v in config.items()))
    return operator, Renderer([own.parent]).render(operator, candidate_for(operator, declared, chosen, to, None), to)


class OnHost:
    """A CUDA candidate that runs on the host."""

    def __init__(self, folder: Path, made: Rendered) -> None:
        folder.mkdir()
        (folder / "candidate.cpp").write_text(made.source)
        program = shared_object(folder / "candidate.cpp", *CUDA, *option_flags(made.compile, folder))
        self._library, self._symbol = ctypes.CDLL(str(program)), made.symbol
        self._library.noted.restype = ctypes.c_char_p
        self.workspace = 0

    def __call__(self, tensors: Sequence[NDArray[np.float32] | None], *numbers: Any) -> int:
        """Asks for the workspace, and launches; what the launch returns."""
        given = [None if t is None else _given(t) for t in tensors]
        passed = [None if g is None else ctypes.byref(g.tensor) for g in given]
        size = ctypes.c_size_t()
        assert getattr(self._library, f"{self._symbol}_workspace")(*passed, *numbers, ctypes.byref(size)) == 0
        self.workspace = size.value
        memory = np.full(size.value + 256, 0xFF, np.uint8)
        at = ctypes.c_void_p(memory.ctypes.data)
        code = getattr(self._library, f"{self._symbol}_launch")(*passed, *numbers, at, size, None)
        assert (memory[size.value :] == 0xFF).all()
        return int(code)

    @property
    def noted(self) -> list[str]:
        text: bytes = self._library.noted()
        return text.decode().splitlines()


def _given(array: NDArray[np.float32]) -> Given:
    strides = tuple(s // array.itemsize for s in array.strides)
    return Given(array.ctypes.data, array.shape, strides, F32)
