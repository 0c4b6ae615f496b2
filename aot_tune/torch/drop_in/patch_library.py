"""A library's operators in the form in which replaced modules call them, and for how many rows it serves them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from aot_tune.signatures.operator_signature import OperatorSignature, read_signatures
from aot_tune.torch.registration import register
from aot_tune.torch.torch_versions import TorchError

_STEPS = tuple(1 << n for n in range(13))
"""Row counts that a library is asked about. Any other count is treated like the next lower one."""

_VENDOR = ("cublaslt", "cudnn")
"""Kernels of vendors' libraries begin with these. Where they were not measured, torch would call the same library."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the bundled operators do."""

OPERATORS = {
    "gemm": (("a", "b", "bias", "residual"), ("activation", "math")),
    "rms_norm": (("x", "weight", "residual"), ("eps",)),
    "layer_norm": (("x", "weight", "bias"), ("eps",)),
    "silu_mul": (("gate", "up"), ()),
    "softmax": (("x",), ()),
    "quantize_rows": (("x",), ("group",)),
    "scaled_mm": (("a", "b", "scale_a", "scale_b", "bias"), ()),
    "int8_mm": (("a", "w", "scales", "bias"), ()),
    "flash_attention": (("q", "k", "v"), ("scale", "causal")),
}
"""The bundled operators that replace something: their first inputs, and the arguments that are passed by name."""

_LARGEST = 1 << 27
"""How many elements a question about a call may allocate. Larger calls are treated like calls of this size."""


@dataclass(frozen=True)
class RowRanges:
    """Row counts, as ranges `(first, end)`; `end` is exclusive, or None. Both are steps.

    `kernels` are what serves them. Bit n of `steps` says whether the rows from step n to the next are in a range.
    """

    ranges: tuple[tuple[int, int | None], ...]
    kernels: tuple[str, ...] = ()
    refused: str = ""
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        held = [any(a <= step and (b is None or step < b) for a, b in self.ranges) for step in _STEPS]
        object.__setattr__(self, "steps", sum(1 << n for n, is_held in enumerate(held) if is_held))

    def __str__(self) -> str:
        if self.ranges == ALL_ROWS.ranges:
            return "any"
        return ", ".join(f"{a} up" if b is None else str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in self.ranges)


ALL_ROWS = RowRanges(((1, None),))
"""Any number except 0."""

ASKED = RowRanges(ALL_ROWS.ranges, ("asked for each shape",))
"""Any number, but the library is asked about each shape at its first call."""

_EVERY = ALL_ROWS.steps


def hold(steps: int, rows: Any) -> bool:
    """Whether a call with this many rows is served; `rows` may be a symbol of a traced graph.

    It takes the number `steps` of ranges instead of the ranges, since a compiled graph looks at one number faster than
    at several tuples.
    """
    if not torch.compiler.is_compiling():
        return bool(rows > 0 and steps >> (min(int(rows).bit_length(), len(_STEPS)) - 1) & 1)
    if steps == _EVERY:
        return bool(rows > 0)
    step = 0
    while step + 1 < len(_STEPS) and rows >= 2 << step:
        step += 1
    return bool(rows > 0 and steps >> step & 1 == 1)


def _ask_rows(explain: Callable[[int], dict[str, Any]], *, tuned: bool) -> RowRanges:
    """Ask a library about calls with 1, 2, 4, ... rows.

    Args:
        explain: what the library's function `explain` returns for a call with this many rows.
        tuned: whether only calls count that a tuned variant serves. Then the generic variant does not count. Nor does
            the vendor's library on a call that nobody measured, because torch calls it as well.
    """
    served, kernels, refused = [], [], ""
    for rows in _STEPS:
        kernel, why = _ask_once(lambda rows=rows: explain(rows), tuned=tuned)  # type: ignore[misc]
        refused = refused or why
        if not why:
            served.append(rows)
            kernels.append(kernel)
    return RowRanges(_ranges(served), tuple(dict.fromkeys(kernels)), refused)


def _ask_once(explain: Callable[[], dict[str, Any]], *, tuned: bool) -> tuple[str, str]:
    """The kernel that serves a call; and why it does not count, or ''. The arguments are as in `ask_rows`."""
    try:
        said = explain()
    except (TypeError, ValueError, RuntimeError) as error:
        return "", str(error)
    kernel = said["kernel"]
    if tuned and kernel.endswith("generic"):
        return kernel, "only its generic variant serves such calls"
    if tuned and kernel.startswith(_VENDOR) and not said["tuned"]:
        return kernel, "the vendor's library serves such calls, as torch's own"
    return kernel, ""


def _ranges(steps: Iterable[int]) -> tuple[tuple[int, int | None], ...]:
    """The steps in `found` as ranges. Neighbours are joined."""
    ranges: list[tuple[int, int | None]] = []
    for rows in steps:
        end = None if rows == _STEPS[-1] else 2 * rows
        if ranges and ranges[-1][1] == rows:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((rows, end))
    return tuple(ranges)


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
        operator_call: Callable[..., Any] = getattr(getattr(self._space, operator), overload)
        return operator_call

    def folds(self, operator: str) -> bool:
        """Whether the operator takes tensors with any leading dims."""
        op = self._declared.get(operator)
        return op is not None and op.positional[0].folds

    def optional(self, operator: str, tensor: str) -> bool:
        """Whether the operator has this optional tensor."""
        op = self._declared.get(operator)
        return op is not None and any(t.name == tensor and t.optional for t in op.tensors)

    def served(
        self,
        operator: str,
        key: tuple[Any, ...],
        arguments: Callable[[int], tuple[Any, ...]],
        out: Callable[[int], torch.Tensor] | None = None,
        **named: Any,
    ) -> RowRanges:
        """For how many rows an operator serves calls that differ only in these.

        Args:
            operator: its name.
            key: what such calls have in common.
            arguments: the tensors of a call with this many rows. Their values do not matter.
            out: the output of such a call, if it must be passed.
            named: scalars and attributes.
        """
        if operator in self.without:
            return RowRanges((), refused=self.without[operator])
        whole = (operator, key, tuple(sorted(named.items())))
        if whole not in self._known:

            def explain(rows: int) -> dict[str, Any]:
                passed = {} if out is None else {"out": out(rows)}
                told: dict[str, Any] = self.module.explain(operator, *arguments(rows), **named, **passed)
                return told

            self._known[whole] = _ask_rows(explain, tuned=self.tuned)
        return self._known[whole]

    def serves(self, operator: str, *tensors: torch.Tensor | None, **named: Any) -> tuple[str, str]:
        """The kernel that serves one call; and why the call does not count, or ''."""
        if operator in self.without:
            return "", self.without[operator]
        return _ask_once(lambda: self.module.explain(operator, *tensors, **named), tuned=self.tuned)


def _is_bundled(op: OperatorSignature, inputs: tuple[str, ...], named: tuple[str, ...]) -> bool:
    """Whether an operator takes these arguments. It may have further ones if they are optional."""
    tensors, has = op.positional, {*(s.name for s in op.scalars), *(a.name for a in op.attributes)}
    more = all(t.optional for t in tensors[len(inputs) :])
    return tuple(t.name for t in tensors[: len(inputs)]) == inputs and more and has.issuperset(named)


def blank(rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """A matrix with a tensor's dtype and device. Its values are arbitrary, and its number of elements is limited."""
    rows = max(1, min(rows, _LARGEST // max(width, 1)))
    return torch.empty(rows, width, dtype=like.dtype, device=like.device)
