"""What a measurement depends on beside its object: the problem, and what the operator promises."""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

import msgspec

from aot_tune.spec import Expr, Operator, Problem

__all__ = ["canonical", "digest", "names_used", "operator_digest", "problem_key"]


def canonical(value: object) -> bytes:
    """Plain data as JSON that does not depend on the order of any mapping."""
    return msgspec.json.encode(value, order="deterministic")


def digest(value: object) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(canonical(value)).hexdigest()


def problem_key(problem: Problem) -> str:
    """Equal for equal problems, whatever the order in which their dims were written."""
    return canonical(problem).decode()


def operator_digest(operator: Operator) -> str:
    """Digest of what results are checked against and fed with: arguments, values, epilogue, tolerance, reference.

    Kernels, workload, baselines, documentation and `exact` are not part of it: adding a kernel, a problem or a way to
    verify leaves the measurements of the others as they are. The reference counts with the functions and constants of
    its module that it uses, a file of values with its digest.
    """
    tensors = [
        [t.name, [s.key() for s in t.shape], t.dtype_name, t.output, t.optional, t.cold, _plain(t.values)]
        for t in operator.tensors
    ]
    scalars = [[s.name, s.dtype_name, s.default] for s in operator.scalars]
    attributes = [[a.name, a.choices] for a in operator.attributes]
    return digest(
        {
            "name": operator.name,
            "dims": operator.dims,
            "dtypes": dict(operator.dtypes),
            "tensors": tensors,
            "scalars": scalars,
            "attributes": attributes,
            "epilogue": _plain(operator.epilogue),
            "tolerance": operator.tolerance,
            "reference": _sources(operator.reference),
            **({"legal": [e.key() for e in operator.legal]} if operator.legal else {}),
            **({"deterministic": True} if operator.deterministic else {}),
        }
    )


def _plain(value: object) -> object:
    """Specification objects as plain data."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    if isinstance(value, Expr):
        return value.key()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    fields: Mapping[str, object] = vars(value)
    return [type(value).__name__, {k: _plain(v) for k, v in sorted(fields.items())}]


def _sources(function: Callable[..., Any]) -> dict[str, str]:
    """The source of a function and of what it uses of its own module, by name."""
    found: dict[str, str] = {}
    waiting = [function]
    while waiting:
        current = inspect.unwrap(waiting.pop())
        if not isinstance(current, FunctionType) or current.__qualname__ in found:
            continue
        found[current.__qualname__] = _source(current)
        for name in names_used(current.__code__):
            value = current.__globals__.get(name)
            if isinstance(value, FunctionType) and value.__module__ == current.__module__:
                waiting.append(value)
            elif isinstance(value, (int, float, str, tuple)):
                found[name] = repr(value)
    return found


def _source(function: FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return function.__code__.co_code.hex()


def names_used(code: CodeType) -> set[str]:
    """Names of globals and attributes in a function's code, and in the code of the functions within it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_used(constant)
    return names
