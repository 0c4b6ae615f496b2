"""The errors of the project. Each says what is wrong, why it matters, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class AotTuneError(Exception):
    """Base of all errors that a user can cause or fix.

    Args:
        what: what is wrong, with the offending value.
        why: the reason or the place, if it is not obvious from `what`.
        fix: what to do.
        several: the errors that this one combines.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "", several: Iterable[AotTuneError] = ()) -> None:
        self.what, self.why, self.fix, self.several = what, why, fix, tuple(several)
        lines = [what]
        if why:
            lines.append(f"  why: {why}")
        if fix:
            lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))


class SpecError(AotTuneError):
    """An operator, kernel, problem or workload is not well formed."""


class RenderError(AotTuneError):
    """A template cannot be rendered. The message starts with the template's file and line."""


class ToolchainError(AotTuneError):
    """A compiler or linker is missing or does not work at all."""


class CacheError(AotTuneError):
    """The object cache or measurement store cannot be used."""


class WorkerError(AotTuneError):
    """A benchmark worker cannot be started."""


class TooLargeError(AotTuneError):
    """A problem needs more memory than is allowed here. It is left out, and the build goes on."""


class DatabaseError(AotTuneError):
    """A recorded database cannot be read, or lacks what replay needs."""


class OptionError(AotTuneError):
    """An option of the build has a value that is not allowed."""


class NoSurvivorError(AotTuneError):
    """No candidate of an operator could be compiled, verified and measured."""


class ManifestError(AotTuneError):
    """A linked library does not hold what its manifest says."""


class BuildError(AotTuneError):
    """A build cannot continue."""


class SentError(NamedTuple):
    """The parts of an error, on their way between processes. `kind` is its class."""

    what: str
    why: str = ""
    fix: str = ""
    kind: str = "BuildError"

    @classmethod
    def of(cls, error: AotTuneError) -> SentError:
        """The parts of an error."""
        return cls(error.what, error.why, error.fix, type(error).__name__)

    def error(self, kind: type[AotTuneError] | None = None, *, where: str = "") -> AotTuneError:
        """The error again, or one of another `kind`. `where` is what reported it."""
        kind = kind or globals().get(self.kind, BuildError)
        return kind(f"{where}{': ' * bool(where)}{self.what}", why=self.why, fix=self.fix)


class Mistakes:
    """Collects what is wrong with several things, so that all of it is reported together."""

    def __init__(self) -> None:
        self._found: list[AotTuneError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, error: AotTuneError) -> None:
        """Collect an error for `tell`. The same text counts once."""
        self._found += [e for e in error.several or (error,) if str(e) not in map(str, self._found)]

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Collect the error of the block for `tell`. After a mistake, other errors are taken for consequences."""
        try:
            yield
        except AotTuneError as error:
            self.add(error)
        except Exception:
            if not self._found:
                raise

    def tell(self) -> None:
        """Raise what was collected: a single error itself, or one error that lists all of them."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            kinds = {type(e) for e in self._found}
            text = "".join(f"\n\n{number}. {error}" for number, error in enumerate(self._found, 1))
            kind = kinds.pop() if len(kinds) == 1 else BuildError
            raise kind(f"{len(self._found)} mistakes:{text}", several=self._found)


def tell_all(wrong: Iterable[AotTuneError]) -> None:
    """Raise all of these errors as one, if there are any."""
    mistakes = Mistakes()
    for error in wrong:
        mistakes.add(error)
    mistakes.tell()


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a remedy that names the nearest of `choices`, or all of them if none is near."""
    distinct = sorted(set(choices))
    near = difflib.get_close_matches(word, distinct, n=3)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    return "use one of: " + ", ".join(distinct) if distinct else "nothing of that kind is declared"
