"""The command `aot-tune options`: what options mean, and what the environment sets."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aot_tune.link.run_time_variables import RUN_TIME_VARIABLES
from aot_tune.plan.options import OPTIONS
from aot_tune.support.errors import OptionError, did_you_mean

__all__ = ["add_options", "options_text"]

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
    names_known = [name for _, entries in parts for name, *_ in entries]
    wanted = [f"AOT_TUNE_{name.upper().removeprefix('AOT_TUNE_')}" for name in names]
    for name in wanted:
        if name not in names_known:
            raise OptionError(f"there is no option {name!r}", fix=did_you_mean(name, names_known))
    lines: list[str] = []
    for title, entries in parts:
        lines += [title, ""] if not wanted else []
        for name, default, meaning in entries:
            if not wanted or name in wanted:
                lines += [f"{name}{default}", *_meaning_lines(name, meaning, environment, max(width, _LEAST)), ""]
    return "\n".join(lines[:-1])


def _meaning_lines(name: str, meaning: str, environment: Mapping[str, str], width: int) -> Iterator[str]:
    if value := environment.get(name):
        yield f"  now {value!r}, from the environment"
    words = _LINK.sub(r"docs/\1", meaning)
    yield from textwrap.wrap(
        words, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def add_options(commands: Any) -> None:
    """Add the command to the parser."""
    options = commands.add_parser(
        "options",
        help="the options of a build",
        description="Say what the options of a build and the variables of a library mean, and what is set here.",
    )
    options.add_argument("names", nargs="*", metavar="NAME", help="only these, such as BUDGET; default: all")
    options.set_defaults(run=_options)


def _options(given: argparse.Namespace) -> int:
    print(options_text(given.names, os.environ, shutil.get_terminal_size().columns))
    return 0
