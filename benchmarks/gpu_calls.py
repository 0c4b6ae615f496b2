"""How each library computes a task on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpu_race import Arena, Run

__all__ = ["FURTHEST", "OFF", "compiled", "difference", "eager", "facts", "furthest", "ours", "product"]

OFF = {"bf16": 2e-2, "f16": 3e-3, "f32": 1e-4, "f32 ieee": 1e-4, "f32 tf32": 5e-3}
"""By a task's mode, how far two right results may differ: the norm of the difference over the norm."""

FURTHEST = {"bf16": 1e-2, "f16": 1.5e-3, "f32": 2e-5}
"""By dtype, how far an element may be from the exact result: 2 to 4 times the rounding error of 16 bits."""

_f = torch.nn.functional


def _memory(size: int | None) -> Any:
    return None if size is None else torch.empty(size, dtype=torch.uint8, device="cuda")


def ours(arena: Arena, size: int | None) -> Run:
    """The installed library's function, with existing outputs, and with a workspace of `size` bytes or its own."""
    from aot_tune import ops

    function = getattr(ops, arena.task.operator)
    workspace = _memory(size)
    given: list[tuple[list[Any], dict[str, Any]]] = []
    for call in arena.calls:
        first = [getattr(call, t.name) for t in arena.operator.inputs]
        while first and first[-1] is None:
            first.pop()
        rest = {t.name: getattr(call, t.name) for t in arena.operator.outputs if getattr(call, t.name) is not None}
        rest |= {s.name: getattr(call, s.name) for s in arena.operator.scalars}
        rest |= {a.name: getattr(call, a.name) for a in arena.operator.attributes}
        given.append((first, rest))

    def run(number: int) -> object:
        first, rest = given[number]
        return function(*first, **rest, stream=torch.cuda.current_stream().cuda_stream, workspace=workspace)

    return run


def facts(arena: Arena, size: int | None) -> dict[str, Any]:
    """What the library says of the call: variant, kernel, target, workspace, and whether the problem was tuned."""
    from aot_tune import ops

    call = arena.calls[0]
    given = {t.name: getattr(call, t.name) for t in arena.operator.tensors if getattr(call, t.name) is not None}
    try:
        told = ops.explain(arena.task.operator, **given, **arena.task.problem.attributes, workspace=_memory(size))
    except Exception as error:  # the times are valid without it
        return {"missing": f"{type(error).__name__}: {error}"}
    return {key: told.get(key) for key in ("tuned", "kernel", "variant", "target", "workspace")}


def product(arena: Arena) -> Run:
    """cuBLAS through torch: only the product, into an existing output."""
    out = arena.outputs()["out"]
    calls = arena.calls
    return lambda i: torch.matmul(calls[i].a, calls[i].b, out=out)


def _gemm(a: Any, b: Any, bias: Any, residual: Any, activation: str, **_: Any) -> Any:
    value = _f.linear(a, b.transpose(-1, -2), bias)
    if activation in ("gelu", "gelu_tanh"):
        value = _f.gelu(value, approximate="none" if activation == "gelu" else "tanh")
    elif activation != "none":
        value = (_f.relu if activation == "relu" else _f.silu)(value)
    return value if residual is None else value + residual


def _batched_gemm(a: Any, b: Any, **_: Any) -> Any:
    return torch.bmm(a, b)


def _softmax(x: Any, **_: Any) -> Any:
    return torch.softmax(x, -1)


def _rms_norm(x: Any, weight: Any, residual: Any, residual_out: Any, eps: float, **_: Any) -> Any:
    total = x if residual is None else x + residual
    out = _f.rms_norm(total, total.shape[-1:], weight, eps)
    return out if residual_out is None else (out, total)


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float, **_: Any) -> Any:
    return _f.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _silu_mul(gate: Any, up: Any, **_: Any) -> Any:
    return _f.silu(gate) * up


_EAGER: dict[str, Callable[..., Any]] = {
    "gemm": _gemm,
    "batched_gemm": _batched_gemm,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "silu_mul": _silu_mul,
}


def eager(arena: Arena) -> Run:
    """The composition that a user of a framework writes. It makes its own outputs."""
    function, given = _EAGER[arena.task.operator], [vars(call) for call in arena.calls]
    return lambda i: function(**given[i])


def compiled(arena: Arena) -> Run:
    """The same through torch.compile with all of its tuning.

    Its own CUDA graphs are off, because they cannot be captured. Our graphs replay it, without the copies that its own
    make.
    """
    torch.compiler.reset()
    function, first = _EAGER[arena.task.operator], vars(arena.calls[0])
    inputs = [t.name for t in arena.operator.inputs if first[t.name] is not None]
    fixed = {k: v for k, v in first.items() if k not in inputs}
    fixed |= {
        t.name: True for t in arena.operator.outputs if first[t.name] is not None
    }  # only whether the output is wanted

    def composed(*tensors: Any) -> Any:
        return function(**fixed, **dict(zip(inputs, tensors, strict=True)))

    made = torch.compile(composed, mode="max-autotune-no-cudagraphs", dynamic=False)
    given = [[vars(call)[name] for name in inputs] for call in arena.calls]
    return lambda i: made(*given[i])


def difference(arena: Arena, run: Run, other: Run) -> float:
    """Two ways to compute the first outputs: the norm of their difference, over the norm of the second's."""
    outputs = arena.outputs()
    for out in outputs.values():
        out.fill_(float("nan"))
    run(0)
    mine = {n: o.double() for n, o in outputs.items()}
    found = other(0)
    theirs = found if isinstance(found, tuple) else (found,)
    worst = 0.0
    for (_, value), wanted in zip(mine.items(), theirs, strict=False):
        exact = wanted.double()
        off = float((value - exact).norm() / exact.norm())
        worst = max(worst, off if off == off else float("inf"))  # noqa: PLR0124 NaN
    return worst


def furthest(arena: Arena, run: Run) -> float:
    """The largest distance of an element of the first outputs from torch's result for the same inputs in float64.

    It is relative to the element's size and the root mean square of its row. A difference that the dtype cannot
    distinguish from 0 does not count.
    """
    outputs = arena.outputs()
    for out in outputs.values():
        out.fill_(float("nan"))
    run(0)
    wide = {n: v.double() if isinstance(v, torch.Tensor) else v for n, v in vars(arena.calls[0]).items()}
    found = _EAGER[arena.task.operator](**wide)
    worst = 0.0
    for out, exact in zip(outputs.values(), found if isinstance(found, tuple) else (found,), strict=False):
        facts = torch.finfo(out.dtype)
        distance = ((out.double() - exact).abs() - facts.smallest_normal * facts.eps).clamp_min_(0.0)
        off = float(
            (distance / (exact.abs() + exact.square().mean(-1, keepdim=True).sqrt())).nan_to_num_(nan=torch.inf).max()
        )
        worst = max(worst, off)
    return worst
