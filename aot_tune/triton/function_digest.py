"""What a function's code depends on: its source, the sources of all functions that it reaches, and their globals.

Triton's own digest differs between versions and changes with line numbers. This one does not. Triton's library is left
out, because the toolchain's identity covers it.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import hashlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from aot_tune.triton.load_function import module_file

__all__ = ["Reached", "reach"]

_MISSING = object()


@dataclasses.dataclass(frozen=True)
class Reached:
    """A function and all that it reaches. `functions` has each source, its file, and the number of its first line.

    Files are named by their modules (`package/module.py`), so that no folder of the machine is in a message.
    """

    digest: str
    functions: tuple[tuple[str, str, int], ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that were read, sorted."""
        return tuple(sorted({file for _, file, _ in self.functions}))

    def place(self, source: str, line: int) -> str:
        """`file.py:line` of a line of one of the sources, counted from 1; empty if the source is unknown."""
        for text, file, first in self.functions:
            if text == source:
                return f"{file}:{first + line - 1}"
        return ""


def reach(function: Any, is_jit: Callable[[object], bool], plain: Callable[[object], object]) -> Reached:
    """Follow a function's references.

    Args:
        function: a @triton.jit function.
        is_jit: whether an object is a @triton.jit function, or another callable of Triton with a source.
        plain: maps a constexpr to its value, a dtype to its name, and anything else to itself.
    """
    walk = _FunctionWalk(is_jit, plain)
    walk.add(function)
    text = "\0".join(sorted(walk.texts))
    return Reached(hashlib.sha256(text.encode()).hexdigest(), tuple(walk.functions))


class _FunctionWalk:
    def __init__(self, is_jit: Callable[[object], bool], plain: Callable[[object], object]) -> None:
        self.is_jit, self.plain = is_jit, plain
        self.seen: set[int] = set()
        self.texts: list[str] = []
        self.functions: list[tuple[str, str, int]] = []

    def add(self, function: Any) -> None:
        """Add a function and all that it reads."""
        if id(function) in self.seen or _of_triton(function):
            return
        self.seen.add(id(function))
        python = function.fn
        source = str(function.src)
        lines, start = inspect.getsourcelines(python)
        first = start + next((i for i, row in enumerate(lines) if row.lstrip().startswith("def ")), 0)
        self.functions.append((source, module_file(python.__module__), first))
        values = {f"{path}={self._read(path, value)}" for path, value in self.reads(function)}
        defaults = [f"{p.name}={self.text(p.default)}" for p in function.signature.parameters.values()]
        kind = f"{type(function).__name__} {bool(getattr(function, 'noinline', False))}"
        self.texts.append("\n".join([function.__qualname__, kind, source, *defaults, *sorted(values)]))

    def reads(self, function: Any) -> Iterator[tuple[str, object]]:
        """Names outside of the function that the source reads, such as `module.NAME`, each with its value."""
        python = function.fn
        outside = dict(python.__globals__)
        outside |= {
            n: cell.cell_contents
            for n, cell in zip(python.__code__.co_freevars, python.__closure__ or (), strict=True)
            if _filled(cell)
        }
        for name in python.__code__.co_varnames:
            outside.pop(name, None)
        for node in ast.walk(ast.parse(function.src)):
            if isinstance(node, (ast.Name, ast.Attribute)):
                value = _value(node, outside)
                if value is not _MISSING and not isinstance(value, types.ModuleType):
                    yield ast.unparse(node), value

    def _read(self, path: str, value: object) -> str:
        bare = self.plain(value)
        name = _choice(bare)
        # `tl.PropagateNan.ALL` names the choice; under another name, its value must tell
        return type(bare).__qualname__ if name and path.rpartition(".")[2] == name else self.text(value)

    def text(self, value: object) -> str:
        """A value as text that says everything code may depend on. Functions are followed."""
        given, value = value, self.plain(value)
        if name := _choice(value):
            return f"{type(value).__qualname__}.{name}"
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}={self.text(value.value)}"
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return repr(value)
        if isinstance(value, (tuple, list, set, frozenset)):
            each = [self.text(v) for v in value]
            return f"{type(value).__name__}({', '.join(each if isinstance(value, (tuple, list)) else sorted(each))})"
        if isinstance(value, dict):
            return f"dict({', '.join(sorted(f'{self.text(k)}: {self.text(v)}' for k, v in value.items()))})"
        held = self._held(value, constant=given is not value)
        return f"{type(value).__qualname__}{self.text(held)}" if held else self._code(value)

    def _held(self, value: Any, constant: bool) -> dict[str, object]:
        """The contents of an object that is a record or a constant, because code may depend on any part of it."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        held = getattr(value, "__dict__", {})
        if not constant or callable(value) or id(value) in self.seen:
            return {}
        self.seen.add(id(value))
        return dict(held)

    def _code(self, value: Any) -> str:
        """The name of a function or class, with its source unless it is Triton's."""
        name = getattr(value, "__qualname__", type(value).__qualname__)
        if _of_triton(value) or inspect.isbuiltin(value) or getattr(value, "__module__", "") == "builtins":
            return str(name)
        if self.is_jit(value):
            self.add(value)
            return str(name)
        if inspect.isfunction(value) or isinstance(value, type):
            return f"{name}{self._source(value)}"
        shown = str(value)  # such as a dtype of a framework
        return type(value).__qualname__ if " at 0x" in shown else f"{type(value).__qualname__} {shown}"

    def _source(self, value: Any) -> str:
        if id(value) in self.seen:
            return ""
        self.seen.add(id(value))
        members = [v for v in vars(value).values() if self.is_jit(v)] if isinstance(value, type) else []
        for member in members:
            self.add(member)
        try:
            return f" {inspect.getsource(value)}"
        except (OSError, TypeError):
            return ""


def _value(node: ast.AST, outside: dict[str, object]) -> object:
    if isinstance(node, ast.Name):
        return outside.get(node.id, _MISSING) if isinstance(node.ctx, ast.Load) else _MISSING
    if not isinstance(node, ast.Attribute):
        return _MISSING
    base = _value(node.value, outside)
    # attributes of modules and classes are read; the attributes of other values follow from the value
    return getattr(base, node.attr, _MISSING) if isinstance(base, (types.ModuleType, type)) else _MISSING


def _of_triton(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "triton"


def _choice(value: object) -> str:
    """The name of one of Triton's own choices. Only some versions use Python's enumerations for them."""
    name = getattr(value, "name", None) if type(value).__module__.startswith("triton._C.") else None
    return name if isinstance(name, str) else ""


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
