"""Calls of ATen operators that torch wrote down: profiler traces and operator inputs, recognised by their text.

In a trace, calls are events, nested because operators call others. Operator inputs, as in torch's benchmarks and
TritonBench, are calls as text, with their counts: `((T([16, 32], f16), T([32, 64], f16, stride=(1, 32))), {})` are the
arguments of a call, by position, then by name.
"""

from __future__ import annotations

import ast
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aot_tune.spec import Problem, row_major
from aot_tune.support.errors import SpecError
from aot_tune.workloads.mapped_calls import (
    UNKNOWN,
    AtenCall,
    AtenTensor,
    MappedCalls,
    Unmapped,
    aten_problem,
    gated_problem,
)

_DTYPES = {"float": "f32", "c10::BFloat16": "bf16", "c10::Half": "f16", "double": "f64"}
_VALUES = ("", "Scalar", "ScalarList", "None")
_PRODUCTS = ("gemm", "batched_gemm")
_VIEWS = frozenset(
    (
        *("view", "reshape", "t", "transpose", "permute", "expand", "as_strided", "slice", "select", "narrow", "chunk"),
        *("split", "split_with_sizes", "unsqueeze", "squeeze", "flatten", "unflatten", "unbind", "detach", "alias"),
        *("_unsafe_view", "_reshape_alias", "resolve_conj", "resolve_neg", "numpy_T", "view_as", "expand_as"),
        *("empty", "empty_like", "empty_strided", "new_empty", "result_type", "can_cast", "lift_fresh", "detach_"),
    )
)
"""Operators that compute nothing."""

_COUNTED = re.compile(r"cnt: (\d+), (.*)")
_LONG_NAMES = {"fp32": "f32", "fp16": "f16", "fp64": "f64"}
_FORM = "write the arguments as ((T([16, 32], f16), T([32, 64], f16)), {}), and how often they are passed"

_GZIP = b"\x1f\x8b"
_EVENTS = "traceEvents"
_WHY = "it must be a trace of torch.profiler or a file of operator inputs"
_FIX = "write one with export_chrome_trace, from a profile with record_shapes=True"


@dataclass
class _Event:
    """A call that an event describes, with the calls that it made itself."""

    call: AtenCall
    thread: object
    inner: list[_Event] = field(default_factory=list)


@dataclass(frozen=True)
class _Outcome:
    """What became of a call: a problem, or why it is none."""

    event: _Event
    operator: str = ""
    problem: Problem | None = None
    reason: str = ""


def _map_profile(events: Sequence[Any], name: str, calls: MappedCalls) -> None:
    """Count a trace's calls, the outermost mapped one of nested ones. Raises SpecError without shapes."""
    threads: dict[object, list[_Outcome]] = {}
    for root in _nested(events, name):
        threads.setdefault(root.thread, []).extend(_resolve(root))
    for outcomes in threads.values():
        for outcome in _with_gates(outcomes):
            _count(outcome, calls)


def _count(outcome: _Outcome, calls: MappedCalls) -> None:
    name = f"aten::{outcome.event.call.name}"
    if outcome.problem is not None:
        calls.add(name, outcome.operator, outcome.problem)
    else:
        calls.leave(name, outcome.reason)


def _nested(events: Sequence[Any], name: str) -> list[_Event]:
    """The outermost calls in order of time."""
    calls = [e for e in events if isinstance(e, dict) and str(e.get("name", "")).startswith("aten::") and "ts" in e]
    if not any("Input Dims" in e.get("args", ()) for e in calls):
        what = "no shapes of inputs were recorded" if calls else "there are no events of ATen operators"
        raise SpecError(f"{name}: {what}", fix="record with torch.profiler.profile(..., record_shapes=True)")
    roots: list[_Event] = []
    running: dict[object, list[tuple[float, _Event]]] = {}
    for event in sorted(calls, key=lambda e: (float(e["ts"]), -float(e.get("dur", 0)))):
        begin, thread = float(event["ts"]), (event.get("pid"), event.get("tid"))
        stack = running.setdefault(thread, [])
        while stack and stack[-1][0] <= begin:
            stack.pop()
        call = _Event(_call(event), thread)
        (stack[-1][1].inner if stack else roots).append(call)
        stack.append((begin + float(event.get("dur", 0)), call))
    return roots


