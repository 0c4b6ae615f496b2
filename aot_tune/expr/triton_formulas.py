"""Programs as statements of a Triton function, of which each value may be a block or one number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aot_tune.expr.array_values import LARGEST_INTEGER
from aot_tune.expr.formulas import BOOLEAN, FLOAT, INTEGER, Instruction, Program

NATIVE = ("exp", "log", "sqrt", "erf", "abs", "floor")
"""Functions of formulas that Triton has."""

_BELOW = "tl.where(({a} % {b} != 0) & (({a} % {b} < 0) != ({b} < 0)), 1, 0)"
"""1 where a quotient is rounded towards 0, and that is up."""
_TEXTS = {
    "and": "tl.where({a}, {b}, False)",  # `&` of a number and a block is none of the interpreter's
    "or": "tl.where({a}, True, {b})",
    "not": "{a} == 0",
    "neg": "-{a}",
    "abs": "tl.where({a} < 0, -{a}, {a})",
    "min": "tl.where({a} != {a}, {a}, tl.where({a} < {b}, {a}, {b}))",
    "max": "tl.where({a} != {a}, {a}, tl.where({a} > {b}, {a}, {b}))",
    "where": "tl.where({a}, {b}, {c})",
    "//": f"{{a}} // {{b}} - {_BELOW}",
    "%": f"{{a}} % {{b}} + {_BELOW} * {{b}}",
    "sqrt": "tl.sqrt_rn({a})",
    "erf": "tl.erf(tl.where(aot_value == aot_value, {a}, {a}))",  # the interpreter has none of one number: a block
    "to_float": "tl.cast({a}, tl.float32)",
    "to_integer": "tl.cast(tl.where({a} != {a}, 0.0, tl.where({a} < {low}, {low}, "
    "tl.where({a} > {high}, {high}, {a}))), tl.int32)",
    "f16": "tl.cast(tl.cast({a}, tl.float16), tl.float32)",
}
"""Operations; others stand between their operands, or are functions of Triton."""
_ZEROS = {FLOAT: "tl.cast(0.0, tl.float32)", INTEGER: "0", BOOLEAN: "False"}


class Operand(NamedTuple):
    """A tensor that a program reads: texts of its extents; `wide` says that its integers have 64 bits."""

    extents: Sequence[str]
    optional: bool
    wide: bool


def triton_statements(program: Program, operands: Mapping[str, Operand]) -> list[str]:
    """Statements that compute a program of `aot_value`, and return the result.

    A tensor, its strides, indices and other arguments are read by name: `bias`, `stride_bias_0`.
    """
    writer = _TritonStatements(operands)
    for number, step in enumerate(program.instructions):
        writer.atoms.append(writer.instruction(number, step))
    return [*writer.lines, f"return {writer.atoms[-1]}"]


class _TritonStatements:
    def __init__(self, operands: Mapping[str, Operand]) -> None:
        self.operands = operands
        self.lines = ["aot_value = tl.cast(aot_value, tl.float32)"]
        self.atoms: list[str] = []

    def instruction(self, number: int, step: Instruction) -> str:
        """What stands for a result; lines that compute it are added."""
        if step.op == "element":
            return self._element(number, step)
        if step.op == "value":
            return "aot_value"
        text = self._leaf(step) if not step.args else self._operation(step, [self.atoms[a] for a in step.args])
        if step.op in ("const", "index", "scalar", "dim", "attribute") and step.kind != FLOAT:
            return text
        return self._named(f"aot_{number}", text)

    def _named(self, name: str, text: str) -> str:
        self.lines.append(f"{name} = {text}")
        return name

    def _leaf(self, step: Instruction) -> str:
        if step.op == "present":
            return f"{step.value} is not None"
        if step.op == "scalar" and step.kind == BOOLEAN:
            return f"({step.value} != 0)"
        if step.op == "const" and isinstance(step.value, float):
            finite = math.isfinite(step.value)
            return f"tl.cast({step.value!r}, tl.float32)" if finite else f'tl.cast(float("{step.value}"), tl.float32)'
        if step.op == "const" and step.kind == INTEGER:
            return f"({step.value})"
        return f"tl.cast({step.value}, tl.float32)" if step.kind == FLOAT else str(step.value)

    def _element(self, number: int, step: Instruction) -> str:
        """Elements of a tensor; blocks reach beyond what there is, so that all indices are looked at."""
        tensor, result = str(step.value), f"aot_{number}"
        operand, places = self.operands[tensor], [self.atoms[a] for a in step.args]
        offsets, exists = [tensor], []
        for axis, (index, extent, trusted) in enumerate(zip(places, operand.extents, step.trusted, strict=True)):
            offsets.append(f"tl.cast({index}, tl.int64) * stride_{tensor}_{axis}")
            exists += [] if trusted else [f"({index} >= 0)"]
            exists.append(f"({index} < {extent})")
        loaded = f"tl.load({' + '.join(offsets)}, mask={' & '.join(exists)}, other=0)"
        integer = "tl.int64" if operand.wide else "tl.int32"
        kinds = {FLOAT: f"tl.cast({loaded}, tl.float32)", INTEGER: f"tl.cast({loaded}, {integer})"}
        text = f"{result} = {kinds.get(step.kind, f'{loaded} != 0')}"
        absent = f"{result} = {_ZEROS[step.kind]}"
        optional = [f"if {tensor} is not None:", f"    {text}", "else:", f"    {absent}"]
        self.lines += optional if operand.optional else [text]
        return result

    def _operation(self, step: Instruction, args: list[str]) -> str:
        op = str(step.value) if step.op == "round" else step.op
        if op == "bf16":
            return self._nearest_bf16(*args)
        if op in ("//", "%"):
            return self._quotient(_TEXTS[op], *args)
        plain = f"{{a}} {op} {{b}}" if len(args) == 2 else f"tl.{op}({{a}})"
        text = plain if op == "abs" and step.kind == FLOAT else _TEXTS.get(op, plain)
        return text.format(**dict(zip("abc", args, strict=False)), low=-(2.0**31), high=LARGEST_INTEGER)

    def _nearest_bf16(self, a: str) -> str:
        """Ties to even, by the bits: Triton's interpreter rounds ties otherwise."""
        bits = self._named(f"aot_b{len(self.lines)}", f"tl.cast({a}, tl.uint32, bitcast=True)")
        nearest = f"({bits} + 0x7FFF + (({bits} >> 16) & 1)) & 0xFFFF0000"
        return f"tl.where({a} != {a}, {a}, tl.cast({nearest}, tl.float32, bitcast=True))"

    def _quotient(self, text: str, a: str, b: str) -> str:
        """A quotient that is rounded down, or what remains of it; 0 where the divisor is 0."""
        if b.startswith("(") and b.strip("(-)").isdigit() and b != "(0)":
            return text.format(a=a, b=b)
        divisor = self._named(f"aot_d{len(self.lines)}", f"tl.where({b} == 0, 1, {b})")
        return f"tl.where({b} == 0, 0, {text.format(a=a, b=divisor)})"
