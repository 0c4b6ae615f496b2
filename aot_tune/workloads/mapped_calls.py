"""Calls of other libraries: what a bundled operator computes becomes its problem, the rest is counted by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from aot_tune.report.report_text import counted
from aot_tune.spec import Operator, Problem, problem
from aot_tune.spec.calls import check_call, is_empty
from aot_tune.spec.workload import normal_problem
from aot_tune.support.errors import SpecError
from aot_tune.workloads.workload_lines import CountedProblem

UNKNOWN = "unknown"
"""The value of an argument that was passed but not recorded."""

_FLOATS = ("f32", "bf16", "f16")

_SHOWN = 12


class AtenTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that was passed. Strides are in elements. `dtype` is one of ours, or torch's name of another."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class AtenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the operator `name`, such as "mm"."""

    name: str
    arguments: Sequence[object]
    keywords: Mapping[str, object] = {}

    def tensor(self, position: int) -> AtenTensor | None:
        """The tensor that was passed in a place; None if none was."""
        passed = self.arguments[position] if position < len(self.arguments) else None
        return passed if isinstance(passed, AtenTensor) else None

    def value(self, position: int, name: str, default: object = None) -> object:
        """The value that was passed in a place or by name."""
        passed = self.arguments[position] if position < len(self.arguments) else self.keywords.get(name)
        return default if passed is None else passed


def _flat_rows(tensor: AtenTensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shape and strides of a tensor as a matrix: all axes but the last become one, if necessary in a copy."""
    *outer, last = tensor.shape
    rows = math.prod(outer)
    steps = [(extent, stride) for extent, stride in zip(outer, tensor.strides, strict=False) if extent != 1]
    if any(stride != extent * step for (_, stride), (extent, step) in itertools.pairwise(steps)):
        return (rows, last), (last, 1)
    return (rows, last), (steps[-1][1] if steps else last, tensor.strides[-1])


class Unmapped(Exception):  # noqa: N818 - not an error: the call is another library's
    """No bundled operator computes a call. The message says why."""


def aten_problem(call: AtenCall) -> tuple[str, Problem]:
    """The bundled operator that computes a call, and its problem. Raises Unmapped when there is none."""
    if call.name not in _RULES:
        raise Unmapped("no bundled operator computes it")
    return _RULES[call.name](call)


def gated_problem(gate: AtenTensor, up: AtenTensor) -> tuple[str, Problem]:
    """`silu(gate) * up`, for tensors of one shape."""
    (rows, width), gate_strides = _flat_rows(gate)
    _, up_strides = _flat_rows(up)
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
    shape, strides = _flat_rows(x)
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
    (rows, width), strides = _flat_rows(x)
    vectors = {name: vector for name, vector in optional.items() if vector is not None}
    vector_strides = {name: vector.strides for name, vector in vectors.items()}
    dtypes = _one_dtype(x, *vectors.values())
    return operator, problem(
        R=rows, D=width, strides={"x": strides, **vector_strides}, present=tuple(vectors), dtypes=dtypes
    )


def _attend(call: AtenCall, *, mask: tuple[int, str] | None, dropout: int) -> tuple[str, Problem]:
    """`mask` is the argument's place and name. `dropout` is the place of that argument; the next place is is_causal."""
    q, k, v = (_tensor(call, position) for position in (0, 1, 2))
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
    "scaled_dot_product_attention": partial(_attend, mask=(3, "attn_mask"), dropout=4),
    "_scaled_dot_product_flash_attention": partial(_attend, mask=None, dropout=3),
    "_scaled_dot_product_flash_attention_for_cpu": partial(_attend, mask=(5, "attn_mask"), dropout=3),
    "_scaled_dot_product_efficient_attention": partial(_attend, mask=(3, "attn_bias"), dropout=5),
    "_scaled_dot_product_cudnn_attention": partial(_attend, mask=(3, "attn_bias"), dropout=5),
}


def _tensor(call: AtenCall, position: int) -> AtenTensor:
    tensor = call.tensor(position)
    if tensor is None:
        raise Unmapped(f"its argument {position} is not recorded as a tensor")
    return tensor


def _matrices(call: AtenCall, first: int, second: int, *, rank: int) -> tuple[AtenTensor, AtenTensor]:
    a, b = _tensor(call, first), _tensor(call, second)
    if len(a.shape) != rank or len(b.shape) != rank or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise Unmapped(f"it has the shapes {list(a.shape)} and {list(b.shape)}")
    return a, b


def _must_be(call: AtenCall, position: int, name: str, wanted: float, default: object = 1) -> None:
    passed = call.value(position, name, default)
    if passed != wanted:
        raise Unmapped(f"its {name} is not recorded" if passed == UNKNOWN else f"its {name} is {passed}")


def _one_dtype(*tensors: AtenTensor) -> dict[str, str]:
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1:
        raise Unmapped(f"its tensors have several dtypes: {', '.join(sorted(dtypes))}")
    (name,) = dtypes
    if name not in _FLOATS:
        raise Unmapped(f"its dtype is {name}")
    return {"T": name}


class MappedCalls:
    """The calls of some files, mapped and not mapped. `operators` are those that calls are mapped to."""

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        self.problems: list[CountedProblem] = []
        self.left: dict[tuple[str, str], float] = {}
        self._operators = operators

    def add(self, call: str, operator: str, problem: Problem, weight: float = 1.0) -> None:
        """Count a call as a problem of an operator, or as one that is not mapped if the operator does not take it."""
        declared = self._operators[operator]
        try:
            check_call(declared, problem)
        except SpecError as error:
            self.leave(call, error.what, weight)
            return
        if is_empty(declared, problem):
            self.leave(call, "it has no elements", weight)
            return
        normal = normal_problem(declared, problem)
        self.problems.append(CountedProblem(operator=operator, problem=normal, weight=weight, place=call))

    def leave(self, call: str, reason: str, count: float = 1.0) -> None:
        """Count a call that is not mapped."""
        self.left[call, reason] = self.left.get((call, reason), 0.0) + count

    def told(self) -> list[str]:
        """Lines on calls that were not mapped, the most frequent first."""
        if not self.left:
            return []
        rows = sorted(self.left.items(), key=lambda item: (-item[1], item[0]))
        mapped, total = sum(entry.weight for entry in self.problems), sum(self.left.values())
        lines = [f"mapped {counted(mapped)}; {counted(total)} could not be mapped:"]
        lines += [f"  {counted(n)} of {call}: {reason}" for (call, reason), n in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            lines.append(f"  and {counted(sum(n for _, n in rows[_SHOWN:]))} of {len(rows) - _SHOWN} more kinds")
        return lines
