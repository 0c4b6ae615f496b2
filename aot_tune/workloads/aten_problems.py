"""Maps calls of ATen operators to problems of bundled operators: which operator, and with which strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot_tune.spec import Problem, problem
from aot_tune.workloads.aten_calls import UNKNOWN, AtenCall, AtenTensor, flat_rows

__all__ = ["Unmapped", "aten_problem", "gated_problem"]

_DTYPES = ("f32", "bf16", "f16")


class Unmapped(Exception):  # noqa: N818 - not an error: the call is another library's
    """No bundled operator computes a call. The message says why."""


def aten_problem(call: AtenCall) -> tuple[str, Problem]:
    """The bundled operator that computes a call, and its problem.

    Raises:
        Unmapped: when there is none.
    """
    if call.name not in _RULES:
        raise Unmapped("no bundled operator computes it")
    return _RULES[call.name](call)


def gated_problem(gate: AtenTensor, up: AtenTensor) -> tuple[str, Problem]:
    """`silu(gate) * up`, for tensors of one shape."""
    (rows, width), gate_strides = flat_rows(gate)
    _, up_strides = flat_rows(up)
    return "silu_mul", problem(
        R=rows, D=width, strides={"gate": gate_strides, "up": up_strides}, dtypes=_one_dtype(gate, up)
    )


def _mm(call: AtenCall) -> tuple[str, Problem]:
    return _product(*_matrices(call, 0, 1, rank=2))


def _addmm(call: AtenCall) -> tuple[str, Problem]:
    a, b = _matrices(call, 1, 2, rank=2)
    _must_be(call, 3, "beta", 1)
    _must_be(call, 4, "alpha", 1)
    return _product(a, b, added=call.tensor(0))


def _linear(call: AtenCall) -> tuple[str, Problem]:
    x, weight = _tensor(call, 0), _tensor(call, 1)
    if len(weight.shape) != 2 or not x.shape:
        raise Unmapped("its weight is not a matrix")
    shape, strides = flat_rows(x)
    a = AtenTensor(shape=shape, strides=strides, dtype=x.dtype)
    b = AtenTensor(shape=weight.shape[::-1], strides=weight.strides[::-1], dtype=weight.dtype)
    return _product(a, b, added=call.tensor(2))


def _bmm(call: AtenCall) -> tuple[str, Problem]:
    a, b = _matrices(call, 0, 1, rank=3)
    batch, rows, depth = a.shape
    return "batched_gemm", problem(
        B=batch, M=rows, N=b.shape[2], K=depth, strides={"a": a.strides, "b": b.strides}, dtypes=_one_dtype(a, b)
    )


def _product(a: AtenTensor, b: AtenTensor, added: AtenTensor | None = None) -> tuple[str, Problem]:
    (rows, depth), columns = a.shape, b.shape[1]
    strides = {"a": a.strides, "b": b.strides}
    present: tuple[str, ...] = ()
    if added is not None and added.shape == (columns,):
        present, strides["bias"] = ("bias",), added.strides
    elif added is not None and added.shape == (rows, columns):
        present, strides["residual"] = ("residual",), added.strides
    elif added is not None:
        raise Unmapped(
            f"the tensor that it adds has the shape {list(added.shape)}, which is neither a row's nor the result's"
        )
    dtypes = _one_dtype(a, b, *([added] if added is not None else []))
    return "gemm", problem(M=rows, N=columns, K=depth, strides=strides, present=present, dtypes=dtypes)


def _softmax(call: AtenCall) -> tuple[str, Problem]:
    x = _tensor(call, 0)
    axis, other = call.value(1, "dim", UNKNOWN), call.value(2, "dtype", False)
    if axis not in (-1, len(x.shape) - 1):
        raise Unmapped("its dim is not recorded" if axis == UNKNOWN else "it is not over the last dim")
    if other is not False:
        raise Unmapped("its result has another dtype")
    return _by_rows("softmax", x)


def _layer_norm(call: AtenCall) -> tuple[str, Problem]:
    return _by_rows("layer_norm", _normalised(call), weight=call.tensor(2), bias=call.tensor(3))


def _rms_norm(call: AtenCall) -> tuple[str, Problem]:
    return _by_rows("rms_norm", _normalised(call), weight=call.tensor(2))


def _normalised(call: AtenCall) -> AtenTensor:
    """The input of a norm over its last dim."""
    x, shape = _tensor(call, 0), call.value(1, "normalized_shape", UNKNOWN)
    if not isinstance(shape, Sequence) or list(shape) != list(x.shape[-1:]):
        raise Unmapped("its normalized_shape is not recorded" if shape == UNKNOWN else "it is over several dims")
    return x


def _by_rows(operator: str, x: AtenTensor, **optional: AtenTensor | None) -> tuple[str, Problem]:
    (rows, width), strides = flat_rows(x)
    vectors = {name: vector for name, vector in optional.items() if vector is not None}
    vector_strides = {name: vector.strides for name, vector in vectors.items()}
    dtypes = _one_dtype(x, *vectors.values())
    return operator, problem(
        R=rows, D=width, strides={"x": strides, **vector_strides}, present=tuple(vectors), dtypes=dtypes
    )


def _attention(call: AtenCall) -> tuple[str, Problem]:
    return _attend(call, mask=(3, "attn_mask"), dropout=4)


def _flash_attention(call: AtenCall) -> tuple[str, Problem]:
    return _attend(call, mask=None, dropout=3)


def _flash_attention_for_cpu(call: AtenCall) -> tuple[str, Problem]:
    return _attend(call, mask=(5, "attn_mask"), dropout=3)


def _biased_attention(call: AtenCall) -> tuple[str, Problem]:
    return _attend(call, mask=(3, "attn_bias"), dropout=5)


def _attend(call: AtenCall, *, mask: tuple[int, str] | None, dropout: int) -> tuple[str, Problem]:
    """`mask` is the argument's place and name. `dropout` is the place of that argument; the next place is is_causal."""
    q, k, v = (_tensor(call, place) for place in (0, 1, 2))
    _must_be(call, dropout, "dropout_p", 0, default=0)
    causal = call.value(dropout + 1, "is_causal", False)
    if not isinstance(causal, bool):
        raise Unmapped("its is_causal is not recorded")
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise Unmapped("its tensors do not have four axes")
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise Unmapped("its batches, lengths or widths of heads differ")
    batch, heads, queries, width = q.shape
    key_heads, keys = k.shape[1:3]
    beside = {} if mask is None else _masks(call.value(*mask), (batch, heads, queries, keys), q.dtype)
    return "flash_attention", problem(
        B=batch, H=heads, HK=key_heads, M=queries, N=keys, D=width, present=[*beside],
        strides={"q": q.strides, "k": k.strides, "v": v.strides, **beside},
        attributes={"causal": "upper_left"} if causal else {}, dtypes=_one_dtype(q, k, v),
    )  # fmt: skip


