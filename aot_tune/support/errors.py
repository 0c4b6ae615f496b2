"""The errors of the project: each says what is wrong, why it matters, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AotTuneError",
    "BuildError",
    "CacheError",
    "DatabaseError",
    "ManifestError",
    "NoSurvivorError",
    "OptionError",
    "RenderError",
    "SpecError",
    "ToolchainError",
    "WorkerError",
    "did_you_mean",
]


class AotTuneError(Exception):
    """Base of all errors that a user can cause or mend.

    Args:
        what: what is wrong, with the offending value.
        why: the reason or the place, if it is not obvious from `what`.
        fix: what to do.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        lines = [what]
        if why:
            lines.append(f"  why: {why}")
        if fix:
            lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))


class SpecError(AotTuneError):
    """An operator, kernel, problem or workload is not well formed."""


class RenderError(AotTuneError):
    """A template cannot be rendered; the message starts with the template's file and line."""


class ToolchainError(AotTuneError):
    """A compiler or linker is missing or does not work at all."""


class CacheError(AotTuneError):
    """The object cache or measurement store cannot be used."""


class WorkerError(AotTuneError):
    """A benchmark worker cannot be started."""


class DatabaseError(AotTuneError):
    """A recorded database cannot be read, or lacks what replay needs."""


class OptionError(AotTuneError):
    """An option of the build has a value that is not allowed."""


class NoSurvivorError(AotTuneError):
    """No candidate of an operator could be compiled, verified and measured."""


class ManifestError(AotTuneError):
    """A linked library does not hold what its manifest says."""


class BuildError(AotTuneError):
    """A build cannot go on."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a remedy that names the nearest of `choices`, or all of them when none is near."""
    known = sorted(set(choices))
    near = difflib.get_close_matches(word, known, n=3)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    return "use one of: " + ", ".join(known) if known else "nothing of that kind is declared"
