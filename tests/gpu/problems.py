"""Calls on a GPU and their truth: tensors made by a layout, with guards around them."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from draws import placed

from aot_tune.spec import Call, Operator, Problem, Tensor

_GUARD = 512
"""Elements around every output that must stay as they are."""


class Torch:
    """torch under the names of the array API that references use."""

    special = torch.special

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def max(x: Any, axis: int, keepdims: bool = False) -> Any:
        return x.amax(dim=axis, keepdim=keepdims)

    @staticmethod
    def sum(x: Any, axis: int, keepdims: bool = False) -> Any:
        return x.sum(dim=axis, keepdim=keepdims)

    @staticmethod
    def mean(x: Any, axis: int, keepdims: bool = False) -> Any:
        return x.mean(dim=axis, keepdim=keepdims)


class Case:
    """A call on the GPU: its tensors, made by a layout, and its truth."""

    def __init__(self, operator: Operator, chosen: Problem, layout: str, seed: int) -> None:
        self.operator, self.problem, self.layout = operator, chosen, layout
        self._generator = torch.Generator("cuda").manual_seed(seed)
        self._storages: dict[str, tuple[Any, Any]] = {}
        self.tensors: dict[str, Any] = {}
        for tensor in operator.tensors:
            if operator.is_present(chosen, tensor):
                self.tensors[tensor.name] = self._make(tensor)

    @property
    def text(self) -> str:
        return f"{self.operator.name} {self.problem.id} {self.layout}"

    def _make(self, tensor: Tensor) -> Any:
        dtype = getattr(torch, self.operator.dtype(self.problem, tensor).torch)
        shape = self.operator.shape(self.problem, tensor)
        strides, shift = placed(self.operator, self.problem, tensor, self.layout)
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        storage = torch.empty(count + 2 * _GUARD, dtype=dtype, device="cuda")
        if tensor.output:
            storage.fill_(math.nan)
        elif dtype == torch.bool:
            storage.bernoulli_(tensor.values.density, generator=self._generator)
        elif tensor.values.kind == "normal":
            storage.normal_(0.0, tensor.values.high, generator=self._generator)
        else:
            storage.uniform_(tensor.values.low, tensor.values.high, generator=self._generator)
        view = storage.as_strided(shape, strides, _GUARD + shift)
        self._storages[tensor.name] = storage, storage.clone()
        return view

    def call(self, ops: Any, **options: Any) -> Any:
        """Call the library's function, with the outputs made beforehand."""
        given = {t.name: self.tensors.get(t.name) for t in self.operator.inputs}
        given |= {t.name: self.tensors[t.name] for t in self.operator.outputs if t.name in self.tensors}
        given = {name: value for name, value in given.items() if value is not None}
        return getattr(ops, self.operator.name)(**given, **self.problem.attributes, **options)

    def poison(self) -> None:
        for tensor in self.operator.outputs:
            if tensor.name in self._storages:
                self._storages[tensor.name][0].fill_(math.nan)

    def fault(self) -> str:
        """What is wrong after a call; empty when nothing is."""
        torch.cuda.synchronize()
        exact, near = self._truth(double=True), self._truth(double=False)
        for tensor in self.operator.outputs:
            if tensor.name not in self.tensors:
                continue
            got = self.tensors[tensor.name]
            times = 8 if self.layout == "broadcast" else 4  # sums of equal terms are rounded in one direction
            wrong = _difference(got, exact[tensor.name], near[tensor.name], self._units(got.dtype), times)
            if wrong:
                return f"{self.text}: {tensor.name}{wrong}"
            rest = self._storages[tensor.name][0].clone()
            rest.as_strided(got.shape, got.stride(), got.storage_offset()).fill_(math.nan)
            if not bool(torch.isnan(rest).all()):
                return f"{self.text}: elements beside {tensor.name} were written"
        for tensor in self.operator.inputs:
            if tensor.name in self._storages and not torch.equal(*self._storages[tensor.name]):
                return f"{self.text}: input {tensor.name} was changed"
        return ""

    def _truth(self, *, double: bool) -> Mapping[str, Any]:
        torch.backends.cuda.matmul.allow_tf32 = self.problem.attributes.get("math") == "tf32"
        values: dict[str, Any] = {t.name: None for t in self.operator.tensors}
        values |= {n: t.double() if double and t.is_floating_point() else t for n, t in self.tensors.items()}
        values |= {s.name: s.default for s in self.operator.scalars}
        values |= {a.name: self.problem.attributes.get(a.name, a.choices[0]) for a in self.operator.attributes}
        return self.operator.reference(Torch(), Call(**values))

    def _units(self, dtype: Any) -> float:
        """Relative rounding error of one operation; float32 sums may be sequential, where torch's are pairwise."""
        if self.problem.attributes.get("math") == "tf32" and dtype == torch.float32:
            return 2.0**-10  # 10 bits behind the point, and hardware may cut off the others
        unit = float(torch.finfo(dtype).eps)
        longest = max(self.problem.dims.values())
        return unit * max(1.0, math.sqrt(longest) / 4) if dtype == torch.float32 else unit


_REFERENCE = 1e-15
"""Error of a reference in float64 that subtracts numbers of about 1, as GELU far below zero does."""


def _difference(got: Any, exact: Any, near: Any, unit: float, times: int) -> str:
    """Where a result is off by more than `times` torch's error in its dtype, or half a unit of the largest value."""
    if not exact.numel():
        return ""
    error = (got.double() - exact).abs()
    least = max(unit / 2 * float(exact.abs().max()), _REFERENCE)
    allowed = times * max(float((near.double() - exact).abs().max()), least)
    bad = ~(error <= allowed)
    if not bool(bad.any()):
        return ""
    place = [int(i) for i in bad.nonzero()[0]]
    return (
        f"{place}: got {float(got[tuple(place)]):g}, want {float(exact[tuple(place)]):g} within {allowed:g}; "
        f"{int(bad.sum())} of {bad.numel()} are wrong"
    )