def _masks(mask: object, extents: Sequence[int], dtype: str) -> dict[str, tuple[int, ...]]:
    """The strides of a mask or a bias, by its name. They are 0 along axes over which it is broadcast."""
    if mask is None:
        return {}
    if not isinstance(mask, AtenTensor):
        raise Unmapped("its mask is not recorded")
    if mask.dtype not in ("bool", dtype):
        raise Unmapped(f"its mask is {mask.dtype}")
    missing = len(extents) - len(mask.shape)
    shape, strides = (1,) * missing + mask.shape, (0,) * missing + mask.strides
    if missing < 0 or any(n not in (1, full) for n, full in zip(shape, extents, strict=True)):
        raise Unmapped(f"its mask has the shape {list(mask.shape)}")
    broadcast = tuple(0 if n != full else s for n, full, s in zip(shape, extents, strides, strict=True))
    return {"mask" if mask.dtype == "bool" else "bias": broadcast}


_RULES: dict[str, Callable[[AtenCall], tuple[str, Problem]]] = {
    "mm": _mm,
    "addmm": _addmm,
    "linear": _linear,
    "bmm": _bmm,
    "softmax": _softmax,
    "_softmax": _softmax,
    "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "_fused_rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention": _flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention_for_cpu,
    "_scaled_dot_product_efficient_attention": _biased_attention,
    "_scaled_dot_product_cudnn_attention": _biased_attention,
}


def _tensor(call: AtenCall, place: int) -> AtenTensor:
    found = call.tensor(place)
    if found is None:
        raise Unmapped(f"its argument {place} is not recorded as a tensor")
    return found


def _matrices(call: AtenCall, first: int, second: int, *, rank: int) -> tuple[AtenTensor, AtenTensor]:
    a, b = _tensor(call, first), _tensor(call, second)
    if len(a.shape) != rank or len(b.shape) != rank or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise Unmapped(f"it has the shapes {list(a.shape)} and {list(b.shape)}")
    return a, b


def _must_be(call: AtenCall, place: int, name: str, wanted: float, default: object = 1) -> None:
    found = call.value(place, name, default)
    if found != wanted:
        raise Unmapped(f"its {name} is not recorded" if found == UNKNOWN else f"its {name} is {found}")


def _one_dtype(*tensors: AtenTensor) -> dict[str, str]:
    found = {t.dtype for t in tensors}
    if len(found) > 1:
        raise Unmapped(f"its tensors have several dtypes: {', '.join(sorted(found))}")
    (name,) = found
    if name not in _DTYPES:
        raise Unmapped(f"its dtype is {name}")
    return {"T": name}
