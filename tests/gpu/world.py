"""The library that scenarios run on, and calls of it that are expected to fail."""

import importlib.machinery
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from problems import Case

from aot_tune.spec import Operator, problem
from aot_tune.spec.load_operators import load_operator

BF16 = {"T": "bf16"}


def load(path: str) -> Any:
    """The library's Python module; nothing of the GPU is touched."""
    loader = importlib.machinery.ExtensionFileLoader("ops", path)
    spec = importlib.util.spec_from_file_location("ops", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class World:
    """A scenario's library and operators."""

    def __init__(self, module: str, templates: str) -> None:
        self.ops, self.templates = load(module), Path(templates)

    def operator(self, name: str) -> Operator:
        return load_operator(self.templates / name)

    def case(self, name: str, seed: int = 0, layout: str = "dense", **given: Any) -> Case:
        """A call; dims by name, and `present`, `attributes`, `order`, `dtypes`."""
        operator = self.operator(name)
        return Case(operator, problem(**{"dtypes": BF16 if operator.dtypes else {}, **given}), layout, seed)

    def usual(self, seed: int = 0) -> list[Case]:
        """A call of each operator of the library."""
        linear = {"order": {"b": (1, 0)}}
        found = {
            "gemm": dict(M=16, N=1024, K=1024, present=["bias"], attributes={"activation": "gelu"}, **linear),
            "softmax": {"R": 64, "D": 4096},
            "rms_norm": {"R": 64, "D": 4096, "present": ["weight"]},
            "layer_norm": {"R": 64, "D": 1024, "present": ["weight", "bias"]},
            "silu_mul": {"R": 64, "D": 4096},
            "batched_gemm": {"B": 8, "M": 128, "N": 128, "K": 64, "order": {"b": (0, 2, 1)}},
        }
        return [self.case(name, seed, **given) for name, given in found.items() if name in self.ops.operators]


def refused(errors: tuple[type[Exception], ...], function: Callable[..., Any], *given: Any, **named: Any) -> None:
    """The call must raise one of the errors, with a text."""
    try:
        function(*given, **named)
    except errors as error:
        if str(error):
            return
    raise AssertionError(f"{function} of {given} {named} was not refused")
