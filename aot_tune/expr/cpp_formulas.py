"""Formulas as statements of C++ and CUDA C++: of one element, or of the lanes of a vector."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aot_tune.expr.array_values import LARGEST_INTEGER
from aot_tune.expr.formulas import BOOLEAN, FLOAT, INTEGER, Instruction, Program, expanded

_TEXTS = {
    "and": "{a} && {b}",
    "or": "{a} || {b}",
    "not": "!{a}",
    "neg": "-{a}",
    "abs": "{a} < 0 ? -{a} : {a}",
    "min": "({a} < {b}{nan}) ? {a} : {b}",
    "max": "({a} > {b}{nan}) ? {a} : {b}",
    "where": "{a} ? {b} : {c}",
    "//": "{b} == 0 ? 0 : {a} / {b} - ({a} % {b} != 0 && ({a} % {b} < 0) != ({b} < 0))",
    "%": "{b} == 0 ? 0 : {a} % {b} + ({a} % {b} != 0 && ({a} % {b} < 0) != ({b} < 0) ? {b} : 0)",
    "to_float": "static_cast<{real}>({a})",
    "to_integer": "{a} != {a} ? 0 : static_cast<int64_t>({a} < {low} ? {low} : {a} > {high} ? {high} : {a})",
}
"""Operations of one element. Others stand between their operands."""
_LANES = {
    "and": "{a} & {b}",
    "or": "{a} | {b}",
    "not": "~{a}",
    "min": "(({a} < {b}) | ({a} != {a})) ? {a} : {b}",
    "max": "(({a} > {b}) | ({a} != {a})) ? {a} : {b}",
}
"""Operations of vectors, where they differ. Conditions are masks."""


class ArgumentTexts(Protocol):
    """What is asked of the functions of templates."""

    def dim(self, name: str) -> str:
        """The extent of a dim."""
        ...

    def attr(self, name: str) -> str:
        """The index of an attribute's value."""
        ...

    def present(self, tensor: str) -> str:
        """Whether a tensor was passed."""
        ...

    def size(self, tensor: str, axis: int) -> str:
        """The extent of an axis."""
        ...

    def stride(self, tensor: str, axis: int) -> str:
        """The stride of an axis in elements."""
        ...

    def address(self, tensor: str, indices: Sequence[str]) -> str:
        """A pointer to an element."""
        ...

    def load(self, tensor: str, indices: Sequence[str]) -> str:
        """An element as a float."""
        ...

    def scalar(self, name: str) -> str:
        """A scalar of the call."""
        ...

    def dtype_of(self, tensor: str) -> str:
        """The name of an element type."""
        ...


@dataclass(frozen=True)
class Dialect:
    """How a language writes floats: their type, functions of one, and the conversions of narrow ones.

    `lanes` are functions that take vectors, too; none where the template has not included them.
    """

    real: str
    functions: Mapping[str, str]
    lanes: Mapping[str, str]
    rounded: Callable[[str, str], str]


@dataclass(frozen=True)
class Elements:
    """Where a formula is applied: `variable` holds the value, or `lanes` of them, of which `count` exist."""

    variable: str
    indices: Sequence[str]
    lanes: int = 1
    count: str | None = None


def cpp_statements(name: str, program: Program, arguments: ArgumentTexts, dialect: Dialect, at: Elements) -> list[str]:
    """Statements that put a formula's result into its variable; they stand in braces of their own.

    Names begin with `aot_` and the formula's, so that those of two formulas never meet.
    """
    if at.lanes == 1:
        return _Statements(name, program, arguments, dialect, at).text()
    vector = _Statements(name, program, arguments, dialect, at)
    if vector.has_lanes():
        return vector.text()
    upto, lane = at.count or str(at.lanes), f"{at.variable}[aot_{name}_l]"
    places = [*at.indices[:-1], f"({at.indices[-1]}) + aot_{name}_l"]
    single = _Statements(name, program, arguments, dialect, Elements(lane, places)).text()
    return [f"for (int64_t aot_{name}_l = 0; aot_{name}_l < ({upto}); ++aot_{name}_l) {{", *single, "}"]