def _resolve(event: _Event) -> list[_Outcome]:
    """The call as a problem, or else its inner calls if one of them is a problem, or else the reason why it is none."""
    try:
        operator, problem = aten_problem(event.call)
        return [_Outcome(event, operator, problem)]
    except Unmapped as unmapped:
        reason = str(unmapped)
    inner = [outcome for child in event.inner for outcome in _resolve(child)]
    if any(outcome.problem is not None for outcome in inner):
        return inner
    return [] if event.call.name in _VIEWS else [_Outcome(event, reason=reason)]


def _with_gates(outcomes: Iterable[_Outcome]) -> Iterator[_Outcome]:
    """A thread's outcomes with silu and a following multiplication as one, silu_mul; a product may be between."""
    waiting: _Outcome | None = None
    products = 0
    for outcome in outcomes:
        if waiting is not None and outcome.event.call.name in ("mul", "mul_"):
            gated = _gated(waiting, outcome)
            if gated is not None:
                yield gated
                waiting = None
                continue
        if waiting is not None and (outcome.operator not in _PRODUCTS or products):
            yield waiting
            waiting = None
        if outcome.event.call.name in ("silu", "silu_"):
            waiting, products = outcome, 0
            continue
        products += outcome.operator in _PRODUCTS
        yield outcome
    if waiting is not None:
        yield waiting


def _gated(silu: _Outcome, multiplied: _Outcome) -> _Outcome | None:
    gate, first, up = silu.event.call.tensor(0), multiplied.event.call.tensor(0), multiplied.event.call.tensor(1)
    if gate is None or first is None or up is None or not gate.shape or not gate.shape == first.shape == up.shape:
        return None
    try:
        return _Outcome(multiplied.event, *gated_problem(gate, up))
    except Unmapped:
        return None


def _call(event: Mapping[str, Any]) -> AtenCall:
    args = event.get("args", {})
    shapes, kinds = args.get("Input Dims", []), args.get("Input type", [])
    strides, values = args.get("Input Strides"), args.get("Concrete Inputs")
    arguments = [
        _argument(
            kinds[n] if n < len(kinds) else "",
            shape,
            strides[n] if strides is not None and n < len(strides) else None,
            values[n] if values is not None and n < len(values) else None,
        )
        for n, shape in enumerate(shapes)
    ]
    return AtenCall(name=event["name"].removeprefix("aten::").partition(".")[0], arguments=arguments)


def _argument(kind: str, shape: Any, strides: Any, value: str | None) -> object:
    if kind in _VALUES and not shape:
        return _recorded_value(kind, value)
    if not isinstance(shape, list) or not all(type(e) is int for e in shape):
        return UNKNOWN  # a list of tensors
    steps = strides if isinstance(strides, list) and len(strides) == len(shape) else row_major(shape)
    return AtenTensor(shape=tuple(shape), strides=tuple(steps), dtype=_DTYPES.get(kind, kind))


def _recorded_value(kind: str, value: str | None) -> object:
    if not value:
        return UNKNOWN if kind.startswith("Scalar") else None
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return UNKNOWN


def _map_inputs(document: Mapping[str, Any], name: str, calls: MappedCalls) -> None:
    """Count the calls of a JSON object: inputs and counts by operator. Raises SpecError with the place."""
    for operator, listed in document.items():
        if operator == "metadata":
            continue
        for number, (text, count) in enumerate(_entries(listed, f"{name}: {operator}"), 1):
            _map(operator, text, count, f"{name}: {operator}, inputs {number}", calls)


