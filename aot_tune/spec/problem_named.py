"""Finds a problem by its id, as reports, records and manifests show it."""

from __future__ import annotations

import re

from aot_tune.spec.operator import Operator
from aot_tune.spec.problem import Problem
from aot_tune.spec.problem import problem as make_problem
from aot_tune.support.errors import OptionError

__all__ = ["problem_named"]

_PARTS = {
    "strides": re.compile(r"(\w+):\(([-\d,]*)\)"),
    "order": re.compile(r"(\w+):(\d+)"),
    "present": re.compile(r"\+(\w+)()"),
    "alignment": re.compile(r"(\w+)@(\d+)"),
    "value": re.compile(r"(\w+)=(\S+)"),
}


def problem_named(operator: Operator, text: str) -> Problem:
    """The problem with that id.

    Raises:
        OptionError: for a text that is not a problem of the operator.
    """
    found: dict[str, dict[str, object]] = {"strides": {}, "order": {}, "alignment": {}, "attributes": {}, "dtypes": {}}
    dims: dict[str, int] = {}
    present: list[str] = []
    choices = {a.name: a.choices for a in operator.attributes} | dict(operator.dtypes)
    tensors = {t.name for t in operator.tensors}
    for part in text.split():
        kind, name, value = next(
            ((k, m[1], m[2]) for k, p in _PARTS.items() if (m := p.fullmatch(part)) is not None), ("", "", "")
        )
        if kind == "value" and name in operator.dims and value.isdecimal():
            dims[name] = int(value)
        elif kind == "value" and value in choices.get(name, ()):
            found["dtypes" if name in operator.dtypes else "attributes"][name] = value
        elif kind == "present" and name in tensors:
            present.append(name)
        elif kind in ("strides", "order") and name in tensors:
            numbers = value.split(",") if kind == "strides" else list(value)
            found[kind][name] = tuple(int(n) for n in numbers if n)
        elif kind == "alignment" and name in tensors:
            found[kind][name] = int(value)
        else:
            raise OptionError(
                f"{part!r} is not a part of a problem of operator {operator.name!r}",
                fix="copy a problem from the report, such as 'M=16 N=4096 +bias b:10'",
            )
    if set(dims) != set(operator.dims):
        raise OptionError(
            f"{text!r} is not a problem of operator {operator.name!r}",
            fix=f"give each of its dims once, as {' '.join(f'{n}=1' for n in operator.dims)}",
        )
    return make_problem(present=present, **found, **{n: dims[n] for n in operator.dims})  # type: ignore[arg-type]
