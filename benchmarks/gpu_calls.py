"""How each library computes a task on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from gpu_race import Arena, Run

__all__ = [
    "FURTHEST",
    "OFF",
    "compiled",
    "difference",
    "eager",
    "facts",
    "furthest",
    "off_attention",
    "ours",
    "product",
    "ways",
]

OFF = {"bf16": 2e-2, "f16": 3e-3, "f32": 1e-4, "f32 ieee": 1e-4, "f32 tf32": 5e-3}
"""By a task's mode, how far two right results may differ: the norm of the difference over the norm."""

FURTHEST = {"bf16": 1e-2, "f16": 1.5e-3, "f32": 2e-5}
"""By dtype, how far an element may be from the exact result: 2 to 4 times the rounding error of 16 bits."""

_SMALL = 2**26
"""Most scores of calls for which torch's attention without a kernel of its own is tried."""

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
        made = [t.name for t in arena.operator.outputs if t.output]
        rest = {name: getattr(call, name) for name in made if getattr(call, name) is not None}
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
    given = {name: getattr(call, name) for name in arena.operator.arguments if getattr(call, name) is not None}
    try:
        told = ops.explain(arena.task.operator, **given, workspace=_memory(size))
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


def _quantized(total: Any, out: Any, group: int, min_amax: float, scales: str, **_: Any) -> Any:
    """In 8 bits, with a scale for each group of columns. `out` is the dtype."""
    rows, width = total.shape
    group, most = min(group, width), 127.0 if out == torch.int8 else 448.0
    parts = (_f.pad(total, (0, -width % group)) if width % group else total).reshape(rows, -1, group)
    scale = parts.abs().amax(-1, keepdim=True).clamp(min=min_amax) / most
    scale = scale.log2().ceil().exp2() if scales == "powers_of_two" else scale
    parts = parts / scale
    parts = (parts.round() if out == torch.int8 else parts).clamp(-most, most)
    return parts.reshape(rows, -1)[:, :width].to(out), scale[..., 0]


def _quantize_rows(x: Any, **rest: Any) -> Any:
    return _quantized(x.float(), **rest)


def _rms_norm_quantize(x: Any, weight: Any, residual: Any, residual_out: Any, eps: float, **rest: Any) -> Any:
    total = x.float() if residual is None else x.float() + residual.float()
    weight = None if weight is None else weight.float()
    result = _quantized(_f.rms_norm(total, total.shape[-1:], weight, eps), **rest)
    return result if residual_out is None else (*result, total.to(x.dtype))


def _silu_mul_quantize(gate: Any, up: Any, **rest: Any) -> Any:
    return _quantized(_f.silu(gate.float()) * up.float(), **rest)


_EAGER: dict[str, Callable[..., Any]] = {
    "gemm": _gemm,
    "batched_gemm": _batched_gemm,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "silu_mul": _silu_mul,
    "quantize_rows": _quantize_rows,
    "rms_norm_quantize": _rms_norm_quantize,
    "silu_mul_quantize": _silu_mul_quantize,
}
"""For outputs, they take whether each is wanted: None, or its dtype."""


def eager(arena: Arena) -> Run:
    """The composition that a user of a framework writes. It makes its own outputs."""
    function, given = _EAGER[arena.task.operator], [vars(call) for call in arena.calls]
    return lambda i: function(**given[i])


def ways(arena: Arena) -> dict[str, Run]:
    """The ways in which torch computes the task. Not each of them need take it."""
    problem, calls = arena.task.problem, arena.calls
    if arena.task.operator == "flash_attention":
        return _attentions(arena)
    if arena.task.kind == "product":
        return {"torch": product(arena)}
    found = {"torch": eager(arena)}
    if problem.attributes.get("activation") == "gelu_tanh" and problem.present == ("bias",):
        fused = torch._addmm_activation
        found["fused"] = lambda i: fused(calls[i].bias, calls[i].a, calls[i].b, use_gelu=True)
    return found


