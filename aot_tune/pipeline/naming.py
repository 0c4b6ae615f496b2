"""Names for people: variants, problems, and the command that tries one again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from aot_tune.pipeline.evidence import Entry
from aot_tune.spec import Operator, Problem
from aot_tune.spec import problem as make_problem
from aot_tune.spec.load_operators import bundled_templates
from aot_tune.support.errors import OptionError

__all__ = ["again", "problem_named", "variant_name"]

_PARTS = {
    "strides": re.compile(r"(\w+):\(([-\d,]*)\)"),
    "order": re.compile(r"(\w+):(\d+)"),
    "present": re.compile(r"\+(\w+)()"),
    "alignment": re.compile(r"(\w+)@(\d+)"),
    "value": re.compile(r"(\w+)=(\S+)"),
}


def variant_name(entry: Entry) -> str:
    """The name of a candidate for people: its kernel and the beginning of its id."""
    return f"{entry.candidate.kernel}_{entry.candidate.id[:8]}"


def again(operator: Operator, entry: Entry, target: str, problem: Problem | None = None) -> str:
    """The command that compiles, verifies and times a candidate by itself, on one problem or on all that it serves.

    It holds no path of this machine: template roots are called by their last part, as in the folder of a project.
    """
    words = ["aot-tune", "try", operator.name, variant_name(entry), "--target", target]
    root = Path(operator.folder).parent
    if operator.folder and root.resolve() != bundled_templates().resolve():
        words += ["--templates", root.name]
    return shlex.join([*words, "--problem", problem.id] if problem is not None else words)


def problem_named(operator: Operator, text: str) -> Problem:
    """The problem with that id.

    Raises:
        OptionError: for a text that is no problem of the operator.
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
                f"{part!r} says nothing of a problem of operator {operator.name!r}",
                fix="copy a problem from the report, such as 'M=16 N=4096 +bias b:10'",
            )
    if set(dims) != set(operator.dims):
        raise OptionError(
            f"{text!r} is no problem of operator {operator.name!r}",
            fix=f"give each of its dims once, as {' '.join(f'{n}=1' for n in operator.dims)}",
        )
    return make_problem(present=present, **found, **{n: dims[n] for n in operator.dims})  # type: ignore[arg-type]
