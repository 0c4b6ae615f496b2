"""Candidates and operators that fail. The others go on, unless the build stops at the first failure."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aot_tune.bench.protocol.measurement_records import check_in
from aot_tune.compile import Variant
from aot_tune.spec import Operator, Problem
from aot_tune.spec.load_operators import bundled_templates
from aot_tune.support.errors import AotTuneError, BuildError, CacheError, OptionError, ToolchainError, WorkerError

_OF_THE_MACHINE = (CacheError, OptionError, ToolchainError, WorkerError)
"""Errors that would fail every operator alike. They end the build at once."""
_MOST = 5
"""How many errors of one operator are reported."""
_TOLD = 3
"""How many candidates of an operator that fail are told at once. Those that hang always are: each takes seconds."""


class Failures:
    """What is wrong with the operators of a build, by name. Any thread may add.

    `log` gets a line for each operator, and for the first candidates that fail. If it `stops`, what would be added is
    raised instead.
    """

    def __init__(self, log: Callable[[str], None] = lambda _line: None, *, stops: bool = False) -> None:
        self._log, self._stops, self._lock = log, stops, threading.Lock()
        self._errors: dict[str, list[AotTuneError]] = {}
        self._told: dict[str, set[str]] = {}

    def __contains__(self, operator: str) -> bool:
        return operator in self._errors

    def __bool__(self) -> bool:
        return bool(self._errors)

    @property
    def operators(self) -> list[str]:
        return sorted(self._errors)

    def add(self, operator: str, error: AotTuneError) -> None:
        """Note that an operator cannot be shipped as it is."""
        if self._stops:
            raise error
        with self._lock:
            errors = self._errors.setdefault(operator, [])
            first = not errors
            if all(str(error) != str(other) for other in errors):
                errors.append(error)
        if first:
            self._log(f"{operator} FAILED, the other operators go on: {error.what.splitlines()[0]}")

    def of_candidate(
        self, operator: Operator, variant: Variant, status: str, reason: str, problem: Problem | None = None
    ) -> None:
        """Tell that a candidate failed, on a problem or in a compiler. Raises BuildError if the build stops at it."""
        who = f"{variant.name} ({variant.candidate.label})"
        command = again(operator, variant, variant.candidate.target, problem, reason)
        if self._stops:
            raise BuildError(
                f"operator {operator.name!r}: {who} fails: {status}",
                why=reason,
                fix=f"correct {operator.kernel(variant.candidate.kernel).source}{crash_hint([status])}; "
                f"to try it again: {command}",
            )
        with self._lock:
            told = self._told.setdefault(operator.name, set())
            if variant.id in told or (len(told) >= _TOLD and status != "timeout"):
                return
            told.add(variant.id)
        more = "; the report has the others that fail" if len(told) == _TOLD else ""
        first = reason.partition("\n")[0]
        self._log(f"{operator.name}: {who} fails: {status}: {first}; again: {command}{more}")

    @contextmanager
    def of(self, operator: str) -> Iterator[None]:
        """Note the errors of the block as the operator's own. Errors of the machine end the build."""
        try:
            yield
        except _OF_THE_MACHINE:
            raise
        except AotTuneError as error:
            self.add(operator, error)

    def told(self) -> list[str]:
        """A line or more for each operator: what is wrong, why, and what to do."""
        lines = []
        for name in self.operators:
            errors = self._errors[name]
            for error in errors[:_MOST]:
                lines.append(f"{name}: {error.what.removeprefix(f'operator {name!r}: ')}")
                lines += [f"  why: {error.why}"] if error.why else []
                lines += [f"  fix: {error.fix}"] if error.fix else []
            if len(errors) > _MOST:
                lines.append(f"{name}: {len(errors) - _MOST} more errors")
        return lines

    def error(self, count: int) -> AotTuneError:
        """The error that ends a build of `count` operators. If there is only one error, it is that error."""
        errors = [e for name in self.operators for e in self._errors[name]]
        if len(errors) == 1:
            return errors[0]
        return BuildError(
            f"{len(self._errors)} of {count} operators cannot be shipped: {', '.join(self.operators)}",
            why="\n       ".join(line for told in self.told() for line in told.splitlines()),
            fix="correct them, or leave them out of the library with AOT_TUNE_NO_SURVIVOR=leave-out",
        )


def crash_hint(statuses: Iterable[str]) -> str:
    """What else to look for if a candidate crashed: compilers let a function end without its result."""
    return " (a `launch` that does not end with `return` crashes, too)" if "crashed" in statuses else ""


def again(operator: Operator, variant: Variant, target: str, problem: Problem | None = None, reason: str = "") -> str:
    """The command that compiles, verifies and times one candidate, on one problem or on all that it serves.

    If the `reason` of a failure names a check, the command takes that. It holds no path of this machine: template roots
    have only their last part, as in a project's folder.
    """
    words = ["aot-tune", "try", operator.name, variant.name, "--target", target]
    root = Path(operator.folder).parent
    if operator.folder and root.resolve() != bundled_templates().resolve():
        words += ["--templates", root.name]
    where = check_in(reason) or (problem.id if problem is not None else "")
    return shlex.join([*words, "--problem", where] if where else words)
