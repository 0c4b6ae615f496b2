"""Values and arguments of a problem: the same seed gives the same bytes in every process and on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.records import Check
from aot_tune.spec import Call, Operator, Tensor

__all__ = ["attribute_indices", "call_of", "draw", "fill", "scalar_values", "storage_extent"]

_PERIOD = 1_000_003
"""Values are drawn once per so many elements (a prime, so that no row pitch hides a wrong index) and then repeated."""


def draw(
    operator: Operator, check: Check, tensor: Tensor, count: int, seed: int, period: int = _PERIOD
) -> NDArray[Any]:
    """The values of a tensor's storage of `count` elements, in its dtype; a long storage repeats them.

    They are float32 for a dtype that numpy does not have.

    Integers are drawn evenly from -8 to 8 (0 or 1 for bool), which are exact in every accumulator, or by `uniform`.
    """
    kind = tensor.values
    text = f"{seed}\n{operator.name}\n{check.problem.id}\n{tensor.name}"
    words = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint64)
    generator = np.random.Generator(np.random.PCG64([int(w) for w in words]))
    drawn = min(count, period)
    dtype = np.dtype(operator.dtype(check.problem, tensor).numpy or "float32")
    if dtype.kind == "f":
        if kind.kind == "normal":
            values = (generator.standard_normal(drawn) * kind.high).astype(dtype)
        else:
            values = generator.uniform(kind.low, kind.high, drawn).astype(dtype)
    elif dtype.kind == "b":
        values = generator.integers(0, 2, drawn).astype(dtype)
    else:
        low, high = (0 if dtype.kind == "u" else -8, 9) if kind.kind == "normal" else (int(kind.low), int(kind.high))
        values = generator.integers(low, high, drawn).astype(dtype)
    return values


def fill(operator: Operator, check: Check, views: Mapping[str, NDArray[Any]], seed: int) -> None:
    """Write drawn values, repeated, into the storage of the inputs in `views`, which are flat, by tensor name."""
    first = next((t.name for t in operator.inputs if operator.is_present(check.problem, t)), "")
    for tensor in operator.inputs:
        view = views.get(tensor.name)
        if view is None:
            continue
        values = draw(operator, check, tensor, view.size, seed)
        for start in range(0, view.size, _PERIOD):
            part = view[start : start + _PERIOD]
            part[:] = values[: part.size]
        if tensor.name == first and check.special and view.dtype.kind == "f":
            places = np.linspace(0, view.size - 1, num=4, dtype=np.int64)[:3]
            view[places] = (-np.inf, np.nan, np.inf)


def storage_extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Elements of the storage that a strided tensor spans, and the index of its first element in it."""
    if 0 in shape:
        return 0, 0
    low = sum(min(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    high = sum(max(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    return high - low + 1, -low


def scalar_values(operator: Operator) -> dict[str, float | int]:
    """The scalars of every test call: their defaults."""
    return {s.name: s.default if s.dtype_name.startswith("f") else int(s.default) for s in operator.scalars}


def attribute_indices(operator: Operator, check: Check) -> dict[str, int]:
    """Index of each attribute's value among its choices."""
    facts = operator.facts(check.problem)
    return {a.name: facts[f"attribute.{a.name}"] for a in operator.attributes}


def call_of(
    operator: Operator, check: Check, arrays: Mapping[str, Any], convert: Callable[[Any], Any] = lambda a: a
) -> Call:
    """The arguments as references and baselines take them; absent tensors are None."""
    indices = attribute_indices(operator, check)
    attributes = {a.name: a.choices[indices[a.name]] for a in operator.attributes}
    tensors = {t.name: convert(arrays[t.name]) if t.name in arrays else None for t in operator.tensors}
    return Call(**tensors, **scalar_values(operator), **attributes)
