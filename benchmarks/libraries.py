"""How each library computes an operator: functions without arguments that write into existing outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
from native import load_machine
from tasks import installed_operator

from aot_tune.spec import Call, Operator, Problem

__all__ = ["Prepared", "prepare_copy", "prepare_operator"]

Run = Callable[[], object]

_PERIOD = 4_000_037
"""Random values are drawn once for this many elements (a prime), and then repeated."""


@dataclass
class Prepared:
    """Ways to compute one thing. Each has a function for each copy of the tensor that must be cold."""

    ways: dict[str, list[Run]]
    outputs: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def _empty(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """An array whose address is a multiple of 64. Its pages have been touched."""
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    raw = np.empty(4 * count + 64, dtype=np.uint8)
    raw[:] = 0
    start = -raw.ctypes.data % 64
    flat = raw[start : start + 4 * count].view(np.float32)
    return np.lib.stride_tricks.as_strided(flat, shape, tuple(4 * s for s in strides))


def _random(operator: Operator, problem: Problem, name: str) -> Any:
    tensor = operator.tensor(name)
    shape, strides = operator.shape(problem, tensor), operator.strides(problem, tensor)
    array = _empty(shape, strides)
    generator = np.random.default_rng([len(name), *name.encode(), *shape])
    values = generator.standard_normal(min(array.size, _PERIOD), dtype=np.float32) * np.float32(tensor.values.high)
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    ordered = array.transpose(order)  # in memory order, so that both layouts are filled in one pass
    ordered[...] = values.reshape(ordered.shape) if values.size == array.size else np.resize(values, ordered.shape)
    return array


def _arrays(operator: Operator, problem: Problem, copies: int) -> tuple[dict[str, Any], list[Any]]:
    """All tensors that are present, by name; and copies of the cold one (itself the first)."""
    arrays: dict[str, Any] = {}
    cold: list[Any] = []
    for tensor in operator.tensors:
        if not operator.is_present(problem, tensor):
            continue
        if tensor.output:
            arrays[tensor.name] = _empty(operator.shape(problem, tensor), operator.strides(problem, tensor))
            continue
        arrays[tensor.name] = _random(operator, problem, tensor.name)
        if tensor.cold:
            cold = [arrays[tensor.name]]
            for _ in range(copies - 1):
                cold.append(_empty(cold[0].shape, operator.strides(problem, tensor)))
                cold[-1][...] = cold[0]
    return arrays, cold


def prepare_operator(library: str, name: str, plain: dict[str, Any], copies: int) -> Prepared:
    """Allocate a problem's tensors and bind them to the library's functions."""
    operator, problem = installed_operator(name), msgspec.convert(plain, Problem)
    arrays, cold = _arrays(operator, problem, copies)
    outputs = {t.name: arrays[t.name] for t in operator.outputs if t.name in arrays}
    make, wrap, facts = _LIBRARIES[library](operator, problem)
    coldest = next((t.name for t in operator.inputs if t.cold), "")
    ways: dict[str, list[Run]] = {}
    for instance in cold or [None]:
        tensors = arrays if instance is None else {**arrays, coldest: instance}
        call = Call(**{t.name: None for t in operator.tensors})
        vars(call).update({k: wrap(v) for k, v in tensors.items()})
        vars(call).update({s.name: s.default for s in operator.scalars})
        vars(call).update({a.name: problem.attributes.get(a.name, a.choices[0]) for a in operator.attributes})
        for way, run in make(call).items():
            ways.setdefault(way, []).append(run)
    return Prepared(ways, outputs, facts(arrays, problem))


def _ours(operator: Operator, _problem: Problem) -> tuple[Any, Any, Any]:
    from aot_tune import ops

    function = getattr(ops, operator.name)
    inputs = [t.name for t in operator.inputs]

    def make(call: Any) -> dict[str, Run]:
        given = {k: v for k, v in vars(call).items() if v is not None}
        first = []
        for name in inputs:
            if name not in given:
                break
            first.append(given.pop(name))
        attributes = {a.name for a in operator.attributes if given[a.name] == a.choices[0]}
        scalars = {s.name for s in operator.scalars}
        given = {k: v for k, v in given.items() if k not in attributes | scalars}
        return {"aot_tune": partial(function, *first, **given)}

    def facts(arrays: dict[str, Any], problem: Problem) -> dict[str, Any]:
        told = ops.explain(operator.name, **arrays, **problem.attributes)
        return {key: told[key] for key in ("tuned", "kernel", "variant", "target")}

    return make, lambda array: array, facts


def _numpy(operator: Operator, problem: Problem) -> tuple[Any, Any, Any]:
    """The operator's baselines with numpy. If it has none, its definition in numpy."""

    def make(call: Any) -> dict[str, Run]:
        def define() -> None:
            for name, result in operator.reference(np, call).items():
                if getattr(call, name) is not None:
                    np.copyto(getattr(call, name), result)

        return _baselines(operator, problem, "numpy", np, call) or {"numpy": define}

    return make, lambda array: array, lambda _a, _p: {}


