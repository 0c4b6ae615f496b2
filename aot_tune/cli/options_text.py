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
    """What options mean, and what the environment sets. No names means all options.

    Args:
        names: with or without `AOT_TUNE_` in front, in upper or lower case.
        width: columns of the terminal.

    Raises:
        OptionError: for an unknown name.
    """
    parts = (
        ("Options of a build", [(o.name, f"  (default: {o.default or 'empty'})", o.help) for o in OPTIONS]),
        ("Variables that a library reads", [(v.name, "", v.help) for v in RUN_TIME_VARIABLES]),
    )
    known = [name for _, entries in parts for name, *_ in entries]
    wanted = [_full(name) for name in names]
    for name in wanted:
        if name not in known:
            raise OptionError(f"there is no option {name!r}", fix=did_you_mean(name, known))
    lines: list[str] = []
    for title, entries in parts:
        lines += [title, ""] if not wanted else []
        for name, default, meaning in entries:
            if not wanted or name in wanted:
                lines += [f"{name}{default}", *_told(name, meaning, environment, max(width, _LEAST)), ""]
    return "\n".join(lines[:-1])


def _full(name: str) -> str:
    upper = name.upper()
    return upper if upper.startswith("AOT_TUNE_") else f"AOT_TUNE_{upper}"


def _told(name: str, meaning: str, environment: Mapping[str, str], width: int) -> Iterator[str]:
    if value := environment.get(name):
        yield f"  now {value!r}, from the environment"
    words = _LINK.sub(r"docs/\1", meaning)
    yield from textwrap.wrap(
        words, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
