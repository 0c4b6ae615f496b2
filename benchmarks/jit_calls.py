"""A call of a declared Triton function by Triton's own launcher: the arguments, the grid and the launch options."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aot_tune.render.triton.binding import Argument, bind, inspection_of
from aot_tune.render.triton.specialize import known_value
from aot_tune.spec import DTYPES, OPTIONS, Buffer, Config, Descriptor, Expr, Kernel, Operator, Problem

__all__ = ["JitCall"]


@dataclass(frozen=True)
class JitCall:
    """A config of a kernel on a problem. The operator is concrete, and the kernel is resolved for the target."""

    operator: Operator
    kernel: Kernel
    config: Config
    target: str
    problem: Problem

    def facts(self) -> dict[str, int]:
        """All that is known of the call and of the config."""
        config = {f"parameter.{n}": int(v) for n, v in self.config.items() if not isinstance(v, str)}
        return {**self.operator.facts(self.problem), **config}

    def arguments(self, tensors: Mapping[str, Any], multiprocessors: int = 1) -> dict[str, Any]:
        """What the JIT gets for the same call, by parameter. Launch options are not part of it."""
        facts = {**self.facts(), "device.multiprocessors": multiprocessors}
        passed = bind(self.operator, self.kernel, self.target)
        return {a.name: self._argument(a, facts, tensors) for a in passed}

    def _argument(self, a: Argument, facts: Mapping[str, int], tensors: Mapping[str, Any]) -> Any:
        readers: dict[str, Callable[[], Any]] = {
            "pointer": lambda: tensors.get(a.tensor),
            "integer": lambda: (bool if a.boolean else int)(known_value(a, self.config, facts)),
            "scalar": lambda: next(s.default for s in self.operator.scalars if s.name == a.value),
            "parameter": lambda: self.config[a.name],
            "constant": lambda: a.value,
            "buffer": lambda: _buffer(a.buffer, facts, next(iter(tensors.values())).device),
            "descriptor": lambda: _descriptor(a.descriptor, facts, tensors[a.tensor]),
            "dtype": lambda: getattr(_module("triton.language"), self.operator.tensor(a.tensor).dtype.torch),
        }
        return readers[a.kind]()

    def grid(self, arguments: Mapping[str, Any], multiprocessors: int = 1) -> tuple[int, int, int]:
        """Blocks along each axis."""
        assert self.kernel.triton is not None
        given, facts = self.kernel.triton.grid, {**self.facts(), "device.multiprocessors": multiprocessors}
        extents = given({**arguments, **self.config}) if callable(given) else given
        whole = [e.evaluate(facts) if isinstance(e, Expr) else int(e) for e in extents]
        return tuple([*whole, 1, 1][:3])  # type: ignore[return-value]

    def options(self) -> dict[str, int]:
        """Launch options: a config's before the function's."""
        function, _ = inspection_of(self.kernel, self.target)
        facts = self.facts()
        found = {n: v.evaluate(facts) if isinstance(v, Expr) else v for n, v in function.options.items()}
        return {**found, **{n: int(self.config[n]) for n in OPTIONS if self.config.get(n) is not None}}


def _module(name: str) -> Any:
    """A module that only some parts of a benchmark need."""
    return importlib.import_module(name)


def _buffer(given: Buffer | None, facts: Mapping[str, int], device: Any) -> Any:
    assert given is not None
    torch = _module("torch")
    count = given.count.evaluate(facts) if isinstance(given.count, Expr) else given.count
    return torch.zeros(count, dtype=getattr(torch, DTYPES[given.dtype_name].torch), device=device)


def _descriptor(given: Descriptor | None, facts: Mapping[str, int], tensor: Any) -> Any:
    assert given is not None
    made = _module("triton.tools.tensor_descriptor").TensorDescriptor
    block = [e.evaluate(facts) if isinstance(e, Expr) else e for e in given.block]
    view = tensor.permute(given.order) if given.order else tensor
    return made(view, list(view.shape), list(view.stride()), block, padding=given.padding)
