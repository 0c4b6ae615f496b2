"""The options of a build and the variables of a library, as a terminal shows them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from aot_tune.link.run_time_variables import RUN_TIME_VARIABLES
from aot_tune.plan.options import OPTIONS
from aot_tune.support.errors import OptionError, did_you_mean

__all__ = ["options_text"]

_LEAST = 40
_LINK = re.compile(r"\[[^\]]*\]\((?:\.\./)?([^)#]*)[^)]*\)")


def options_text(names: Sequence[str], environment: Mapping[str, str], width: int) -> str:
    """What the options of these names mean, of all where there are none, and what the environment sets.

    Args:
        names: with or without `AOT_TUNE_` in front, in letters of either case.
        width: columns of the terminal.

    Raises:
        OptionError: for a name that is none.
    """
    known = {one.name: one for one in (*OPTIONS, *RUN_TIME_VARIABLES)}
    wanted = [_full(name) for name in names]
    for name in wanted:
        if name not in known:
            raise OptionError(f"there is no option {name!r}", fix=did_you_mean(name, known))
    lines: list[str] = []
    for title, own in (("Options of a build", OPTIONS), ("Variables that a library reads", RUN_TIME_VARIABLES)):
        shown = [one for one in own if not wanted or one.name in wanted]
        if shown and not wanted:
            lines += [title, ""]
        for one in shown:
            lines += [*_entry(one.name, getattr(one, "default", None), one.help, environment, max(width, _LEAST)), ""]
    return "\n".join(lines[:-1])


def _full(name: str) -> str:
    upper = name.upper()
    return upper if upper.startswith("AOT_TUNE_") else f"AOT_TUNE_{upper}"


def _entry(name: str, default: str | None, help_text: str, environment: Mapping[str, str], width: int) -> Iterator[str]:
    yield name if default is None else f"{name}  (default: {default or 'empty'})"
    if value := environment.get(name):
        yield f"  now {value!r}, from the environment"
    words = _LINK.sub(r"docs/\1", help_text)
    yield from textwrap.wrap(
        words, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
