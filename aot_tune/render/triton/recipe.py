"""What a Triton candidate is compiled from: the contract between the renderer and the toolchain.

A recipe holds fragments of the operator, too, each with the text of the Triton function that it becomes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from aot_tune.expr.formulas import FLOAT, NAMES, OPS, Instruction, Program, expanded
from aot_tune.expr.triton_formulas import NATIVE, Operand, triton_statements
from aot_tune.spec import Expr, Operator
from aot_tune.spec.fragment_programs import program_of
from aot_tune.support.errors import RenderError

_BEGIN, _END = "/* triton\n", "\n*/\n"
_NUMBER = "number"
"""The key of a number that JSON cannot hold, as text: it would make null of an infinity."""
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
        instructions = []
        for op, value, kind, args, trusted in self.instructions:
            constant = float.fromhex(value) if op == "constant" and kind == FLOAT else value
            instructions.append(Instruction(OPS.get(op, op), constant, tuple(args), kind, tuple(trusted)))
        return Program(tuple(instructions), tuple(self.indices))


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a function is compiled, for any target; it stands as a comment in front of the launcher's C++.

    Args:
        function: the reference, as in `TritonFunction`.
        digest: that of `Declarations`: the function's source and all that it depends on.
        signature: parameter to type, in order: `*bf16`, `i32`, `fp32`, `constexpr`, `tensordesc<bf16[64, 32]>`.
        constexprs: parameter to value, see `as_data`; None where it is left out.
        dtypes: parameter to the element type that it is, as Triton names it (`bf16`, `fp32`).
        divisible: parameters that 16 divides.
        ranges: pointers whose tensors span less than 2^31 bytes.
        options: launch options: `num_warps` and the like.
        fragments: parameter to the fragment whose function it is.
    """

    function: str
    digest: str
    signature: dict[str, str]
    constexprs: dict[str, Any] = {}
    dtypes: dict[str, str] = {}
    divisible: list[str] = []
    ranges: list[str] = []
    options: dict[str, int | bool] = {}
    fragments: dict[str, TritonFragment] = {}


def as_data(value: Any) -> Any:
    """A constant as JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NUMBER: str(value)}
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return {_NUMBER: str(value)}
    return [as_data(v) for v in value] if isinstance(value, (list, tuple)) else value


def of_data(data: Any) -> Any:
    """The constant that `as_data` was given; lists were tuples."""
    if isinstance(data, dict) and _NUMBER in data:
        text = data[_NUMBER]
        return int(text) if text.lstrip("-").isdigit() else float(text)
    return tuple(of_data(d) for d in data) if isinstance(data, (list, tuple)) else data


def identity_of(recipes: Sequence[Recipe]) -> object:
    """What the recipes of a candidate are recognised by: all of them but where the functions lie."""
    each = [{**_stated(r), "function": r.function.rpartition(":")[2]} for r in recipes]
    return each[0] if len(each) == 1 else each


def _stated(recipe: Recipe) -> dict[str, object]:
    """A recipe by its fields; as it was before there were fragments, where it has none."""
    fields = msgspec.structs.asdict(recipe)
    return {n: msgspec.to_builtins(v) for n, v in fields.items() if n != "fragments" or recipe.fragments}


def with_recipes(recipes: Sequence[Recipe], launcher: str) -> str:
    """The source of a candidate."""
    source = ""
    for recipe in recipes:
        text = msgspec.json.format(msgspec.json.encode(_stated(recipe)), indent=2).decode()
        if "*/" in text:
            raise RenderError(f"{recipe.function}: a constant holds '*/'", why="it is written into a comment of C++")
        source += f"{_BEGIN}{text}{_END}"
    return source + launcher


def read_recipes(source: str) -> list[Recipe]:
    """The recipes of a source. Raises ValueError when the source has none."""
    recipes = []
    while source.startswith(_BEGIN) and _END in source:
        text, _, source = source[len(_BEGIN) :].partition(_END)
        recipes.append(msgspec.json.decode(text, type=Recipe))
    if not recipes:
        raise ValueError("the source begins with no recipe of a Triton function")
    return recipes


def fragment_data(op: Operator, name: str) -> TritonFragment:
    """A fragment of an operator, or its epilogue, without the functions that Triton does not have.

    Raises:
        SpecError: when there is none of that name.
        RenderError: when it reads a tensor whose extents Triton functions are not told.
    """
    program = expanded(program_of(op, name), NATIVE)
    tensors = {}
    for tensor in map(op.tensor, program.names("element")):
        for extent in tensor.shape:
            _check_extent(extent, f"operator {op.name!r}: fragment {name!r} reads {tensor.name!r}")
        shape, wide = [e.data() for e in tensor.shape], tensor.dtype.name in ("i64", "u32", "u64")
        tensors[tensor.name] = TritonOperand(shape=shape, optional=tensor.optional, wide=wide)
    listed = []
    for step in program.instructions:
        value = step.value.hex() if isinstance(step.value, float) else step.value
        listed.append((NAMES.get(step.op, step.op), value, step.kind, list(step.args), list(step.trusted)))
    indices = [f"i{i}" if i.isdigit() else i for i in program.indices]
    renamed = [(o, f"i{v}" if o == "index" and str(v).isdigit() else v, k, a, t) for o, v, k, a, t in listed]
    fragment = TritonFragment(name=name, indices=indices, instructions=renamed, tensors=tensors)
    for taken in sorted({name, *indices, *parameters_of(fragment)} & _TAKEN):
        raise RenderError(
            f"operator {op.name!r}: fragment {name!r} is a function of Triton, where {taken!r} is something else",
            fix="rename what is called so",
        )
    return msgspec.structs.replace(fragment, digest=hashlib.sha256(function_source(fragment).encode()).hexdigest())


def _check_extent(extent: Expr, what: str) -> None:
    if extent.op not in ("const", "fact", *_EXTENTS):
        raise RenderError(
            f"{what}, which has the extent {extent.key()}",
            why="the function compares indices with extents, which it is passed as dims",
            fix="make that extent a dim of its own",
        )
    for part in extent.args:
        _check_extent(part, what)


def function_source(fragment: TritonFragment) -> str:
    """The text of a module that defines the fragment as a @triton.jit function of its name."""
    operands = {
        name: Operand([Expr.of(extent).key() for extent in operand.shape], operand.optional, operand.wide)
        for name, operand in fragment.tensors.items()
    }
    parameters = ", ".join(["aot_value", *fragment.indices, *parameters_of(fragment)])
    head = f"import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef {fragment.name}({parameters}):\n"
    return head + "".join(f"    {line}\n" for line in triton_statements(fragment.program(), operands))


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
