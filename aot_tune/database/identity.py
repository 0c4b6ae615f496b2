"""What a measurement depends on beside its object and problem: what the operator promises.

A reference counts as text that is the same under every version of Python.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from aot_tune.spec import Compute, Drawn, Expr, Operator
from aot_tune.spec.tensors import DEFAULT_TOLERANCE
from aot_tune.support.digests import canonical_digest
from aot_tune.support.installed_paths import is_installed

_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), type(...))


def operator_digest(operator: Operator) -> str:
    """Digest of what decides inputs and checks: arguments, values, epilogue, tolerance, reference.

    Kernels, workload, baselines, documentation and `exact` are not part of it. So a new kernel, problem or way to
    verify does not affect other measurements. The reference counts with everything that it uses from modules of the
    project. A file of values counts by its digest.
    """
    tensors = [
        [t.name, [s.key() for s in t.shape], t.dtype_name, t.output, t.optional, t.cold, _plain(t.values)]
        + ([True] if t.finite else [])
        + (["inout"] if t.inout else [])
        + ([["may_alias", *t.may_alias]] if t.may_alias else [])
        for t in operator.tensors
    ]
    rounds = operator.roundings()
    scalars = [[s.name, s.dtype_name, s.default] + ([s.binds] if s.binds else []) for s in operator.scalars]
    attributes = [[a.name, a.choices] for a in operator.attributes]
    uses = used_elsewhere(operator.reference)
    return canonical_digest(
        {
            "name": operator.name,
            "dims": operator.dims,
            "dtypes": dict(operator.dtypes),
            "tensors": tensors,
            "scalars": scalars,
            "attributes": attributes,
            "epilogue": _plain(operator.epilogue),
            **({"fragments": {n: f.key() for n, f in operator.fragments.items()}} if operator.fragments else {}),
            "tolerance": DEFAULT_TOLERANCE if operator.tolerance is None else _plain(operator.tolerance),
            "reference": own_sources(operator.reference),
            **({"uses": uses} if uses else {}),
            **({"legal": [e.key() for e in operator.legal]} if operator.legal else {}),
            **({"deterministic": True} if operator.deterministic else {}),
            **({} if operator.workspace_max is None else {"workspace_max": operator.workspace_max}),
            **({"intermediates": rounds} if set(rounds) != {"f32"} else {}),
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
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in sorted(value.items())}
    if isinstance(value, Drawn):
        return ["Drawn", own_sources(value.function), used_elsewhere(value.function)]
    fields: Mapping[str, object] = {"key": value.key} if isinstance(value, Compute) else vars(value)
    return [type(value).__name__, {k: _plain(v) for k, v in sorted(fields.items())}]


def own_sources(function: Callable[..., Any]) -> dict[str, str]:
    """The source of a function, and of the functions and constants of its own module that it uses, by name."""
    sources: dict[str, str] = {}
    waiting = [function]
    while waiting:
        current = inspect.unwrap(waiting.pop())
        if not isinstance(current, FunctionType) or current.__qualname__ in sources:
            continue
        sources[current.__qualname__] = _source(current)
        for name in _names_used(current.__code__):
            value = current.__globals__.get(name)
            if isinstance(value, FunctionType) and value.__module__ == current.__module__:
                waiting.append(value)
            elif isinstance(value, (int, float, str, tuple)):
                sources[name] = repr(value)
    return sources


def used_elsewhere(function: Callable[..., Any]) -> list[list[str]]:
    """What a function uses beside `own_sources`: sorted pairs of a name and a text.

    This is what it takes from other modules of the project. From its own module, it is classes, tables, arrays,
    decorators, closures, what partial functions and methods are bound to, and defaults that are not literals. Installed
    modules, Python's and this package's count as the same everywhere. It is apart from `own_sources`, and empty for
    most references, because older databases only have `own_sources`.
    """
    walk = _ReferenceWalk()
    walk.visit(getattr(function, "__qualname__", "reference"), function)
    return [[name, text] for name, text in sorted(walk.found - set(own_sources(function).items()))]


def _names_used(code: CodeType) -> set[str]:
    """Names of globals and attributes in a function's code, and in the code of the functions within it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_used(constant)
    return names