def _torch(operator: Operator, problem: Problem) -> tuple[Any, Any, Any]:
    """The operator's baselines with torch."""
    import torch

    def make(call: Any) -> dict[str, Run]:
        more = {"rms_norm": _torch_rms_norm}.get(operator.name, lambda *_: {})
        return {**_baselines(operator, problem, "torch", torch, call), **more(torch, call)}

    return make, torch.from_numpy, lambda _a, _p: {}


_LIBRARIES = {"aot_tune": _ours, "numpy": _numpy, "torch": _torch}


def _baselines(operator: Operator, problem: Problem, library: str, module: Any, call: Any) -> dict[str, Run]:
    """The first by the name of the library, and others."""
    able = [b for b in operator.baselines if b.requires == library and b.supports(problem)]
    return {b.name if number else library: b.prepare(module, call) for number, b in enumerate(able)}


def _torch_rms_norm(torch: Any, c: Any) -> dict[str, Run]:
    """torch's norm has no `.out` form. Beside it runs a composition of calls that do."""
    vector_norm, mul, add = torch.linalg.vector_norm, torch.mul, torch.add
    width, eps, scale = c.x.shape[-1], c.eps, torch.empty(c.x.shape[0], 1)
    total = c.x if c.residual is None else c.residual_out

    def composed() -> None:
        if c.residual is not None:
            add(c.x, c.residual, out=total)
        vector_norm(total, dim=-1, keepdim=True, out=scale)
        scale.square_().mul_(1 / width).add_(eps).rsqrt_()
        mul(total, scale, out=c.out)
        if c.weight is not None:
            c.out.mul_(c.weight)

    return {"vector_norm.out, mul.out": composed}


def prepare_copy(library: str, size: int, threads: int, machine: str) -> Prepared:
    """Copies that read and write `size` bytes together."""
    count = math.ceil(size / 8)
    source, target = _empty((count,), (1,)), _empty((count,), (1,))
    values = np.random.default_rng(count).standard_normal(min(count, _PERIOD), dtype=np.float32)
    source[...] = np.resize(values, count)
    outputs = {"target": target}
    if library == "torch":
        import torch

        return Prepared({"torch copy_": [partial(torch.from_numpy(target).copy_, torch.from_numpy(source))]}, outputs)
    probe = load_machine(machine)
    arguments = (target.ctypes.data, source.ctypes.data, 4 * count, threads)
    bounds = [count * i // threads for i in range(threads + 1)]
    parts = [(target[i:j], source[i:j]) for i, j in itertools.pairwise(bounds)]
    pool = ThreadPoolExecutor(max(1, threads - 1))

    def split() -> None:
        others = [pool.submit(np.copyto, *part) for part in parts[1:]]
        np.copyto(*parts[0])
        for other in others:
            other.result()

    ways: dict[str, list[Run]] = {
        "memcpy": [partial(probe.machine_memcpy, *arguments)],
        "streaming stores": [partial(probe.machine_stream, *arguments)],
        "numpy.copyto": [split],
    }
    return Prepared(ways, outputs)
