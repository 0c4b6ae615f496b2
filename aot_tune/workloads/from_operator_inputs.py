"""Files of operator inputs, as in torch's benchmarks and TritonBench: calls as text, with their counts.

`((T([16, 32], f16), T([32, 64], f16, stride=(1, 32))), {})` are the arguments of a call: by position, then by name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from aot_tune.spec import row_major
from aot_tune.support.errors import SpecError
from aot_tune.workloads.aten_calls import UNKNOWN, AtenCall, AtenTensor
from aot_tune.workloads.aten_problems import Unmapped, aten_problem
from aot_tune.workloads.mapped_calls import MappedCalls

__all__ = ["map_inputs", "map_inputs_log"]

_COUNTED = re.compile(r"cnt: (\d+), (.*)")
_LONG_NAMES = {"fp32": "f32", "fp16": "f16", "fp64": "f64"}
_FORM = "write the arguments as ((T([16, 32], f16), T([32, 64], f16)), {}), and how often they are passed"


def map_inputs(document: Mapping[str, Any], name: str, calls: MappedCalls) -> None:
    """Count the calls of a JSON object. It has, for each operator's name, its inputs with their counts.

    Raises:
        SpecError: for inputs that cannot be read. It names the operator and their place in its list.
    """
    for operator, listed in document.items():
        if operator == "metadata":
            continue
        for number, (text, count) in enumerate(_entries(listed, f"{name}: {operator}"), 1):
            _map(operator, text, count, f"{name}: {operator}, inputs {number}", calls)


def map_inputs_log(text: str, name: str, calls: MappedCalls) -> None:
    """Count the calls of a log: lines `Operator: NAME`, each followed by lines `cnt: COUNT, INPUTS`.

    Raises:
        SpecError: for a line that is neither. It names file and line.
    """
    operator = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if line.startswith("Operator: "):
            operator = line.removeprefix("Operator: ").strip()
            continue
        counted = _COUNTED.fullmatch(line.strip())
        if counted is None or not operator:
            raise SpecError(
                f"{name}:{number}: {line[:80]!r} is not a line of operator inputs",
                why="lines are `Operator: NAME`, or `cnt: COUNT, INPUTS` after one",
                fix=_FORM,
            )
        _map(operator, counted[2], float(counted[1]), f"{name}:{number}", calls)


def _entries(listed: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(listed, Mapping):
        listed = [{"inputs": text, "count": count} for text, count in listed.items()]
    for entry in listed if isinstance(listed, list) else [None]:
        text = entry.get("inputs") if isinstance(entry, Mapping) else None
        count = entry.get("count", 1) if isinstance(entry, Mapping) else None
        if not isinstance(text, str) or isinstance(count, bool) or not isinstance(count, (int, float)) or count < 0:
            raise SpecError(
                f"{place}: {str(listed)[:80]} is not a list of inputs with counts",
                fix='write [{"inputs": "((T([16, 32], f16), T([32, 64], f16)), {})", "count": 2}]',
            )
        yield text, float(count)


def _map(operator: str, text: str, count: float, place: str, calls: MappedCalls) -> None:
    arguments, keywords = _read(text, place)
    if operator in ("gemm", "addmm"):
        call = _by_dims(operator, keywords, count, place)
    else:
        parts = operator.replace("::", ".").split(".")
        call = AtenCall(
            name=parts[1] if parts[0] == "aten" and len(parts) > 1 else operator,
            arguments=arguments,
            keywords=keywords,
            count=count,
        )
    if not count:
        return
    try:
        reason = calls.add(operator, *aten_problem(call), weight=count)
    except Unmapped as unmapped:
        reason = str(unmapped)
    if reason:
        calls.leave(operator, reason, count)


def _by_dims(operator: str, stated: Mapping[str, Any], count: float, place: str) -> AtenCall:
    """A product by its dims, strides and dtype, as in TritonBench. Those of the tensor that addmm adds come first."""
    try:
        rows, columns, depth = (int(stated[name]) for name in ("M", "N", "K"))
        *first, a, b = _listed(stated["strides"])
        tensors = [((rows, depth), a), ((depth, columns), b)]
        if operator == "addmm":
            tensors.insert(0, _added(stated, first[0] if first else None, (rows, columns)))
        kind = _LONG_NAMES.get(stated["dtype"], stated["dtype"])
        arguments = [AtenTensor(shape=tuple(s), strides=tuple(map(int, steps)), dtype=kind) for s, steps in tensors]
        if any(len(t.strides) != len(t.shape) for t in arguments):
            raise ValueError("strides of another number of axes")
    except (KeyError, IndexError, TypeError, ValueError, SyntaxError) as error:
        raise SpecError(
            f"{place}: {stated} is not a product: {error}",
            fix="write ((), {'M': '16', 'N': '4096', 'K': '64', 'strides': '[[64, 1], [1, 64]]', 'dtype': 'bf16'})",
        ) from error
    return AtenCall(name="mm" if operator == "gemm" else operator, arguments=arguments, count=count)


def _added(stated: Mapping[str, Any], strides: Any, whole: tuple[int, int]) -> tuple[Any, Any]:
    """Shape and strides of the tensor that addmm adds: as stated, a repeated row, or as large as the result."""
    if "bias" in stated:
        shape = tuple(int(extent) for extent in _listed(stated["bias"]))
        return shape, row_major(shape)
    return ((whole[1],), strides[1:]) if strides[0] == 0 and whole[0] != 1 else (whole, strides)


def _listed(value: Any) -> Any:
    return ast.literal_eval(value) if isinstance(value, str) else value


def _read(text: str, place: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by position and by name. The text is parsed, never run."""
    try:
        arguments, keywords = _value(ast.parse(text.strip().strip("'\""), mode="eval").body)
        if isinstance(arguments, tuple) and isinstance(keywords, dict):
            return list(arguments), keywords
    except (SyntaxError, TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"{place}: {text[:80]!r} cannot be read: {error}", fix=_FORM) from error
    raise SpecError(f"{place}: {text[:80]!r} are not arguments", fix=_FORM)


def _value(node: ast.expr) -> Any:
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_value(e) for e in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    if isinstance(node, ast.Dict):
        return {_value(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "T":
        return _tensor(node)
    if isinstance(node, (ast.Constant, ast.UnaryOp)):
        return ast.literal_eval(node)
    return UNKNOWN  # a name such as inf, or a sparse tensor


def _tensor(node: ast.Call) -> AtenTensor:
    shape = tuple(ast.literal_eval(node.args[0]))
    kind = node.args[1] if len(node.args) > 1 else None
    stated = {k.arg: k.value for k in node.keywords}
    steps = node.args[2] if len(node.args) > 2 else stated.get("stride")
    strides = row_major(shape) if steps is None else tuple(ast.literal_eval(steps))
    if len(strides) != len(shape) or not all(type(e) is int for e in (*shape, *strides)):
        raise ValueError(f"T({list(shape)}) has the strides {list(strides)}")
    named = kind.id if isinstance(kind, ast.Name) else kind.value if isinstance(kind, ast.Constant) else "unknown"
    return AtenTensor(shape=shape, strides=strides, dtype=str(named))