def _attentions(arena: Arena) -> dict[str, Run]:
    """torch's attention: each backend alone and its own choice, with each way to tell the mask."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    calls, dims = arena.calls, arena.task.problem.dims
    queries, keys, causal = dims["M"], dims["N"], calls[0].causal
    masks: dict[str, dict[str, Any]] = {"": {"is_causal": causal != "none" and queries > 1}}
    if causal == "lower_right" and 1 < queries != keys:
        bias = torch.zeros(queries, keys, dtype=calls[0].q.dtype, device=calls[0].q.device)
        bias.masked_fill_(~_seen(calls[0]), -math.inf)  # torch would make this of a mask of booleans, at each call
        masks = {"": {"attn_mask": causal_lower_right(queries, keys)}, " bias": {"attn_mask": bias}}
    names = ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", ""]
    names += ["MATH"] if dims["B"] * dims["H"] * queries * keys <= _SMALL else []

    def way(backend: str, mask: dict[str, Any]) -> Run:
        def run(i: int) -> object:
            q, k, v = calls[i].q, calls[i].k, calls[i].v
            return _f.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **mask)

        def alone(i: int) -> object:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return run(i)

        return alone if backend else run

    return {(n.split("_")[0].lower() or "default") + m: way(n, mask) for n in names for m, mask in masks.items()}


def _seen(call: Any) -> Any:
    """Which keys the queries see."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    whole = torch.ones(queries, keys, dtype=torch.bool, device=call.q.device)
    return whole if call.causal == "none" else whole.tril_(keys - queries if call.causal == "lower_right" else 0)


def _written(arena: Arena, run: Run) -> dict[str, Any]:
    """The outputs of the first call."""
    outputs = arena.outputs()
    for out in outputs.values():
        out.fill_(math.nan)
    run(0)
    return outputs


def off_attention(arena: Arena, run: Run) -> float:
    """The norm of the distance of some heads from the result in float64, over the latter's norm."""
    call, out = arena.calls[0], _written(arena, run)["out"]
    batches, heads = out.shape[:2]
    shared, hidden, worst = heads // call.k.shape[1], ~_seen(call), 0.0
    for b, h in {(0, 0), (batches // 2, heads // 2), (batches - 1, heads - 1)}:
        q, k, v = (t.double() for t in (call.q[b, h], call.k[b, h // shared], call.v[b, h // shared]))
        scores = (q @ k.T).mul_(q.shape[-1] ** -0.5).masked_fill_(hidden, -math.inf)
        exact = torch.softmax(scores, -1) @ v
        worst = max(worst, float((out[b, h].double() - exact).norm() / exact.norm()))
    return worst if bool(torch.isfinite(out).all()) else math.inf


def compiled(arena: Arena) -> Run:
    """The same through torch.compile with all of its tuning.

    Its own CUDA graphs are off, because they cannot be captured. Our graphs replay it, without the copies that its own
    make.
    """
    torch.compiler.reset()
    function, first = _EAGER[arena.task.operator], vars(arena.calls[0])
    inputs = [t.name for t in arena.operator.inputs if first[t.name] is not None]
    fixed = {k: v for k, v in first.items() if k not in inputs}
    fixed |= {t.name: first[t.name].dtype for t in arena.operator.outputs if first[t.name] is not None}

    def composed(*tensors: Any) -> Any:
        return function(**fixed, **dict(zip(inputs, tensors, strict=True)))

    made = torch.compile(composed, mode="max-autotune-no-cudagraphs", dynamic=False)
    given = [[vars(call)[name] for name in inputs] for call in arena.calls]
    return lambda i: made(*given[i])


def difference(arena: Arena, run: Run, other: Run) -> float:
    """Two ways to compute the first outputs: the norm of their difference, over the norm of the second's."""
    mine = [out.double() for out in _written(arena, run).values()]
    worst = 0.0
    for value, wanted in zip(mine, _several(other(0)), strict=False):
        exact = wanted.double()
        off = float((value - exact).norm() / exact.norm())
        worst = max(worst, off if off == off else math.inf)  # noqa: PLR0124 NaN
    return worst


def _several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def furthest(arena: Arena, run: Run) -> float:
    """The largest distance of an element of the first outputs from torch's result for the same inputs in float64.

    It is relative to the element's size and the root mean square of its row. A difference that the dtype cannot
    distinguish from 0 does not count.
    """
    outputs = _written(arena, run).values()
    wide = {n: v.double() if isinstance(v, torch.Tensor) else v for n, v in vars(arena.calls[0]).items()}
    worst = 0.0
    for out, exact in zip(outputs, _several(_EAGER[arena.task.operator](**wide)), strict=False):
        facts = torch.finfo(out.dtype)
        distance = ((out.double() - exact).abs() - facts.smallest_normal * facts.eps).clamp_min_(0.0)
        share = distance / (exact.abs() + exact.square().mean(-1, keepdim=True).sqrt())
        worst = max(worst, float(share.nan_to_num_(nan=torch.inf).max()))
    return worst
