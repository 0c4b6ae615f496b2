"""For how many rows a library serves an operator with a tuned variant. This decides whether a module is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["ALL_ROWS", "STEPS", "RowRanges", "ask_once", "ask_rows", "hold"]

STEPS = tuple(1 << n for n in range(13))
"""Row counts that a library is asked about. Any other count is treated like the next lower one."""

_VENDOR = "cublaslt"
"""Kernels of the vendor's library begin with this. Where they were not measured, torch would call the same library."""


@dataclass(frozen=True)
class RowRanges:
    """Row counts, as ranges `(first, end)`; `end` is exclusive, or None. Both are steps.

    `kernels` are what serves them. Bit n of `steps` says whether the rows from step n to the next are in a range.
    """

    ranges: tuple[tuple[int, int | None], ...]
    kernels: tuple[str, ...] = ()
    refused: str = ""
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        held = [any(a <= step and (b is None or step < b) for a, b in self.ranges) for step in STEPS]
        object.__setattr__(self, "steps", sum(1 << n for n, is_held in enumerate(held) if is_held))

    def __str__(self) -> str:
        if self.ranges == ALL_ROWS.ranges:
            return "any"
        return ", ".join(f"{a} up" if b is None else str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in self.ranges)


ALL_ROWS = RowRanges(((1, None),))
"""Any number except 0."""

_EVERY = ALL_ROWS.steps


def hold(steps: int, rows: Any) -> bool:
    """Whether a call with this many rows is served; `rows` may be a symbol of a traced graph.

    It takes the number `steps` of ranges instead of the ranges, since a compiled graph looks at one number faster than
    at several tuples.
    """
    if not torch.compiler.is_compiling():
        return bool(rows > 0 and steps >> (min(int(rows).bit_length(), len(STEPS)) - 1) & 1)
    if steps == _EVERY:
        return bool(rows > 0)
    place = 0
    while place + 1 < len(STEPS) and rows >= 2 << place:
        place += 1
    return bool(rows > 0 and steps >> place & 1 == 1)


def ask_rows(explain: Callable[[int], dict[str, Any]], *, tuned: bool) -> RowRanges:
    """Ask a library about calls with 1, 2, 4, ... rows.

    Args:
        explain: what the library's function `explain` returns for a call with this many rows.
        tuned: whether only calls count that a tuned variant serves. Then the generic variant does not count. Nor does
            the vendor's library on a call that nobody measured, because torch calls it as well.
    """
    found, kernels, refused = [], [], ""
    for rows in STEPS:
        kernel, why = ask_once(lambda rows=rows: explain(rows), tuned=tuned)  # type: ignore[misc]
        refused = refused or why
        if not why:
            found.append(rows)
            kernels.append(kernel)
    return RowRanges(_ranges(found), tuple(dict.fromkeys(kernels)), refused)


def ask_once(explain: Callable[[], dict[str, Any]], *, tuned: bool) -> tuple[str, str]:
    """The kernel that serves a call; and why it does not count, or ''. The arguments are as in `ask_rows`."""
    try:
        said = explain()
    except (TypeError, ValueError, RuntimeError) as error:
        return "", str(error)
    kernel = said["kernel"]
    if tuned and kernel.endswith("generic"):
        return kernel, "only its generic variant serves such calls"
    if tuned and kernel.startswith(_VENDOR) and not said["tuned"]:
        return kernel, "the vendor's library serves such calls, as torch's own"
    return kernel, ""


def _ranges(found: Iterable[int]) -> tuple[tuple[int, int | None], ...]:
    """The steps in `found` as ranges. Neighbours are joined."""
    made: list[tuple[int, int | None]] = []
    for rows in found:
        end = None if rows == STEPS[-1] else 2 * rows
        if made and made[-1][1] == rows:
            made[-1] = (made[-1][0], end)
        else:
            made.append((rows, end))
    return tuple(made)
