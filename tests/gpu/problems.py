"""Odd calls on a GPU and their truth: sizes that are multiples of nothing, padded, strided and unaligned tensors."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from aot_tune.spec import Call, Operator, Problem, Tensor, all_of, problem

LAYOUTS = ("dense", "padded", "padded oddly", "unaligned", "stepped", "broadcast")
_GUARD = 512
"""Elements around every output that must stay as they are."""

_ROWS = (1, 2, 3, 7, 33, 132, 300)
_WIDTHS = (1, 3, 8, 100, 127, 128, 136, 512, 1000, 1024, 1032, 4096, 4099, 8192, 14336, 40008, 131072)
_PRODUCT = {
    "B": (1, 2, 5),
    "M": (1, 2, 3, 8, 15, 16, 17, 64, 100, 129, 257, 400),
    "N": (1, 7, 8, 64, 120, 129, 136, 256, 264, 1000, 1288),
    "D": (64, 80, 128, 200, 256),
    "K": (1, 5, 8, 31, 64, 72, 136, 200, 513, 520, 1032, 4104),
}


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


def odd_problems(
    operator: Operator, seed: int, count: int, dtypes: Mapping[str, str] | None = None
) -> Iterator[tuple[Problem, str]]:
    """Problems without strides, and the layout that their tensors get."""
    generator = random.Random(seed)
    orders: list[dict[str, tuple[int, ...]]] = [{}]
    if any(t.name == "b" and t.rank >= 2 for t in operator.inputs):
        rank = operator.tensor("b").rank
        orders = [{"b": (*range(rank - 2), rank - 1, rank - 2)}, {"b": (*range(rank - 2), rank - 1, rank - 2)}, {}]
    for number in range(count):
        dims = _sizes(operator, generator)
        if number % 2:  # every second with what vector loads want
            dims = {d: -(-n // 8) * 8 if d in ("N", "K", "D") else n for d, n in dims.items()}
        found = problem(
            order=generator.choice(orders),
            present=[t.name for t in operator.tensors if t.optional and generator.random() < 0.5],
            attributes={a.name: generator.choice(a.choices) for a in operator.attributes},
            dtypes=dtypes or {v: generator.choice(choices) for v, choices in operator.dtypes.items()},
            **dims,
        )
        yield found, "dense" if number % 4 == 1 else generator.choice(LAYOUTS)


def _sizes(operator: Operator, generator: random.Random) -> dict[str, int]:
    if set(operator.dims) == {"R", "D"}:
        width = generator.choice(_WIDTHS)
        return {"R": generator.choice([r for r in _ROWS if r * width < 1 << 22]), "D": width}
    return {d: generator.choice(_PRODUCT.get(d, (1, 17, 64))) for d in operator.dims}


def placed(operator: Operator, chosen: Problem, tensor: Tensor, layout: str) -> tuple[tuple[int, ...], int]:
    """Strides of a tensor, and where its first element is beyond an aligned address, in elements."""
    shape = operator.shape(chosen, tensor)
    order = chosen.order.get(tensor.name) or tuple(range(len(shape)))
    pad = {"padded": 8, "padded oddly": 3}.get(layout, 0)
    step = 3 if layout == "stepped" else 1
    strides = [0] * len(shape)
    for place, axis in enumerate(reversed(order)):
        strides[axis] = step
        step *= max(shape[axis], 1)
        if place == 0 and pad:
            step = -(-step // pad) * pad + pad if pad == 8 else step + pad
    if layout == "broadcast" and not tensor.output and len(shape) > 1:
        strides = [s if axis == order[-1] else 0 for axis, s in enumerate(strides)]
    return chosen.strides.get(tensor.name, tuple(strides)), 1 if layout == "unaligned" else 0


def accepted(operator: Operator, chosen: Problem, layout: str, kernel: str) -> bool:
    """Whether the guards of a kernel hold, its dtypes left aside."""
    present = [t for t in operator.tensors if operator.is_present(chosen, t)]
    alignment = {t.name: operator.dtype(chosen, t).itemsize for t in present} if layout == "unaligned" else {}
    full = problem(
        strides={t.name: placed(operator, chosen, t, layout)[0] for t in present},
        alignment=alignment,
        present=chosen.present,
        attributes=chosen.attributes,
        dtypes=chosen.dtypes,
        **chosen.dims,
    )
    return all_of(operator.kernel(kernel).requires, operator.facts(full))


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
        """For messages."""
        return f"{self.operator.name} {self.problem.id} {self.layout}"

    def _make(self, tensor: Tensor) -> Any:
        dtype = getattr(torch, self.operator.dtype(self.problem, tensor).torch)
        shape = self.operator.shape(self.problem, tensor)
        strides, shift = placed(self.operator, self.problem, tensor, self.layout)
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        storage = torch.empty(count + 2 * _GUARD, dtype=dtype, device="cuda")
        if tensor.output:
            storage.fill_(math.nan)
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
        """Write NaN to the outputs and their guards."""
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
            wrong = _difference(got, exact[tensor.name], near[tensor.name], self._units(got.dtype))
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
        values |= {n: t.double() if double else t for n, t in self.tensors.items()}
        values |= {s.name: s.default for s in self.operator.scalars}
        values |= {a.name: self.problem.attributes.get(a.name, a.choices[0]) for a in self.operator.attributes}
        return self.operator.reference(Torch(), Call(**values))

    def _units(self, dtype: Any) -> float:
        """Relative rounding error of one operation; float32 sums may be sequential, where torch's are pairwise."""
        if self.problem.attributes.get("math") == "tf32" and dtype == torch.float32:
            return 2.0**-11
        unit = float(torch.finfo(dtype).eps)
        longest = max(self.problem.dims.values())
        return unit * max(1.0, math.sqrt(longest) / 4) if dtype == torch.float32 else unit


def _difference(got: Any, exact: Any, near: Any, unit: float) -> str:
    """Where a result is off by more than 4 times torch's error in its dtype, or half a unit of the largest value."""
    if not exact.numel():
        return ""
    error = (got.double() - exact).abs()
    allowed = 4 * max(float((near.double() - exact).abs().max()), unit / 2 * float(exact.abs().max()), 1e-30)
    bad = ~(error <= allowed)
    if not bool(bad.any()):
        return ""
    place = [int(i) for i in bad.nonzero()[0]]
    return (
        f"{place}: got {float(got[tuple(place)]):g}, want {float(exact[tuple(place)]):g} within {allowed:g}; "
        f"{int(bad.sum())} of {bad.numel()} are wrong"
    )
