"""Modules with another forward for a while: how it is installed and removed."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from aot_tune.torch.drop_in.patch_library import RowRanges

Forward = Callable[..., Any]

_NEAR = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far two right results may differ, relative to the largest value: some steps of the dtype."""


@dataclass
class Replaced:
    """A module that calls operators instead of its own forward.

    Attributes:
        name: its name in the model.
        kind: its class.
        operators: those that it calls.
        rows: the row counts that the operators serve.
        served, passed: how many eager calls went to operators, and how many to the module's own forward.
        modules: how many modules it covers.
    """

    name: str
    kind: str
    operators: tuple[str, ...]
    rows: RowRanges
    served: int = 0
    passed: int = 0
    modules: int = 1
    _module: torch.nn.Module | None = field(default=None, repr=False)
    _method: Any = field(default=None, repr=False)

    def install(self, module: torch.nn.Module, forward: Forward) -> None:
        """Make the module call `forward(module, ...)`.

        The installed function is named `forward`. It is a bound method, so a copied module takes its method along.
        Pickle stores only the name, so a pickled model comes back as it was before.
        """
        forward.__name__ = "forward"
        self._module, self._method = module, types.MethodType(forward, module)
        module.forward = self._method

    def remove(self) -> bool:
        """Remove the forward. Returns False if somebody has put another one in its place, which stays."""
        module, method = self._module, self._method
        if module is None or "forward" not in vars(module):
            return True
        if vars(module)["forward"] is not method:
            return False
        del module.forward
        self._module = self._method = None
        return True


def count_call(replaced: Replaced, *, served: bool) -> None:
    """Count an eager call. Compiled graphs are not counted, and must not look at `replaced`."""
    if torch.compiler.is_compiling():
        return
    if served:
        replaced.served += 1
    else:
        replaced.passed += 1


def own_forward(module: torch.nn.Module) -> Forward:
    """The forward of the module's class."""
    forward: Forward = type(module).forward
    return forward


@contextlib.contextmanager
def evaluated(module: torch.nn.Module) -> Iterator[None]:
    """Put the module and all below it into evaluation mode, without gradients. Each is restored afterwards."""
    before = [(m, m.training) for m in module.modules()]
    try:
        for each, _ in before:
            each.training = False
        with torch.no_grad():
            yield
    finally:
        for each, training in before:
            each.training = training


def same_results(module: torch.nn.Module, forward: Forward, *shapes: tuple[int, ...], like: torch.Tensor) -> bool:
    """Whether a forward gives the same results as the module's own, on normal values and on small ones.

    Small values show where an epsilon is added. The parameters are the module's own.
    """
    generator = torch.Generator().manual_seed(0)
    with evaluated(module):
        for scale in (1.0, 1e-3):
            drawn = [
                (torch.randn(s, generator=generator) * scale).to(device=like.device, dtype=like.dtype) for s in shapes
            ]
            want, got = own_forward(module)(module, *drawn), forward(module, *drawn)
            if not isinstance(want, torch.Tensor) or want.shape != got.shape or want.dtype != got.dtype:
                return False
            apart = (want.double() - got.double()).abs().max().item()
            if not apart <= _NEAR[like.dtype] * max(want.double().abs().max().item(), 1e-6):
                return False
    return True
