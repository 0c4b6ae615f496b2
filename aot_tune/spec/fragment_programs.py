"""The fragments of an operator as programs. Its declaration checks them, and its reference evaluates them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from aot_tune.expr.array_values import evaluate
from aot_tune.expr.formulas import Formula, Program
from aot_tune.expr.integers import Expr
from aot_tune.spec import elementwise as el
from aot_tune.spec.epilogue import AddTensor, Compute, Epilogue, EpilogueStep
from aot_tune.spec.fragment import EPILOGUE, Fragment
from aot_tune.spec.names import check_identifier
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.problem import Problem
from aot_tune.spec.tensors import Tensor
from aot_tune.spec.typed_formulas import ProgramScope, typed
from aot_tune.support.errors import Mistakes, SpecError, did_you_mean

__all__ = ["bind_fragments", "check_fragments", "program_of", "step_program"]

_ACTIVATIONS: dict[str, Callable[[Formula], Formula]] = {
    "none": lambda x: x,
    "relu": el.relu,
    "gelu": el.gelu,
    "gelu_tanh": el.gelu_tanh,
    "silu": el.silu,
}


def program_of(op: OperatorFields, name: str) -> Program:
    """The program of an operator's fragment, or of its whole epilogue.

    Raises:
        SpecError: when there is no fragment of that name, or it contradicts the operator.
    """
    if name == EPILOGUE and op.epilogue is not None:
        formula = functools.reduce(functools.partial(_after, op), op.epilogue.steps, el.value())
        return typed(formula, _of_epilogue(op, op.epilogue))
    if name not in op.fragments:
        known = [*op.fragments, *([EPILOGUE] if op.epilogue is not None else [])]
        raise SpecError(f"operator {op.name!r} has no fragment {name!r}", fix=did_you_mean(name, known))
    return typed(op.fragments[name].formula, _of_fragment(op, name))


def step_program(op: OperatorFields, step: Compute) -> Program:
    """The program of one step of the epilogue."""
    assert op.epilogue is not None
    return typed(step.formula, _of_epilogue(op, op.epilogue))


def _output(op: OperatorFields, epilogue: Epilogue) -> Tensor:
    found = [t for t in op.outputs if t.name == epilogue.output]
    if not found:
        raise SpecError(f"operator {op.name!r}: its epilogue writes {epilogue.output!r}, which is not an output")
    return found[0]


def _of_epilogue(op: OperatorFields, epilogue: Epilogue) -> ProgramScope:
    extents: dict[str, Expr | None] = {str(a): e for a, e in enumerate(_output(op, epilogue).shape)}
    return ProgramScope(op, extents, f"operator {op.name!r}: the epilogue of {epilogue.output!r}")


def _of_fragment(op: OperatorFields, name: str) -> ProgramScope:
    return ProgramScope(op, op.fragments[name].indices, f"operator {op.name!r}: fragment {name!r}")


def _after(op: OperatorFields, before: Formula, step: EpilogueStep) -> Formula:
    """A step of the epilogue as a formula of the value before it."""
    if isinstance(step, Compute):
        return step.formula.with_value(before)
    if isinstance(step, AddTensor):
        return before + el.element(step.tensor, *step.axes)
    found = before
    for choice in next(a.choices for a in op.attributes if a.name == step.attribute):
        if choice not in _ACTIVATIONS:
            raise SpecError(
                f"operator {op.name!r}: the activation {choice!r} of its epilogue is not a function of formulas",
                fix=did_you_mean(choice, _ACTIVATIONS),
            )
        if choice != "none":
            found = el.where(el.choice(step.attribute, choice), _ACTIVATIONS[choice](before), found)
    return found


def check_fragments(op: OperatorFields, where: str) -> None:
    """Raise SpecError for formulas that contradict their operator. `where` begins the messages."""
    if not isinstance(op.fragments, Mapping):
        raise SpecError(
            f"{where}: fragments is {str(op.fragments)[:60]}, which is not a mapping of names",
            fix='write fragments={"score": Fragment("q k", formula)}',
        )
    mistakes = Mistakes()
    known = op.epilogue is not None and op.epilogue.output in {t.name for t in op.outputs}
    computed = [s for s in op.epilogue.steps if isinstance(s, Compute)] if op.epilogue is not None and known else []
    for step in computed:
        with mistakes.gather():
            step_program(op, step)
    arguments = {t.name for t in op.tensors} | {s.name for s in op.scalars} | {a.name for a in op.attributes}
    for taken in sorted({EPILOGUE, "fragment"} & arguments) if computed or op.fragments else ():
        with mistakes.gather():
            raise SpecError(
                f"{where}: an argument is called {taken!r}",
                why="references use that name to get the operator's formulas",
                fix="rename it",
            )
    for name, one in op.fragments.items():
        with mistakes.gather():
            _check_fragment(op, where, name, one, arguments | set(op.dims))
    mistakes.tell()


def _check_fragment(op: OperatorFields, where: str, name: str, one: object, taken: set[str]) -> None:
    check_identifier(name, f"{where}: fragment")
    if name == EPILOGUE:
        raise SpecError(f"{where}: a fragment is called {name!r}", fix="declare epilogue=Epilogue(...), or rename it")
    if not isinstance(one, Fragment):
        raise SpecError(
            f"{where}: fragment {name!r} is {str(one)[:60]!r}", fix='write Fragment("q k", formula) with its indices'
        )
    for index, extent in one.indices.items():
        if index in taken:
            raise SpecError(
                f"{where}: fragment {name!r}: its index {index!r} has the name of an argument or a dim",
                fix="rename the index",
            )
        for fact in sorted(extent.facts() if extent is not None else ()):
            if fact not in op.dims:
                raise SpecError(
                    f"{where}: fragment {name!r}: the extent of {index!r} uses {fact!r}, which is not a dim",
                    fix=did_you_mean(fact, op.dims),
                )
    program_of(op, name)


def bind_fragments(op: OperatorFields, problem: Problem, xp: Any, call: SimpleNamespace) -> None:
    """Give a reference's arguments the operator's formulas: `call.epilogue(x)` and `call.fragment(name, x, q=...)`.

    `xp` is the namespace of the arrays. An operator without formulas is left as it is.
    """
    choices = {a.name: a.choices for a in op.attributes}
    arguments = SimpleNamespace(**vars(call))  # not `call`: it would own itself, and outlive its last user

    def apply(name: str, value: Any, /, **indices: Any) -> Any:
        return evaluate(program_of(op, name), xp, arguments, value, choices, problem.dims, indices or None)

    if op.fragments:
        call.fragment = apply
    if op.epilogue is not None and not hasattr(call, EPILOGUE):
        call.epilogue = functools.partial(apply, EPILOGUE)
