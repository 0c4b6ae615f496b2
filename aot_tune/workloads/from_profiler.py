"""Traces of torch.profiler: calls of ATen operators are events, nested because operators call others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aot_tune.spec import Problem, row_major
from aot_tune.support.errors import SpecError
from aot_tune.workloads.aten_calls import UNKNOWN, AtenCall, AtenTensor
from aot_tune.workloads.aten_problems import Unmapped, aten_problem, gated_problem
from aot_tune.workloads.mapped_calls import MappedCalls

__all__ = ["map_profile"]

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


def map_profile(events: Sequence[Any], name: str, calls: MappedCalls) -> None:
    """Count the calls of a trace. Among nested calls, the outermost one that can be mapped counts.

    Raises:
        SpecError: when shapes were not recorded.
    """
    threads: dict[object, list[_Outcome]] = {}
    for root in _nested(events, name):
        threads.setdefault(root.thread, []).extend(_resolve(root))
    for outcomes in threads.values():
        for outcome in _with_gates(outcomes):
            _count(outcome, calls)


def _count(outcome: _Outcome, calls: MappedCalls) -> None:
    name, reason = f"aten::{outcome.event.call.name}", outcome.reason
    if outcome.problem is not None:
        reason = calls.add(name, outcome.operator, outcome.problem)
    if reason:
        calls.leave(name, reason)


def _nested(events: Sequence[Any], name: str) -> list[_Event]:
    """The outermost calls in order of time."""
    told = [e for e in events if isinstance(e, dict) and str(e.get("name", "")).startswith("aten::") and "ts" in e]
    if not any("Input Dims" in e.get("args", ()) for e in told):
        what = "no shapes of inputs were recorded" if told else "there are no events of ATen operators"
        raise SpecError(f"{name}: {what}", fix="record with torch.profiler.profile(..., record_shapes=True)")
    roots: list[_Event] = []
    running: dict[object, list[tuple[float, _Event]]] = {}
    for event in sorted(told, key=lambda e: (float(e["ts"]), -float(e.get("dur", 0)))):
        begin, thread = float(event["ts"]), (event.get("pid"), event.get("tid"))
        stack = running.setdefault(thread, [])
        while stack and stack[-1][0] <= begin:
            stack.pop()
        one = _Event(_call(event), thread)
        (stack[-1][1].inner if stack else roots).append(one)
        stack.append((begin + float(event.get("dur", 0)), one))
    return roots


def _resolve(event: _Event) -> list[_Outcome]:
    """The call as a problem, or else its inner calls if one of them is a problem, or else the reason why it is none."""
    try:
        operator, problem = aten_problem(event.call)
        return [_Outcome(event, operator, problem)]
    except Unmapped as unmapped:
        reason = str(unmapped)
    inner = [outcome for one in event.inner for outcome in _resolve(one)]
    if any(outcome.problem is not None for outcome in inner):
        return inner
    return [] if event.call.name in _VIEWS else [_Outcome(event, reason=reason)]


def _with_gates(outcomes: Iterable[_Outcome]) -> Iterator[_Outcome]:
    """The outcomes of a thread. silu and a following multiplication become one: silu_mul.

    The product that makes the other factor may come between them.
    """
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
        return _value(kind, value)
    if not isinstance(shape, list) or not all(type(e) is int for e in shape):
        return UNKNOWN  # a list of tensors
    known = strides if isinstance(strides, list) and len(strides) == len(shape) else row_major(shape)
    return AtenTensor(shape=tuple(shape), strides=tuple(known), dtype=_DTYPES.get(kind, kind))


def _value(kind: str, value: str | None) -> object:
    if not value:
        return UNKNOWN if kind.startswith("Scalar") else None
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return UNKNOWN
