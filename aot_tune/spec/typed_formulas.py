"""Programs: formulas of one operator with a type for each part. Backends print them, and references evaluate them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from aot_tune.expr.formulas import BOOLEAN, FLOAT, INTEGER, Builder, Formula, Instruction, Program, pruned, shown
from aot_tune.expr.integers import Expr
from aot_tune.spec.dtypes import DTYPES
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.tensors import Tensor
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["ProgramScope", "typed"]

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_FUNCTIONS = (
    "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "relu", "gelu", "gelu_tanh", "silu", "floor",
)  # fmt: skip
_CASTS = ("f32", "f16", "bf16", "i32")
_CONVERT = "write cast(..., 'i32') for the integer of a float, where(..., 1.0, 0.0) for the number of a boolean"


@dataclass(frozen=True)
class ProgramScope:
    """What a formula may name: an operator's arguments, and `indices` by name, with their extents if known.

    Axes of the output are named by their numbers.
    """

    operator: OperatorFields
    indices: Mapping[str, Expr | None]
    where: str

    def tensor(self, name: str) -> Tensor:
        """The input of that name."""
        known = {t.name: t for t in self.operator.inputs}
        if name not in known:
            written = name in {t.name for t in self.operator.outputs}
            raise SpecError(
                f"{self.where}: there is no input {name!r}",
                why="it is an output, and outputs are never read" if written else "",
                fix=did_you_mean(name, known),
            )
        return known[name]

    def index(self, name: str) -> str:
        """The name of an index, checked."""
        if name in self.indices:
            return name
        numbers = [n for n in self.indices if n.isdigit()]
        fix = f"axes of the output are 0 to {len(numbers) - 1}" if numbers else did_you_mean(name, self.indices)
        raise SpecError(f"{self.where}: there is no index {name!r}", fix=fix)

    def type_of(self, dtypes: Collection[str], what: str) -> str:
        """The type that elements or scalars of these dtypes have in a formula."""
        codes = {DTYPES[d].code for d in dtypes}
        types = {BOOLEAN if c == 6 else INTEGER if c in (0, 1) else FLOAT for c in codes}
        if len(types) != 1:
            raise SpecError(
                f"{self.where}: {what} is of {' and '.join(sorted(types))}, by its dtype variable",
                why="each part of a formula has one type",
                fix="give it dtypes of one kind",
            )
        return types.pop()


def typed(formula: Formula, scope: ProgramScope) -> Program:
    """The program of a formula.

    Raises:
        SpecError: with the part that names something unknown, or has a wrong type.
    """
    reading = _Reading(formula.steps(), scope)
    for at in range(len(reading.steps)):
        reading.read(at)
    if "value" not in {s.op for s in reading.steps}:
        raise SpecError(
            f"{scope.where}: {reading.shown(-1)} does not depend on value()",
            why="a formula is applied to the computed value",
            fix="write value() where it is used",
        )
    last = reading.as_float(reading.numbers[-1], len(reading.steps) - 1)
    return pruned(reading.builder, last, tuple(scope.indices))


class _Reading:
    """The steps of a formula. The first of them have their types already."""

    def __init__(self, steps: list[Instruction], scope: ProgramScope) -> None:
        self.steps, self.scope, self.builder = steps, scope, Builder()
        self.numbers: list[int] = []

    def shown(self, at: int) -> str:
        """A step, as it was written."""
        return shown(self.steps, at % len(self.steps))[:160]

    def read(self, at: int) -> None:
        """Give the next step its type."""
        step = self.steps[at]
        args = [self.numbers[a] for a in step.args]
        readers: dict[str, Callable[[int, Instruction, list[int]], int]] = {
            "element": self._element,
            "where": self._where,
            "cast": self._cast,
            "not": self._condition,
            "and": self._condition,
            "or": self._condition,
            "neg": self._number,
            "abs": self._number,
        }
        readers |= dict.fromkeys(("+", "-", "*", "/", "min", "max"), self._number)
        readers |= dict.fromkeys(("//", "%"), self._whole)
        readers |= dict.fromkeys(_COMPARISONS, self._comparison)
        readers |= dict.fromkeys(_FUNCTIONS, self._function)
        self.numbers.append(readers.get(step.op, self._leaf)(at, step, args))

    # -- leaves --------------------------------------------------------------------------------------------------

    def _leaf(self, at: int, step: Instruction, _args: list[int]) -> int:
        value, scope = step.value, self.scope
        op, kind = step.op, INTEGER
        if op == "value":
            kind = FLOAT
        elif op == "const":
            kind = BOOLEAN if isinstance(value, bool) else FLOAT if isinstance(value, float) else INTEGER
            if kind == INTEGER and not -(2**31) <= int(value or 0) < 2**31:
                kind, value = FLOAT, float(value or 0)
        elif op in ("index", "axis"):
            op, value = "index", scope.index(str(value))
        elif op == "scalar":
            kind = self._scalar(str(value))
        elif op == "dim":
            self._known(str(value), scope.operator.dims, "dim")
        elif op == "present":
            kind = BOOLEAN
            if not scope.tensor(str(value)).optional:
                op, value = "const", True
        elif op == "attribute":
            self._attribute(str(value))
        elif op == "choice":
            return self._choice(str(value))
        else:
            raise SpecError(f"{scope.where}: {self.shown(at)} is not a formula")
        return self.builder.add(Instruction(op, value, (), kind))

    def _known(self, name: str, names: Collection[str], what: str) -> None:
        if name not in names:
            raise SpecError(f"{self.scope.where}: there is no {what} {name!r}", fix=did_you_mean(name, names))

    def _scalar(self, name: str) -> str:
        scalars = {s.name: s for s in self.scope.operator.scalars}
        self._known(name, scalars, "scalar")
        return self.scope.type_of((scalars[name].dtype_name,), f"scalar {name!r}")

    def _attribute(self, name: str) -> tuple[str, ...]:
        attributes = {a.name: a.choices for a in self.scope.operator.attributes}
        self._known(name, attributes, "attribute")
        return attributes[name]

    def _choice(self, value: str) -> int:
        name, _, choice = value.partition("=")
        choices = self._attribute(name)
        self._known(choice, choices, f"choice of attribute {name!r}")
        index = self.builder.add(Instruction("attribute", name, (), INTEGER))
        wanted = self.builder.add(Instruction("const", choices.index(choice), (), INTEGER))
        return self.builder.of("==", index, wanted, kind=BOOLEAN)

    def _element(self, at: int, step: Instruction, args: list[int]) -> int:
        tensor, scope = self.scope.tensor(str(step.value)), self.scope
        what = f"{scope.where}: {self.shown(at)}"
        if len(args) != tensor.rank:
            raise SpecError(f"{what}: {tensor.name!r} has {tensor.rank} axes", fix="give a place for each axis")
        trusted = []
        for place, number, extent in zip(step.args, args, tensor.shape, strict=True):
            self._wanted(INTEGER, number, place, what)
            one = self.builder.instructions[number]
            known = scope.indices[str(one.value)] if one.op == "index" else None
            trusted.append(known is not None and known.key() == extent.key())
            if self.steps[place].op == "axis" and known is not None and not trusted[-1]:
                raise SpecError(
                    f"{what}: {tensor.name!r} has the extent {extent.key()} where the index {one.value} has "
                    f"{known.key()}",
                    fix=f"take another axis, or give the element by a formula, such as index({one.value!r}) // 2",
                )
        dtypes = scope.operator.dtypes.get(tensor.dtype_name, (tensor.dtype_name,))
        kind = scope.type_of(dtypes, f"tensor {tensor.name!r}")
        return self.builder.add(Instruction("element", tensor.name, tuple(args), kind, tuple(trusted)))

    # -- operations ----------------------------------------------------------------------------------------------

    def _wanted(self, kind: str, number: int, at: int, what: str) -> None:
        found = self.builder.kind(number)
        if found != kind:
            raise SpecError(f"{what}: {self.shown(at)} is {_a(found)}, wanted is {_a(kind)}", fix=_CONVERT)

    def as_float(self, number: int, at: int) -> int:
        """A number as a float."""
        one = self.builder.instructions[number]
        if one.kind == BOOLEAN:
            self._wanted(FLOAT, number, at, self.scope.where)
        if one.kind == INTEGER:
            return self.builder.number(int(one.value or 0)) if one.op == "const" else self._to("to_float", number)
        return number

    def _to(self, op: str, number: int) -> int:
        return self.builder.of(op, number, kind=FLOAT if op == "to_float" else INTEGER)

    def _alike(self, at: int, args: list[int]) -> list[int]:
        """Operands of one type: floats, if one of them is a float."""
        types = {self.builder.kind(a) for a in args}
        if FLOAT in types:
            return [self.as_float(a, place) for a, place in zip(args, self.steps[at].args[-len(args) :], strict=True)]
        if len(types) > 1:
            told = f"{self.scope.where}: {self.shown(at)}: its operands are {_a(INTEGER)} and {_a(BOOLEAN)}"
            raise SpecError(told, fix=_CONVERT)
        return args

    def _number(self, at: int, step: Instruction, args: list[int]) -> int:
        args = self._alike(at, args)
        kind, what = self.builder.kind(args[0]), f"{self.scope.where}: {self.shown(at)}"
        if kind == BOOLEAN:
            self._wanted(FLOAT, args[0], step.args[0], what)
        if step.op == "/" and kind == INTEGER:
            raise SpecError(
                f"{what}: both are integers", fix="write // for a whole quotient, cast(..., 'f32') for a float"
            )
        return self.builder.of(step.op, *args, kind=kind)

    def _whole(self, at: int, step: Instruction, args: list[int]) -> int:
        for number, place in zip(args, step.args, strict=True):
            self._wanted(INTEGER, number, place, f"{self.scope.where}: {self.shown(at)}")
        return self.builder.of(step.op, *args, kind=INTEGER)

    def _condition(self, at: int, step: Instruction, args: list[int]) -> int:
        for number, place in zip(args, step.args, strict=True):
            self._wanted(BOOLEAN, number, place, f"{self.scope.where}: {self.shown(at)}")
        return self.builder.of(step.op, *args, kind=BOOLEAN)

    def _comparison(self, at: int, step: Instruction, args: list[int]) -> int:
        args = self._alike(at, args)
        if self.builder.kind(args[0]) == BOOLEAN:
            self._wanted(FLOAT, args[0], step.args[0], f"{self.scope.where}: {self.shown(at)}")
        return self.builder.of(step.op, *args, kind=BOOLEAN)

    def _function(self, _at: int, step: Instruction, args: list[int]) -> int:
        return self.builder.of(step.op, self.as_float(args[0], step.args[0]))

    def _where(self, at: int, step: Instruction, args: list[int]) -> int:
        self._wanted(BOOLEAN, args[0], step.args[0], f"{self.scope.where}: {self.shown(at)}")
        yes, no = self._alike(at, args[1:])
        return self.builder.of("where", args[0], yes, no, kind=self.builder.kind(yes))

    def _cast(self, at: int, step: Instruction, args: list[int]) -> int:
        name, kind = str(step.value), self.builder.kind(args[0])
        if name not in _CASTS:
            raise SpecError(
                f"{self.scope.where}: {self.shown(at)}: numbers of a formula are not cast to {name!r}",
                fix=did_you_mean(name, _CASTS),
            )
        if name == "i32":
            if kind == BOOLEAN:
                self._wanted(FLOAT, args[0], step.args[0], f"{self.scope.where}: {self.shown(at)}")
            return args[0] if kind == INTEGER else self._to("to_integer", args[0])
        number = self.as_float(args[0], step.args[0])
        return number if name == "f32" else self.builder.add(Instruction("round", name, (number,), FLOAT))


def _a(kind: str) -> str:
    return f"{'an' if kind == INTEGER else 'a'} {kind}"
