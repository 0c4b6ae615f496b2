"""Which codes of a generic kernel there are: one for each combination of optional tensors and attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aot_tune.spec import Expr, Operator
from aot_tune.spec.call_combinations import is_of_combination, legal_combinations, values_of_fact
from aot_tune.support.errors import SpecError

__all__ = ["combinations", "pinned_form"]

_MOST = 64
"""Codes of one generic kernel for one target and one set of dtypes."""
_LOOKED_AT = 1 << 14


def combinations(
    operator: Operator, compiled_in: Mapping[str, Expr], dtypes: Mapping[str, str], where: str
) -> list[dict[str, int]]:
    """The values that pins have together in legal calls; all of a call's are those of one of them.

    Raises:
        SpecError: for a pin that depends on dims, strides or alignments, and for too many combinations.
    """
    for name, expr in compiled_in.items():
        if not is_of_combination(expr):
            raise SpecError(
                f"{where}: {_what(name)} is {expr.key()}, a constant that depends on the call",
                why="a generic variant is a code for every legal call, or one for each combination of optional tensors "
                "and attributes",
                fix="pass a constant, or let another kernel be the generic one",
            )
    facts = sorted({fact for expr in compiled_in.values() for fact in expr.facts()})
    known = {f"dtype.{v}": [choices.index(dtypes.get(v, choices[0]))] for v, choices in operator.dtypes.items()}
    values = [known.get(fact) or values_of_fact(operator, fact) for fact in facts]
    count, found = math.prod(map(len, values)), dict[tuple[int, ...], dict[str, int]]()
    for call in legal_combinations(operator, facts, values) if count <= _LOOKED_AT else ():
        pins = {name: expr.evaluate(call) for name, expr in compiled_in.items()}
        found.setdefault(tuple(pins.values()), pins)
    if count > _LOOKED_AT or len(found) > _MOST:
        raise SpecError(
            f"{where}: there are {len(found) or count} combinations of {', '.join(map(_shown, facts))}, each a code of "
            "its own",
            why=f"at most {_MOST} are compiled for a target and its dtypes",
            fix="pass some as ordinary arguments, exclude some by `legal`, or let another kernel be the generic one",
        )
    return list(found.values())


def pinned_form(operator: Operator, guard: Expr) -> Expr:
    """A guard of a generic candidate as `fact == value`, where that is the same."""
    facts = sorted(guard.facts())
    if len(facts) != 1 or not is_of_combination(guard) or facts[0].startswith("dtype."):
        return guard
    holding = [v for v in values_of_fact(operator, facts[0]) if guard.evaluate({facts[0]: v})]
    return Expr("fact", value=facts[0]) == holding[0] if len(holding) == 1 else guard


def _what(pin: str) -> str:
    option = pin.removeprefix("option.")
    return f"launch option {option!r}" if option != pin else f"argument {pin.removesuffix('.none')!r}"


def _shown(fact: str) -> str:
    kind, _, name = fact.partition(".")
    return f"{kind}({name!r})"