def _number_text(value: float, real: str) -> str:
    """A float as a literal of C++."""
    if math.isnan(value):
        return "NAN"
    if real == "float":
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = f"{value:.9g}" if real == "float" else repr(value)
    text = text if any(c in text for c in ".e") else f"{text}.0"
    return f"{text}f" if real == "float" else text


class _Statements:
    def __init__(self, name: str, program: Program, arguments: ArgumentTexts, dialect: Dialect, at: Elements) -> None:
        native = dialect.functions.keys() | dialect.lanes.keys() if at.lanes == 1 else dialect.lanes.keys()
        self.name, self.program, self.arguments, self.dialect, self.at = name, program, arguments, dialect, at
        self.program = expanded(program, native)
        self.lines: list[str] = []
        self.atoms: list[str] = []
        self.varies = self._varying() if at.lanes > 1 else [False] * len(self.program.instructions)

    def text(self) -> list[str]:
        """The statements."""
        for number, step in enumerate(self.program.instructions):
            self.atoms.append(self._instruction(number, step))
        return ["{", *self.lines, f"{self.at.variable} = {self._vector(len(self.atoms) - 1)};", "}"]

    # -- lanes ---------------------------------------------------------------------------------------------------

    def _varying(self) -> list[bool]:
        """Which results differ from lane to lane."""
        varies: list[bool] = []
        for step in self.program.instructions:
            along = step.op == "index" and step.value == self.program.indices[-1]
            varies.append(step.op == "value" or along or any(varies[a] for a in step.args))
        return varies

    def has_lanes(self) -> bool:
        """Whether all that differs from lane to lane can be computed of vectors."""
        return all(self._has_lanes(n, step) for n, step in enumerate(self.program.instructions))

    def _has_lanes(self, number: int, step: Instruction) -> bool:
        if not self.varies[number] or step.op in ("value", "index"):
            return True
        varying = [i for i, a in enumerate(step.args) if self.varies[a]]
        if step.op == "element":  # lanes are neighbours along its last axis, all of which exist
            narrow = self.arguments.dtype_of(str(step.value)) in ("f32", "f16", "bf16")
            index = self.program.instructions[step.args[-1]].op == "index"
            return narrow and index and step.trusted[-1] and varying == [len(step.args) - 1]
        if any(self.program.instructions[step.args[i]].kind == INTEGER for i in varying):
            return False
        simple = ("+", "-", "*", "/", "neg", "min", "max", "where", "and", "or", "not")
        return step.op in simple or step.op in self.dialect.lanes or step.kind == BOOLEAN

    def _vector(self, number: int) -> str:
        """An operand of a result that differs from lane to lane."""
        atom, lanes = self.atoms[number], self.at.lanes
        if lanes == 1 or self.varies[number]:
            return atom
        if self.program.instructions[number].kind == BOOLEAN:
            return f"(vi<{lanes}>{{}} - static_cast<int32_t>({atom}))"
        return f"vset<{lanes}>({atom})"

    # -- instructions --------------------------------------------------------------------------------------------

    def _instruction(self, number: int, step: Instruction) -> str:
        """The name or the literal that stands for a result; statements that compute it are added."""
        if step.op == "value":
            return self._named(number, step, self.at.variable)
        if step.op == "const":
            return self._constant(step)
        if step.op == "element":
            return self._element(number, step)
        if not step.args:
            return self._named(number, step, self._leaf(step))
        if self.varies[number]:
            args = [self._vector(a) for a in step.args]
            if step.op == "where" and not self.varies[step.args[0]]:
                args[0] = self.atoms[step.args[0]]
            return self._named(number, step, self._operation(step, args, lanes=True))
        return self._named(number, step, self._operation(step, [self.atoms[a] for a in step.args]))

    def _named(self, number: int, step: Instruction, text: str) -> str:
        name = f"aot_{self.name}_{number}"
        if self.varies[number] and step.kind == INTEGER:
            return ""  # the lanes' own index, which only addresses are made of
        lanes = self.at.lanes
        kinds = {FLOAT: self.dialect.real, INTEGER: "int64_t", BOOLEAN: "bool"}
        vectors = {FLOAT: f"vf<{lanes}>", BOOLEAN: f"vi<{lanes}>"}
        self.lines.append(f"const {(vectors if self.varies[number] else kinds)[step.kind]} {name} = {text};")
        return name

    def _constant(self, step: Instruction) -> str:
        if step.kind == FLOAT:
            assert isinstance(step.value, float)
            text = _number_text(step.value, self.dialect.real)
            return f"({text})" if text.startswith("-") else text
        return str(bool(step.value)).lower() if step.kind == BOOLEAN else f"INT64_C({step.value})"

    def _leaf(self, step: Instruction) -> str:
        name = str(step.value)
        if step.op == "index":
            return self.at.indices[self.program.indices.index(name)]
        asked = {"dim": self.arguments.dim, "attribute": self.arguments.attr, "present": self.arguments.present}
        if step.op in asked:
            return asked[step.op](name)
        kinds = {FLOAT: self.dialect.real, INTEGER: "int64_t", BOOLEAN: "bool"}
        return f"static_cast<{kinds[step.kind]}>({self.arguments.scalar(name)})"

    def _element(self, number: int, step: Instruction) -> str:
        tensor, name = str(step.value), f"aot_{self.name}_{number}"
        places = [self.atoms[a] or f"({self.at.indices[-1]})" for a in step.args]
        exists = [self.arguments.present(tensor)]
        for axis, (index, trusted) in enumerate(zip(places, step.trusted, strict=True)):
            if not trusted:
                exists.append(f"{index} >= 0 && {index} < {self.arguments.size(tensor, axis)}")
        condition = " && ".join(e for e in exists if e != "true") or "true"
        if self.varies[number]:
            self.lines += [f"vf<{self.at.lanes}> {name} = {{}};", f"if ({condition}) {{"]
            self.lines += [self._lanes_of(tensor, places, name), "}"]
            return name
        real = self.dialect.real
        if step.kind == FLOAT:
            narrow = self.arguments.dtype_of(tensor) in ("f16", "bf16")
            loaded = self.arguments.load(tensor, places) if narrow else f"*({self.arguments.address(tensor, places)})"
            text, zero = f"static_cast<{real}>({loaded})", _number_text(0.0, real)
        else:
            loaded = f"*({self.arguments.address(tensor, places)})"
            whole = step.kind == INTEGER
            text, zero = (f"static_cast<int64_t>({loaded})", "INT64_C(0)") if whole else (f"{loaded} != 0", "false")
        return self._named(number, step, text if condition == "true" else f"({condition}) ? {text} : {zero}")

    def _lanes_of(self, tensor: str, places: list[str], name: str) -> str:
        """Statements that fill the vector `name` with the elements from a place on along the last axis."""
        start, step = self.arguments.address(tensor, places), self.arguments.stride(tensor, len(places) - 1)
        lanes, count = self.at.lanes, self.at.count
        many = f"vload<{lanes}>({start})" if count is None else f"vload_partial<{lanes}>({start}, {count})"
        if step == "INT64_C(1)":
            return f"{name} = {many};"
        index = f"aot_{self.name}_l"
        return (
            f"if ({step} == 1) {{ {name} = {many}; }} else {{ "
            f"for (int64_t {index} = 0; {index} < ({count or lanes}); ++{index}) "
            f"{name}[{index}] = static_cast<float>(({start})[{index} * {step}]); }}"
        )

    def _operation(self, step: Instruction, args: list[str], *, lanes: bool = False) -> str:
        functions, real = {**self.dialect.functions, **self.dialect.lanes}, self.dialect.real
        if step.op in functions and step.kind == FLOAT:
            return f"{functions[step.op]}({args[0]})"
        if step.op == "round":
            return self.dialect.rounded(str(step.value), args[0])
        texts = {**_TEXTS, **_LANES} if lanes else _TEXTS
        operands = dict(zip("abc", args, strict=False))
        nan = " || {a} != {a}".format(**operands) if step.kind == FLOAT else ""
        low, high = _number_text(-(2.0**31), real), _number_text(LARGEST_INTEGER, real)
        text = texts.get(step.op, f"{{a}} {step.op} {{b}}")
        return text.format(**operands, nan=nan, real=real, low=low, high=high)