def _map_inputs_log(text: str, name: str, calls: MappedCalls) -> None:
    """Count a log's calls: `Operator: NAME`, then lines `cnt: COUNT, INPUTS`. Raises SpecError with the line."""
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


def _entries(listed: Any, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(listed, Mapping):
        listed = [{"inputs": text, "count": count} for text, count in listed.items()]
    for entry in listed if isinstance(listed, list) else [None]:
        text = entry.get("inputs") if isinstance(entry, Mapping) else None
        count = entry.get("count", 1) if isinstance(entry, Mapping) else None
        if not isinstance(text, str) or isinstance(count, bool) or not isinstance(count, (int, float)) or count < 0:
            raise SpecError(
                f"{where}: {str(listed)[:80]} is not a list of inputs with counts",
                fix='write [{"inputs": "((T([16, 32], f16), T([32, 64], f16)), {})", "count": 2}]',
            )
        yield text, float(count)


def _map(operator: str, text: str, count: float, where: str, calls: MappedCalls) -> None:
    arguments, keywords = _read(text, where)
    if operator in ("gemm", "addmm"):
        call = _by_dims(operator, keywords, where)
    else:
        parts = operator.replace("::", ".").split(".")
        call = AtenCall(
            name=parts[1] if parts[0] == "aten" and len(parts) > 1 else operator, arguments=arguments, keywords=keywords
        )
    if not count:
        return
    try:
        calls.add(operator, *aten_problem(call), weight=count)
    except Unmapped as unmapped:
        calls.leave(operator, str(unmapped), count)


def _by_dims(operator: str, stated: Mapping[str, Any], where: str) -> AtenCall:
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
            f"{where}: {stated} is not a product: {error}",
            fix="write ((), {'M': '16', 'N': '4096', 'K': '64', 'strides': '[[64, 1], [1, 64]]', 'dtype': 'bf16'})",
        ) from error
    return AtenCall(name="mm" if operator == "gemm" else operator, arguments=arguments)


def _added(stated: Mapping[str, Any], strides: Any, whole: tuple[int, int]) -> tuple[Any, Any]:
    """Shape and strides of the tensor that addmm adds: as stated, a repeated row, or as large as the result."""
    if "bias" in stated:
        shape = tuple(int(extent) for extent in _listed(stated["bias"]))
        return shape, row_major(shape)
    return ((whole[1],), strides[1:]) if strides[0] == 0 and whole[0] != 1 else (whole, strides)


def _listed(value: Any) -> Any:
    return ast.literal_eval(value) if isinstance(value, str) else value


def _read(text: str, where: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by position and by name. The text is parsed, never run."""
    try:
        arguments, keywords = _value(ast.parse(text.strip().strip("'\""), mode="eval").body)
        if isinstance(arguments, tuple) and isinstance(keywords, dict):
            return list(arguments), keywords
    except (SyntaxError, TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"{where}: {text[:80]!r} cannot be read: {error}", fix=_FORM) from error
    raise SpecError(f"{where}: {text[:80]!r} are not arguments", fix=_FORM)


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


def map_torch(data: bytes, name: str, calls: MappedCalls) -> None:
    """Count the calls of a file. Raises SpecError when it has another form, or cannot be read."""
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise SpecError(f"{name} cannot be unpacked: {error}", fix="record it again") from error
    if data.lstrip().startswith(b"Operator: "):
        _map_inputs_log(data.decode(errors="replace"), name, calls)
        return
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{name} is not JSON: {error}", why=_WHY, fix=_FIX) from error
    if isinstance(document, dict) and _EVENTS in document:
        document = document[_EVENTS]
    if isinstance(document, list):
        _map_profile(document, name, calls)
    elif isinstance(document, dict):
        _map_inputs(document, name, calls)
    else:
        raise SpecError(f"{name} holds {str(document)[:60]}, no calls", why=_WHY, fix=_FIX)
