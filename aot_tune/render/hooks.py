"""Places in a rendered text that are filled in after the template has run, each exactly once."""

from __future__ import annotations

import re
from collections.abc import Callable

from aot_tune.support.errors import RenderError

__all__ = ["Hooks"]

_PLACE = re.compile("\x04([a-z_]+)#([0-9]+)\x05")


class Hooks:
    """Named places of one rendering and what will fill them.

    A place is opened by `open` while the template runs and filled by `finalize` when all of it is known, so that what
    comes late (an epilogue, a helper function for it) can change text that was rendered early.
    """

    def __init__(self) -> None:
        self._fill: dict[str, Callable[[], str]] = {}
        self._names: list[str] = []

    def open(self, name: str, fill: Callable[[], str]) -> str:
        """Return a place for the text of `fill`, which is called by `finalize`."""
        key = f"{name}#{len(self._names)}"
        self._names.append(name)
        self._fill[key] = fill
        return f"\x04{key}\x05"

    def opened(self, name: str) -> bool:
        """Whether a place of that name exists."""
        return name in self._names

    def open_once(self, name: str, fill: Callable[[], str]) -> str:
        """As `open`, for a place that a template may have only once.

        Raises:
            RenderError: when the template has it already.
        """
        if self.opened(name):
            raise RenderError(f"{name}() is used twice", why="its text may stand only once", fix="remove one")
        return self.open(name, fill)

    def finalize(self, text: str) -> str:
        """Fill every place.

        Raises:
            RenderError: when a place was dropped from the text, or stands in it twice.
        """
        used: set[str] = set()

        def fill(match: re.Match[str]) -> str:
            key = f"{match.group(1)}#{match.group(2)}"
            if key in used:
                raise RenderError(
                    f"the result of {match.group(1)}() stands twice in the rendered text",
                    why="the template kept it in a variable, or repeats a block that has it",
                    fix="write the call itself wherever its result is wanted",
                )
            used.add(key)
            return self._fill[key]()

        filled = _PLACE.sub(fill, text)
        left = sorted({k.split("#")[0] for k in set(self._fill) - used})
        if left:
            raise RenderError(
                f"the results of {', '.join(left)} were never written",
                why="a hook was called and its text dropped",
                fix="write {{ ... }} around the call, or do not call it",
            )
        return filled