def _globals_used(code: CodeType) -> set[str]:
    names = {str(i.argval) for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _globals_used(constant)
    return names


class _ReferenceWalk:
    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self._seen: dict[object, object] = {}  # holds what was met, so that nothing else gets its identity

    def visit(self, name: str, value: Any) -> None:
        """Note what `value`, which is used under a name, is made of."""
        if _is_plain(value):
            self.found.add((name, _text(value)))
            return
        if isinstance(value, ModuleType) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, Expr):
            self.found.add((name, value.key()))
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif all(hasattr(value, name) for name in ("dtype", "shape", "tobytes")):
            content = hashlib.sha256(value.tobytes()).hexdigest()
            self.found.add((name, f"{value.dtype} {tuple(value.shape)} {content}"))
        else:
            for part, inside in _parts(value):
                self.visit(f"{name}{part}", inside)

    def _function(self, function: FunctionType) -> None:
        if is_installed(function.__module__):
            self._bound(function)
            return
        source = _source(function)
        self.found.add((function.__qualname__, source))
        self._bound(function)
        if not _has_literal_defaults(source):
            self.visit(f"{function.__qualname__}()", [function.__defaults__, function.__kwdefaults__])
        names = _names_used(function.__code__)
        for name in _globals_used(function.__code__):
            value = function.__globals__.get(name, _MISSING)
            if isinstance(value, ModuleType):
                self._module(value, names)
            elif value is not _MISSING:
                self.visit(name, value)

    def _bound(self, function: FunctionType) -> None:
        """A decorator's function often belongs to an installed module. What it calls is in its closure."""
        if "__wrapped__" in vars(function):
            self.visit("__wrapped__", vars(function)["__wrapped__"])
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            if callable(content) or not is_installed(function.__module__):
                self.visit(f"{function.__qualname__}.{name}", content)

    def _module(self, module: ModuleType, names: set[str]) -> None:
        """The attributes of a module whose names are used somewhere in a function."""
        key = (id(module), frozenset(names))
        if key in self._seen or is_installed(module.__name__):
            return
        self._seen[key] = module
        for name in sorted(names & set(vars(module))):
            value = vars(module)[name]
            if isinstance(value, ModuleType):
                self._module(value, names)
            else:
                self.visit(f"{module.__name__.rpartition('.')[2]}.{name}", value)

    def _class(self, cls: type) -> None:
        if is_installed(cls.__module__):
            return
        for base in cls.__bases__:
            self.visit(base.__qualname__, base)
        for name, value in vars(cls).items():
            for part in _of_attribute(value):
                if isinstance(part, (FunctionType, type)) or not name.startswith("__"):
                    self.visit(f"{cls.__qualname__}.{name}", part)


_MISSING = object()


def _source(function: FunctionType) -> str:
    try:
        # The code object leads to the function itself, even if it decorates another.
        return textwrap.dedent(inspect.getsource(function.__code__))
    except (OSError, TypeError):
        return function.__code__.co_code.hex()


def _has_literal_defaults(source: str) -> bool:
    """Whether a function's text tells its defaults."""
    try:
        statement = ast.parse(source).body[0]
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        for node in (*statement.args.defaults, *statement.args.kw_defaults):
            if node is not None:
                ast.literal_eval(node)
    except (SyntaxError, ValueError, IndexError):
        return False
    return True


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return type(value) in _PLAIN


def _text(value: object) -> str:
    """`repr` without the order of sets, which changes from process to process."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__} {sorted(map(_text, value))}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """What an object is made of, each part with a name. Empty if only installed modules could explain it."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, functools.partial):
        parts = [("()", value.func), ("()", [*value.args]), ("()", dict(value.keywords))]
    elif isinstance(value, MethodType):
        parts = [("", value.__func__), (".__self__", value.__self__)]
    elif isinstance(value, enum.Enum):
        parts = [("", value.name), (".value", value.value), ("", type(value))]
    elif isinstance(value, Mapping):
        parts = [(f"[{index}]", part) for index, item in enumerate(value.items()) for part in item]
    elif isinstance(value, (tuple, list, set, frozenset)):
        parts = [(f"[{index}]", part) for index, part in enumerate(value)]
    elif hasattr(value, "__wrapped__"):  # functools.lru_cache
        parts = [("", value.__wrapped__)]
    elif not is_installed(type(value).__module__):
        fields = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        names = {*fields, *getattr(value, "__struct_fields__", ()), *getattr(value, "__dict__", ())}
        parts = [("", type(value)), *((f".{n}", getattr(value, n, None)) for n in sorted(names))]
    return parts


def _of_attribute(value: object) -> tuple[object, ...]:
    """What an attribute of a class holds, as it is in the class."""
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return tuple(f for f in (value.fget, value.fset, value.fdel) if f)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    return (value,)
