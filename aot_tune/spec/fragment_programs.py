"""Programs of an operator's formulas: each part gets its type. Kernels print them, and references evaluate them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

from aot_tune.expr.array_values import evaluate_program
from aot_tune.expr.formulas import BOOLEAN, FLOAT, INTEGER, Builder, Formula, Instruction, Program, pruned, shown
from aot_tune.expr.integer_expressions import Expr
from aot_tune.spec import elementwise as el
from aot_tune.spec.dtypes import DTYPES
from aot_tune.spec.fragments import EPILOGUE, AddTensor, Compute, Epilogue, EpilogueStep, Fragment
from aot_tune.spec.names import check_among, check_identifier
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.problem import Problem
from aot_tune.spec.tensors import Tensor
from aot_tune.support.errors import Mistakes, SpecError, did_you_mean

_Named = TypeVar("_Named")

_ARITHMETIC = ("+", "-", "*", "/", "min", "max", "neg", "abs")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_FUNCTIONS = (
    "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "relu", "gelu", "gelu_tanh", "silu", "floor",
)  # fmt: skip
_CASTS = ("f32", "f16", "bf16", "i32")
_CONVERT = "write cast(..., 'i32') for the integer of a float, where(..., 1.0, 0.0) for the number of a boolean"


@dataclass(frozen=True)
class _Scope:
    """What a formula may name: arguments, and `indices` with their extents if known; axes go by numbers."""

    operator: OperatorFields
    indices: Mapping[str, Expr | None]
    where: str

    def tensor(self, name: str) -> Tensor:
        """The input of that name."""
        inputs = {t.name: t for t in self.operator.inputs}
        if name not in inputs:
            written = name in {t.name for t in self.operator.outputs}
            raise SpecError(
                f"{self.where}: there is no input {name!r}",
                why="it is an output, and outputs are never read" if written else "",
                fix=did_you_mean(name, inputs),
            )
        return inputs[name]

    def index(self, name: str) -> str:
        """The name of an index, checked."""
        if name in self.indices:
            return name
        numbers = [n for n in self.indices if n.isdigit()]
        fix = f"axes of the output are 0 to {len(numbers) - 1}" if numbers else did_you_mean(name, self.indices)
        raise SpecError(f"{self.where}: there is no index {name!r}", fix=fix)

    def named(self, name: str, by_name: Mapping[str, _Named], what: str) -> _Named:
        """What is called so, checked."""
        check_among(name, by_name, f"{self.where}: there is no {what} {name!r}")
        return by_name[name]

    def choices(self, attribute: str) -> tuple[str, ...]:
        """The choices of an attribute, checked."""
        return self.named(attribute, self.operator.choices, "attribute")

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


def typed(formula: Formula, scope: _Scope) -> Program:
    """The program of a formula. Raises SpecError with the part that names something unknown, or has a wrong type."""
    reading = _Reading(formula.steps(), scope)
    for at in range(len(reading.steps)):
        reading.numbers.append(reading.read(at))
    if "value" not in {s.op for s in reading.steps}:
        raise SpecError(
            f"{scope.where}: {reading.shown(-1)} does not depend on value()",
            why="a formula is applied to the computed value",
            fix="write value() where it is used",
        )
    last = reading.as_float(-1)
    return pruned(reading.builder, last, tuple(scope.indices))


class _Reading:
    """The steps of a formula. The first of them have their types already: `numbers` are their instructions.

    Methods take steps by their places `at`.
    """

    def __init__(self, steps: list[Instruction], scope: _Scope) -> None:
        self.steps, self.scope, self.builder = steps, scope, Builder()
        self.numbers: list[int] = []

    def shown(self, at: int) -> str:
        """A step, as it was written."""
        return shown(self.steps, at % len(self.steps))[:160]

    def kind(self, at: int) -> str:
        """The type of a step."""
        return self.builder.kind(self.numbers[at])

    def read(self, at: int) -> int:
        """The instruction of the next step, which gets its type."""
        step = self.steps[at]
        if step.op in ("element", "where", "cast"):
            return {"element": self._element, "where": self._where, "cast": self._cast}[step.op](at, step)
        if not step.args:
            return self._leaf(at, step)
        if step.op in _FUNCTIONS:
            return self.builder.of(step.op, self.as_float(step.args[0]))
        for kind, ops in ((INTEGER, ("//", "%")), (BOOLEAN, ("not", "and", "or"))):
            if step.op in ops:
                for arg in step.args:
                    self._check(kind, arg, at)
                return self.builder.of(step.op, *(self.numbers[a] for a in step.args), kind=kind)
        if step.op not in (*_ARITHMETIC, *_COMPARISONS):
            raise self._unknown(at)
        args = self._alike(at, step.args)
        kind = self.builder.kind(args[0])
        if kind == BOOLEAN:
            self._check(FLOAT, step.args[0], at)
        if step.op == "/" and kind == INTEGER:
            raise SpecError(
                f"{self._what(at)}: both are integers",
                fix="write // for a whole quotient, cast(..., 'f32') for a float",
            )
        return self.builder.of(step.op, *args, kind=BOOLEAN if step.op in _COMPARISONS else kind)

    def _what(self, at: int) -> str:
        return f"{self.scope.where}: {self.shown(at)}"

    def _unknown(self, at: int) -> SpecError:
        return SpecError(f"{self._what(at)} is not a formula")

    # -- leaves --------------------------------------------------------------------------------------------------

    def _leaf(self, at: int, step: Instruction) -> int:
        op, value, kind, scope = step.op, step.value, INTEGER, self.scope
        if op == "value":
            kind = FLOAT
        elif op == "const":
            kind = BOOLEAN if isinstance(value, bool) else FLOAT if isinstance(value, float) else INTEGER
            if kind == INTEGER and not -(2**31) <= int(value or 0) < 2**31:
                kind, value = FLOAT, float(value or 0)
        elif op in ("index", "axis"):
            op, value = "index", scope.index(str(value))
        elif op == "scalar":
            scalar = scope.named(str(value), {s.name: s for s in scope.operator.scalars}, "scalar")
            kind = scope.type_of((scalar.dtype_name,), f"scalar {value!r}")
        elif op == "dim":
            scope.named(str(value), dict.fromkeys(scope.operator.dims), "dim")
        elif op == "present":
            kind = BOOLEAN
            if not scope.tensor(str(value)).optional:
                op, value = "const", True
        elif op == "attribute":
            scope.choices(str(value))
        elif op == "choice":
            name, _, choice = str(value).partition("=")
            choices = scope.choices(name)
            scope.named(choice, dict.fromkeys(choices), f"choice of attribute {name!r}")
            index = self.builder.add(Instruction("attribute", name, (), INTEGER))
            wanted = self.builder.add(Instruction("const", choices.index(choice), (), INTEGER))
            return self.builder.of("==", index, wanted, kind=BOOLEAN)
        else:
            raise self._unknown(at)
        return self.builder.add(Instruction(op, value, (), kind))

    def _element(self, at: int, step: Instruction) -> int:
        tensor, scope = self.scope.tensor(str(step.value)), self.scope
        if len(step.args) != tensor.rank:
            raise SpecError(
                f"{self._what(at)}: {tensor.name!r} has {tensor.rank} axes", fix="give a place for each axis"
            )
        trusted = []
        for arg, extent in zip(step.args, tensor.shape, strict=True):
            self._check(INTEGER, arg, at)
            index = self.builder.instructions[self.numbers[arg]]
            reach = scope.indices[str(index.value)] if index.op == "index" else None
            trusted.append(reach is not None and reach.key() == extent.key())
            if self.steps[arg].op == "axis" and reach is not None and not trusted[-1]:
                raise SpecError(
                    f"{self._what(at)}: {tensor.name!r} has the extent {extent.key()} where the index {index.value} "
                    f"has {reach.key()}",
                    fix=f"take another axis, or give the element by a formula, such as index({index.value!r}) // 2",
                )
        dtypes = scope.operator.dtypes.get(tensor.dtype_name, (tensor.dtype_name,))
        kind = scope.type_of(dtypes, f"tensor {tensor.name!r}")
        args = tuple(self.numbers[a] for a in step.args)
        return self.builder.add(Instruction("element", tensor.name, args, kind, tuple(trusted)))

    # -- operations ----------------------------------------------------------------------------------------------

    def _check(self, kind: str, at: int, of: int | None = None) -> None:
        """Raise if a step has another type. `of` is the step that it is an operand of."""
        if self.kind(at) != kind:
            what = self.scope.where if of is None else self._what(of)
            raise SpecError(f"{what}: {self.shown(at)} is {_a(self.kind(at))}, wanted is {_a(kind)}", fix=_CONVERT)

    def as_float(self, at: int) -> int:
        """The instruction that gives a number as a float."""
        number = self.builder.instructions[self.numbers[at]]
        if number.kind == BOOLEAN:
            self._check(FLOAT, at)
        if number.kind == FLOAT:
            return self.numbers[at]
        if number.op == "const":
            return self.builder.number(int(number.value or 0))
        return self.builder.of("to_float", self.numbers[at])

    def _alike(self, at: int, operands: Sequence[int]) -> list[int]:
        """Instructions of one type: floats, if one of the operands is a float."""
        types = {self.kind(a) for a in operands}
        if FLOAT in types:
            return [self.as_float(a) for a in operands]
        if len(types) > 1:
            raise SpecError(f"{self._what(at)}: its operands are {_a(INTEGER)} and {_a(BOOLEAN)}", fix=_CONVERT)
        return [self.numbers[a] for a in operands]

    def _where(self, at: int, step: Instruction) -> int:
        condition, *values = step.args
        self._check(BOOLEAN, condition, at)
        yes, no = self._alike(at, values)
        return self.builder.of("where", self.numbers[condition], yes, no, kind=self.builder.kind(yes))

    def _cast(self, at: int, step: Instruction) -> int:
        name, (number,) = str(step.value), step.args
        check_among(name, _CASTS, f"{self._what(at)}: numbers of a formula are not cast to {name!r}")
        if name == "f32":
            return self.as_float(number)
        if name != "i32":
            return self.builder.add(Instruction("round", name, (self.as_float(number),), FLOAT))
        if self.kind(number) == BOOLEAN:
            self._check(FLOAT, number, at)
        whole = self.kind(number) == INTEGER
        return self.numbers[number] if whole else self.builder.of("to_integer", self.numbers[number], kind=INTEGER)


def _a(kind: str) -> str:
    return f"{'an' if kind == INTEGER else 'a'} {kind}"


_ACTIVATIONS: dict[str, Callable[[Formula], Formula]] = {
    "none": lambda x: x,
    "relu": el.relu,
    "gelu": el.gelu,
    "gelu_tanh": el.gelu_tanh,
    "silu": el.silu,
}


def program_of(op: OperatorFields, name: str) -> Program:
    """The program of a fragment or the whole epilogue. Raises SpecError: none, or it contradicts the operator."""
    if name == EPILOGUE and op.epilogue is not None:
        formula = functools.reduce(functools.partial(_after, op), op.epilogue.steps, el.value())
        return typed(formula, _of_epilogue(op, op.epilogue))
    if name not in op.fragments:
        names = [*op.fragments, *([EPILOGUE] if op.epilogue is not None else [])]
        raise SpecError(f"operator {op.name!r} has no fragment {name!r}", fix=did_you_mean(name, names))
    return typed(
        op.fragments[name].formula, _Scope(op, op.fragments[name].indices, f"operator {op.name!r}: fragment {name!r}")
    )


def step_program(op: OperatorFields, step: Compute) -> Program:
    """The program of one step of the epilogue."""
    assert op.epilogue is not None
    return typed(step.formula, _of_epilogue(op, op.epilogue))


def _output(op: OperatorFields, epilogue: Epilogue) -> Tensor:
    outputs = [t for t in op.outputs if t.name == epilogue.output]
    if not outputs:
        raise SpecError(f"operator {op.name!r}: its epilogue writes {epilogue.output!r}, which is not an output")
    return outputs[0]


def _of_epilogue(op: OperatorFields, epilogue: Epilogue) -> _Scope:
    extents: dict[str, Expr | None] = {str(a): e for a, e in enumerate(_output(op, epilogue).shape)}
    return _Scope(op, extents, f"operator {op.name!r}: the epilogue of {epilogue.output!r}")


def _after(op: OperatorFields, before: Formula, step: EpilogueStep) -> Formula:
    """A step of the epilogue as a formula of the value before it."""
    if isinstance(step, Compute):
        return step.formula.with_value(before)
    if isinstance(step, AddTensor):
        return before + el.element(step.tensor, *step.axes)
    after = before
    for choice in op.choices[step.attribute]:
        check_among(
            choice,
            _ACTIVATIONS,
            f"operator {op.name!r}: the activation {choice!r} of its epilogue is not a function of formulas",
        )
        if choice != "none":
            after = el.where(el.choice(step.attribute, choice), _ACTIVATIONS[choice](before), after)
    return after


def check_fragments(op: OperatorFields, where: str) -> None:
    """Raise SpecError for formulas that contradict their operator. `where` begins the messages."""
    if not isinstance(op.fragments, Mapping):
        raise SpecError(
            f"{where}: fragments is {str(op.fragments)[:60]}, which is not a mapping of names",
            fix='write fragments={"score": Fragment("q k", formula)}',
        )
    mistakes = Mistakes()
    has_output = op.epilogue is not None and op.epilogue.output in {t.name for t in op.outputs}
    computed = (
        [s for s in op.epilogue.steps if isinstance(s, Compute)] if op.epilogue is not None and has_output else []
    )
    for step in computed:
        with mistakes.gather():
            step_program(op, step)
    arguments = set(op.arguments)
    for taken in sorted({EPILOGUE, "fragment"} & arguments) if computed or op.fragments else ():
        with mistakes.gather():
            raise SpecError(
                f"{where}: an argument is called {taken!r}",
                why="references use that name to get the operator's formulas",
                fix="rename it",
            )
    for name, fragment in op.fragments.items():
        with mistakes.gather():
            _check_fragment(op, where, name, fragment, arguments | set(op.dims))
    mistakes.tell()


def _check_fragment(op: OperatorFields, where: str, name: str, fragment: object, taken: set[str]) -> None:
    check_identifier(name, f"{where}: fragment")
    if name == EPILOGUE:
        raise SpecError(f"{where}: a fragment is called {name!r}", fix="declare epilogue=Epilogue(...), or rename it")
    if not isinstance(fragment, Fragment):
        raise SpecError(
            f"{where}: fragment {name!r} is {str(fragment)[:60]!r}",
            fix='write Fragment("q k", formula) with its indices',
        )
    for index, extent in fragment.indices.items():
        if index in taken:
            raise SpecError(
                f"{where}: fragment {name!r}: its index {index!r} has the name of an argument or a dim",
                fix="rename the index",
            )
        for fact in sorted(extent.facts() if extent is not None else ()):
            check_among(
                fact, op.dims, f"{where}: fragment {name!r}: the extent of {index!r} uses {fact!r}, which is not a dim"
            )
    program_of(op, name)


def bind_fragments(op: OperatorFields, problem: Problem, xp: Any, call: SimpleNamespace) -> None:
    """Give a reference's arguments the operator's formulas: `call.epilogue(x)` and `call.fragment(name, x, q=...)`.

    `xp` is the namespace of the arrays. An operator without formulas is left as it is.
    """
    arguments = SimpleNamespace(**vars(call))  # not `call`: it would own itself, and outlive its last user

    def apply(name: str, value: Any, /, **indices: Any) -> Any:
        return evaluate_program(program_of(op, name), xp, arguments, value, op.choices, problem.dims, indices or None)

    if op.fragments:
        call.fragment = apply
    if op.epilogue is not None and not hasattr(call, EPILOGUE):
        call.epilogue = functools.partial(apply, EPILOGUE)
