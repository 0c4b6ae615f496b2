"""A library's operators in the form in which replaced modules call them, and what the library says of their calls."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from aot_tune.signatures.operator_signature import OperatorSignature, read_signatures
from aot_tune.torch.drop_in.served_rows import RowRanges, ask_once, ask_rows
from aot_tune.torch.registration import register
from aot_tune.torch.torch_errors import TorchError

__all__ = ["DTYPES", "OPERATORS", "PatchLibrary", "blank"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the bundled operators do."""

OPERATORS = {
    "gemm": (("a", "b", "bias", "residual"), ("activation", "math")),
    "rms_norm": (("x", "weight", "residual"), ("eps",)),
    "layer_norm": (("x", "weight", "bias"), ("eps",)),
    "silu_mul": (("gate", "up"), ()),
    "softmax": (("x",), ()),
    "flash_attention": (("q", "k", "v"), ("scale", "causal")),
}
"""The bundled operators that replace something: their first inputs, and the arguments that are passed by name."""

_LARGEST = 1 << 27
"""How many elements a question about a call may allocate. Larger calls are treated like calls of this size."""


class PatchLibrary:
    """The operators of a library under torch.ops that agree with the bundled ones of the same name.

    Attributes:
        without: why an operator is not used, by its name.
        tuned: whether calls count only if a tuned variant serves them.
    """

    def __init__(self, module: ModuleType, only: frozenset[str] | None, *, tuned: bool) -> None:
        self.module, self.tuned = module, tuned
        self.namespace = register(module).namespace
        self._space = getattr(torch.ops, self.namespace)
        self.without: dict[str, str] = {}
        self._known: dict[tuple[Any, ...], RowRanges] = {}
        self._declared: dict[str, OperatorSignature] = {}
        declared = {op.name: op for op in read_signatures(module, TorchError)}
        for name, (inputs, named) in OPERATORS.items():
            op = declared.get(name)
            if only is not None and name not in only:
                self.without[name] = f"{name} is not among operators="
            elif op is None:
                self.without[name] = f"the library has no {name}"
            elif not _is_bundled(op, inputs, named):
                self.without[name] = f"the library's {name} is not the bundled one"
            else:
                self._declared[name] = op

    def call(self, operator: str, overload: str = "default") -> Callable[..., Any]:
        """The operator in torch."""
        found: Callable[..., Any] = getattr(getattr(self._space, operator), overload)
        return found

    def folds(self, operator: str) -> bool:
        """Whether the operator takes tensors with any leading dims."""
        op = self._declared.get(operator)
        return op is not None and op.positional[0].folds

    def optional(self, operator: str, tensor: str) -> bool:
        """Whether the operator has this optional tensor."""
        op = self._declared.get(operator)
        return op is not None and any(t.name == tensor and t.optional for t in op.tensors)

    def served(
        self, operator: str, key: tuple[Any, ...], arguments: Callable[[int], tuple[Any, ...]], **named: Any
    ) -> RowRanges:
        """For how many rows an operator serves calls that differ only in these.

        Args:
            operator: its name.
            key: what such calls have in common.
            arguments: the tensors of a call with this many rows. Their values do not matter.
            named: scalars and attributes.
        """
        if operator in self.without:
            return RowRanges((), refused=self.without[operator])
        whole = (operator, key, tuple(sorted(named.items())))
        if whole not in self._known:
            self._known[whole] = ask_rows(
                lambda rows: self.module.explain(operator, *arguments(rows), **named), tuned=self.tuned
            )
        return self._known[whole]

    def serves(self, operator: str, *tensors: torch.Tensor | None, **named: Any) -> tuple[str, str]:
        """The kernel that serves one call; and why the call does not count, or ''."""
        if operator in self.without:
            return "", self.without[operator]
        return ask_once(lambda: self.module.explain(operator, *tensors, **named), tuned=self.tuned)


def _is_bundled(op: OperatorSignature, inputs: tuple[str, ...], named: tuple[str, ...]) -> bool:
    """Whether an operator takes these arguments. It may have further ones if they are optional."""
    tensors, has = op.positional, {*(s.name for s in op.scalars), *(a.name for a in op.attributes)}
    more = all(t.optional for t in tensors[len(inputs) :])
    return tuple(t.name for t in tensors[: len(inputs)]) == inputs and more and has.issuperset(named)


def blank(rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """A matrix with a tensor's dtype and device. Its values are arbitrary, and its number of elements is limited."""
    rows = max(1, min(rows, _LARGEST // max(width, 1)))
    return torch.empty(rows, width, dtype=like.dtype, device=like.device)
