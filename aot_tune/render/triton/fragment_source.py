"""Fragments as Triton functions: what a recipe holds of one, and the module that defines it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import msgspec

from aot_tune.expr.array_values import LARGEST_INTEGER
from aot_tune.expr.formulas import BOOLEAN, FLOAT, INTEGER, NAMES, Instruction, Program, expanded
from aot_tune.spec import Expr, Operator
from aot_tune.spec.fragment_programs import program_of
from aot_tune.support.errors import RenderError

__all__ = ["TritonFragment", "TritonOperand", "fragment_data", "function_source", "parameters_of"]

_NATIVE = ("exp", "log", "sqrt", "erf", "abs", "floor")
_INFIX = ("+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=")
_OPS = {name: op for op, name in NAMES.items()}
_TAKEN = frozenset(("float", "tl", "triton"))
_EXTENTS = ("+", "-", "*", "//", "%")


class TritonOperand(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that a fragment reads: extents as `Expr.data`; `wide` says that its integers have 64 bits."""

    shape: list[Any]
    optional: bool = False
    wide: bool = False


class TritonFragment(msgspec.Struct, frozen=True, kw_only=True):
    """A fragment in a recipe: instructions are op, value (a float as text), type, operands, and which are trusted.

    `digest` is that of its function's text: what is compiled is told apart by it, also where these instructions come to
    be written otherwise.
    """

    name: str
    indices: list[str]
    instructions: list[tuple[str, Any, str, list[int], list[bool]]]
    tensors: dict[str, TritonOperand] = {}
    digest: str = ""

    def program(self) -> Program:
        """The program that it is of."""
        found = []
        for op, value, kind, args, trusted in self.instructions:
            constant = float.fromhex(value) if op == "constant" and kind == FLOAT else value
            found.append(Instruction(_OPS.get(op, op), constant, tuple(args), kind, tuple(trusted)))
        return Program(tuple(found), tuple(self.indices))


def fragment_data(op: Operator, name: str) -> TritonFragment:
    """A fragment of an operator, or its epilogue, without the functions that Triton does not have.

    Raises:
        SpecError: when there is none of that name.
        RenderError: when it reads a tensor whose extents Triton functions are not told.
    """
    program = expanded(program_of(op, name), _NATIVE)
    tensors = {}
    for tensor in map(op.tensor, program.names("element")):
        for extent in tensor.shape:
            _check_extent(extent, f"operator {op.name!r}: fragment {name!r} reads {tensor.name!r}")
        shape, wide = [e.data() for e in tensor.shape], tensor.dtype.name in ("i64", "u32", "u64")
        tensors[tensor.name] = TritonOperand(shape=shape, optional=tensor.optional, wide=wide)
    listed = []
    for one in program.instructions:
        value = one.value.hex() if isinstance(one.value, float) else one.value
        listed.append((NAMES.get(one.op, one.op), value, one.kind, list(one.args), list(one.trusted)))
    indices = [f"i{i}" if i.isdigit() else i for i in program.indices]
    renamed = [(o, f"i{v}" if o == "index" and str(v).isdigit() else v, k, a, t) for o, v, k, a, t in listed]
    found = TritonFragment(name=name, indices=indices, instructions=renamed, tensors=tensors)
    for taken in sorted({name, *indices, *parameters_of(found)} & _TAKEN):
        raise RenderError(
            f"operator {op.name!r}: fragment {name!r} is a function of Triton, where {taken!r} is something else",
            fix="rename what is called so",
        )
    return msgspec.structs.replace(found, digest=hashlib.sha256(function_source(found).encode()).hexdigest())


def _check_extent(extent: Expr, what: str) -> None:
    if extent.op not in ("const", "fact", *_EXTENTS):
        raise RenderError(
            f"{what}, which has the extent {extent.key()}",
            why="the function compares indices with extents, which it is passed as dims",
            fix="make that extent a dim of its own",
        )
    for one in extent.args:
        _check_extent(one, what)


def parameters_of(fragment: TritonFragment) -> list[str]:
    """What the function takes behind the value and the indices, as keywords: pointers, strides, numbers of the call."""
    program, dims = fragment.program(), dict.fromkeys(fragment.program().names("dim"))
    for operand in fragment.tensors.values():
        dims |= dict.fromkeys(sorted(f for e in operand.shape for f in Expr.of(e).facts()))
    passed = []
    for name, operand in fragment.tensors.items():
        passed += [name, *(f"stride_{name}_{axis}" for axis in range(len(operand.shape)))]
    present = [n for n in program.names("present") if n not in fragment.tensors]
    return [*passed, *present, *program.names("scalar"), *program.names("attribute"), *dims]


def function_source(fragment: TritonFragment) -> str:
    """The text of a module that defines the fragment as a @triton.jit function of its name."""
    writer, program = _FunctionText(fragment), fragment.program()
    for number, one in enumerate(program.instructions):
        writer.atoms.append(writer.instruction(number, one))
    parameters = ", ".join(["aot_value", *fragment.indices, *parameters_of(fragment)])
    head = f"import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef {fragment.name}({parameters}):\n"
    return head + "".join(f"    {line}\n" for line in [*writer.lines, f"return {writer.atoms[-1]}"])


