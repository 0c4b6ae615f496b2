"""Specification objects by value: plain data that is equal for equal operators with all of their kernels."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Iterable, Mapping, Set
from typing import Any

import msgspec

from aot_tune.database.identity import names_used
from aot_tune.spec import Expr
from aot_tune.support.digests import canonical
from aot_tune.support.installed_paths import is_installed

__all__ = ["UnlistedError", "plain_value"]

_DEEPEST = 100


class UnlistedError(Exception):
    """Something has no value to compare. The text says what."""


def plain_value(value: object) -> object:
    """A value as data for JSON. If two values differ in anything that a build could see, their data differs.

    Functions count by their code, defaults, attributes and closures, and the globals that they use. Classes count by
    their attributes. Imported ones count in the same way, unless they are found by name in Python's own modules or in
    installed ones. Dataclass fields that do not take part in comparisons are left out, unless they are arguments. The
    folder of an operator is left out too.

    Raises:
        UnlistedError: for an object that is neither ours nor plain data.
    """
    try:
        return _ValueWalk().plain(value, 0)
    except UnlistedError:
        raise
    except Exception as error:  # objects of others may raise anything when they are inspected
        raise UnlistedError(f"something that raises {type(error).__name__}: {error}") from error


class _ValueWalk:
    def __init__(self) -> None:
        self._seen: dict[object, int] = {}
        self._held: list[object] = []

    def plain(self, value: object, depth: int) -> object:
        """`value` as data, at a depth of nesting."""
        if depth > _DEEPEST:
            raise UnlistedError(f"a {type(value).__qualname__} that is nested without end")
        if type(value) in (bool, int, str, type(None)):
            return value
        if isinstance(value, type):
            return self._class(value, depth + 1)
        if isinstance(value, enum.Enum):
            return ["Enum", type(value).__qualname__, value.name, self.plain(value.value, depth + 1)]
        if callable(value):
            return self._callable(value, depth + 1)
        return _leaf(value) or self._composed(value, depth + 1)

    def _composed(self, value: object, depth: int) -> object:
        name = type(value).__qualname__
        if type(value) in (dict, types.MappingProxyType):
            assert isinstance(value, Mapping)
            return ["dict", [[self.plain(k, depth), self.plain(v, depth)] for k, v in value.items()]]
        if type(value) in (list, tuple):
            assert isinstance(value, (list, tuple))
            return [name, [self.plain(v, depth) for v in value]]
        if type(value) in (set, frozenset):
            assert isinstance(value, Set)
            return [name, sorted((self.plain(v, depth) for v in value), key=canonical)]
        return [name, self._fields(value, depth), self._class(type(value), depth)]

    def _fields(self, value: object, depth: int) -> dict[str, object]:
        if isinstance(value, msgspec.Struct):
            names = list(value.__struct_fields__)
        elif dataclasses.is_dataclass(value):
            names = [f.name for f in dataclasses.fields(value) if f.name != "folder" and (f.init or f.compare)]
        elif type(value).__module__.startswith("aot_tune.") and hasattr(value, "__dict__"):
            names = sorted(vars(value))
        else:
            raise UnlistedError(f"a {type(value).__module__}.{type(value).__qualname__} in an operator")
        return {n: self.plain(getattr(value, n), depth) for n in names}

    def _callable(self, value: Any, depth: int) -> object:
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return ["partial", [self.plain(part, depth) for part in parts]]
        if isinstance(value, types.MethodType):
            return ["method", self.plain(value.__func__, depth), self.plain(value.__self__, depth)]
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, (types.ModuleType, type(None))):
            return ["builtin", value.__module__, value.__qualname__]
        if isinstance(value, functools._lru_cache_wrapper):
            return ["cached", self.plain(value.__wrapped__, depth)]
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
            return self._composed(value, depth)
        raise UnlistedError(f"a {type(value).__module__}.{type(value).__qualname__}, which can be called,")

    def _function(self, value: types.FunctionType, depth: int) -> object:
        number = self._number(value, id(value))
        if number is not None:
            return ["function", number]
        names = names_used(value.__code__)
        own = {n: value.__globals__[n] for n in sorted(names) if n in value.__globals__}
        cells = [_content(c) for c in value.__closure__ or ()]
        return [
            "function",
            value.__qualname__,
            _code(value.__code__),
            [self.plain(part, depth) for part in (value.__defaults__, value.__kwdefaults__, cells, vars(value))],
            {n: self._used(v, names, depth) for n, v in own.items()},
        ]

    def _used(self, value: object, names: Set[str], depth: int) -> object:
        """What a function that uses these names takes from its module, or from a module that this one imports."""
        if not isinstance(value, types.ModuleType):
            return _imported(value) or self.plain(value, depth)
        number = None if is_installed(value.__name__) else self._number(value, (id(value), frozenset(names)))
        if depth > _DEEPEST or number is not None or is_installed(value.__name__):
            return ["module", value.__name__ if number is None else number]
        found = {n: v for n, v in sorted(vars(value).items()) if n in names}
        return ["module", {n: self._used(v, names, depth + 1) for n, v in found.items()}]

    def _class(self, value: type, depth: int) -> object:
        if is_installed(value.__module__):
            return ["type", value.__module__, value.__qualname__]
        number = self._number(value, id(value))
        if number is not None:
            return ["class", number]
        if issubclass(value, enum.Enum):
            members = {n: self.plain(m.value, depth) for n, m in value.__members__.items()}
            return ["class", value.__qualname__, members]
        own = {n: v for n, v in sorted(vars(value).items()) if n == "__call__" or not n.startswith("__")}
        return [
            "class",
            value.__qualname__,
            [self.plain(base, depth) for base in value.__bases__],
            {n: [self.plain(part, depth) for part in _parts(v)] for n, v in own.items()},
        ]

    def _number(self, value: object, key: object) -> int | None:
        """The number of something that was met before, or None the first time."""
        if key in self._seen:
            return self._seen[key]
        self._seen[key] = len(self._seen)
        self._held.append(value)  # so that nothing else gets its identity
        return None


def _leaf(value: object) -> list[object] | None:
    """Something without parts, as data. None for other things."""
    if type(value) in (float, complex, bytes, range):
        return [type(value).__name__, repr(value)]  # JSON has no NaN, and none of the other types
    return ["Expr", value.key()] if isinstance(value, Expr) else None


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _code(code: types.CodeType) -> list[object]:
    """What a function does. Equal text is not enough: two lambdas of one line may do different things."""
    return [
        [code.co_code.hex(), code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount],
        [code.co_names, code.co_varnames, code.co_freevars],
        [_constant(c) for c in code.co_consts],
    ]


def _constant(value: object) -> object:
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, (tuple, frozenset)):
        parts: Iterable[object] = map(_constant, value)
        return [type(value).__name__, sorted(parts, key=canonical) if isinstance(value, frozenset) else list(parts)]
    return [type(value).__name__, repr(value)]


def _parts(attribute: object) -> tuple[object, ...]:
    """What an attribute of a class holds, as it is in the class."""
    if isinstance(attribute, (staticmethod, classmethod)):
        return type(attribute).__name__, attribute.__func__
    if isinstance(attribute, property):
        return attribute.fget, attribute.fset, attribute.fdel
    if isinstance(attribute, functools.cached_property):
        return (attribute.func,)
    return () if isinstance(attribute, types.MemberDescriptorType) else (attribute,)


def _imported(value: Any) -> list[object] | None:
    """Something that an installed module has under a name, by that name. None for other things."""
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(name, str) or not is_installed(home):
        return None
    found: object = sys.modules.get(home)
    for part in name.split("."):
        found = getattr(found, part, None)
    return ["imported", home, name] if found is value else None
