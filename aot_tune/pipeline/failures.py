"""Operators that cannot be shipped: each costs itself alone, and all that is wrong is told at the end of a build."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aot_tune.support.errors import (
    AotTuneError,
    BuildError,
    CacheError,
    OptionError,
    ToolchainError,
    WorkerError,
)

__all__ = ["Failures"]

_OF_THE_MACHINE = (CacheError, OptionError, ToolchainError, WorkerError)
"""What would fail for every operator alike: it ends the build at once."""
_MOST = 5
"""Errors that are told of one operator."""


class Failures:
    """What is wrong with operators of a build, by name; any thread may tell. `log` gets a line for each operator."""

    def __init__(self, log: Callable[[str], None] = lambda _line: None) -> None:
        self._log, self._lock = log, threading.Lock()
        self._found: dict[str, list[AotTuneError]] = {}

    def __contains__(self, operator: str) -> bool:
        return operator in self._found

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def operators(self) -> list[str]:
        """Those that failed, by name."""
        return sorted(self._found)

    def add(self, operator: str, error: AotTuneError) -> None:
        """An operator cannot be shipped as it is."""
        with self._lock:
            known = self._found.setdefault(operator, [])
            first = not known
            if all(str(error) != str(other) for other in known):
                known.append(error)
        if first:
            self._log(f"{operator} FAILED, the other operators go on: {error.what.splitlines()[0]}")

    @contextmanager
    def of(self, operator: str) -> Iterator[None]:
        """What is wrong with an operator in the block is its own; what is wrong with the machine is everybody's."""
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
            errors = self._found[name]
            for error in errors[:_MOST]:
                lines.append(f"{name}: {error.what.removeprefix(f'operator {name!r}: ')}")
                lines += [f"  why: {error.why}"] if error.why else []
                lines += [f"  fix: {error.fix}"] if error.fix else []
            if len(errors) > _MOST:
                lines.append(f"{name}: {len(errors) - _MOST} more of the kind")
        return lines

    def error(self, count: int) -> AotTuneError:
        """What ends a build of `count` operators: the error itself where there is but one."""
        errors = [e for name in self.operators for e in self._found[name]]
        if len(errors) == 1:
            return errors[0]
        return BuildError(
            f"{len(self._found)} of {count} operators cannot be shipped: {', '.join(self.operators)}",
            why="\n       ".join(line for told in self.told() for line in told.splitlines()),
            fix="mend them, or leave them out of the library with AOT_TUNE_NO_SURVIVOR=leave-out",
        )