class _FunctionText:
    def __init__(self, fragment: TritonFragment) -> None:
        self.fragment = fragment
        self.lines = ["aot_value = tl.cast(aot_value, tl.float32)"]
        self.atoms: list[str] = []

    def instruction(self, number: int, one: Instruction) -> str:
        """What stands for a result; lines that compute it are added."""
        if one.op == "element":
            return self._element(number, one)
        if one.op == "value":
            return "aot_value"
        text = self._leaf(one) if not one.args else self._operation(one, [self.atoms[a] for a in one.args])
        if one.op in ("const", "index", "scalar", "dim", "attribute") and one.kind != FLOAT:
            return text
        self.lines.append(f"aot_{number} = {text}")
        return f"aot_{number}"

    def _leaf(self, one: Instruction) -> str:
        if one.op == "present":
            return f"{one.value} is not None"
        if one.op == "scalar" and one.kind == BOOLEAN:
            return f"({one.value} != 0)"
        if one.op == "const" and isinstance(one.value, float):
            finite = math.isfinite(one.value)
            return f"tl.cast({one.value!r}, tl.float32)" if finite else f'tl.cast(float("{one.value}"), tl.float32)'
        if one.op == "const" and one.kind == INTEGER:
            return f"({one.value})"
        return f"tl.cast({one.value}, tl.float32)" if one.kind == FLOAT else str(one.value)

    def _element(self, number: int, one: Instruction) -> str:
        """Elements of a tensor; blocks reach beyond what there is, so that all indices are looked at."""
        name = str(one.value)
        operand, places = self.fragment.tensors[name], [self.atoms[a] for a in one.args]
        offsets, exists = [name], []
        for axis, (place, extent, trusted) in enumerate(zip(places, operand.shape, one.trusted, strict=True)):
            offsets.append(f"tl.cast({place}, tl.int64) * stride_{name}_{axis}")
            exists += [] if trusted else [f"({place} >= 0)"]
            exists.append(f"({place} < {Expr.of(extent).key()})")
        loaded = f"tl.load({' + '.join(offsets)}, mask={' & '.join(exists)}, other=0)"
        integer = "tl.int64" if operand.wide else "tl.int32"
        kinds = {FLOAT: f"tl.cast({loaded}, tl.float32)", INTEGER: f"tl.cast({loaded}, {integer})"}
        zeros = {FLOAT: "tl.cast(0.0, tl.float32)", INTEGER: "0", BOOLEAN: "False"}
        text = kinds.get(one.kind, f"{loaded} != 0")
        if operand.optional:
            self.lines += [f"if {name} is not None:", f"    aot_{number} = {text}"]
            self.lines += ["else:", f"    aot_{number} = {zeros[one.kind]}"]
        else:
            self.lines.append(f"aot_{number} = {text}")
        return f"aot_{number}"

    def _operation(self, one: Instruction, args: list[str]) -> str:
        op, (a, b, c) = one.op, (*args, "", "")[:3]
        if op in _INFIX:
            return f"{a} {op} {b}"
        low, high = repr(-(2.0**31)), repr(LARGEST_INTEGER)
        texts: dict[str, Callable[[], str]] = {
            "neg": lambda: f"-{a}",
            "not": lambda: f"{a} == 0",
            "abs": lambda: f"tl.abs({a})" if one.kind == FLOAT else f"tl.where({a} < 0, -{a}, {a})",
            "and": lambda: f"tl.where({a}, {b}, False)",  # `&` of a number and a block is none of the interpreter's
            "or": lambda: f"tl.where({a}, True, {b})",
            "min": lambda: f"tl.where({a} != {a}, {a}, tl.where({a} < {b}, {a}, {b}))",
            "max": lambda: f"tl.where({a} != {a}, {a}, tl.where({a} > {b}, {a}, {b}))",
            "where": lambda: f"tl.where({a}, {b}, {c})",
            "sqrt": lambda: f"tl.sqrt_rn({a})",
            "to_float": lambda: f"tl.cast({a}, tl.float32)",
            "to_integer": lambda: (
                f"tl.cast(tl.where({a} != {a}, 0.0, tl.where({a} < {low}, {low}, "
                f"tl.where({a} > {high}, {high}, {a}))), tl.int32)"
            ),
            "round": lambda: self._rounded(a, str(one.value)),
            "erf": lambda: f"tl.erf({self._block(a)})",
            "//": lambda: self._quotient(f"{a} // {{b}} - {_below(a)}", b),
            "%": lambda: self._quotient(f"{a} % {{b}} + {_below(a)} * {{b}}", b),
        }
        return texts[op]() if op in texts else f"tl.{op}({a})"

    def _block(self, a: str) -> str:
        """A result that may be one number, as a block: Triton's interpreter has no erf of one number."""
        return f"tl.where(aot_value == aot_value, {a}, {a})"

    def _rounded(self, a: str, dtype_name: str) -> str:
        """To the nearest, ties to even; to bf16 by the bits, since Triton's interpreter rounds ties otherwise."""
        if dtype_name == "f16":
            return f"tl.cast(tl.cast({a}, tl.float16), tl.float32)"
        name = f"aot_b{len(self.lines)}"
        self.lines.append(f"{name} = tl.cast({a}, tl.uint32, bitcast=True)")
        nearest = f"({name} + 0x7FFF + (({name} >> 16) & 1)) & 0xFFFF0000"
        return f"tl.where({a} != {a}, {a}, tl.cast({nearest}, tl.float32, bitcast=True))"

    def _quotient(self, text: str, divisor: str) -> str:
        """A quotient that is rounded down; 0 where the divisor is 0."""
        if divisor.startswith("(") and divisor.strip("(-)").isdigit() and divisor != "(0)":
            return text.replace("{b}", divisor)
        name = f"aot_d{len(self.lines)}"
        self.lines.append(f"{name} = tl.where({divisor} == 0, 1, {divisor})")
        return f"tl.where({divisor} == 0, 0, {text.replace('{b}', name)})"


def _below(a: str) -> str:
    """1 where a quotient is rounded towards 0, and that is up."""
    return f"tl.where(({a} % {{b}} != 0) & (({a} % {{b}} < 0) != ({{b}} < 0)), 1, 0)"
