"""What `aot-tune explain` tells of a call: plain data for `--json`, and lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from aot_tune.report import format_resources

__all__ = ["BestRoofline", "Explanation", "explanation_lines", "explanation_of"]


class BestRoofline(msgspec.Struct, frozen=True, kw_only=True):
    """The best share of a roofline that a variant reached when it was measured: on which problem, by whose peaks."""

    share: float
    problem: str
    of: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Which variant a call gets and why. The library's `explain` tells it; the manifest adds facts about its code.

    A text is empty if there is nothing to tell. A call without elements runs nothing, so its texts are empty.
    `workspace` is in bytes. `code` is what the variant's code uses: registers, bytes of shared memory, stack and
    spills.
    """

    operator: str
    dims: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    attributes: dict[str, str] = {}
    tensors: tuple[str, ...] = ()
    device: str = ""
    threads: str = ""
    processors: str = ""
    table: str = ""
    tuned: bool | None = None
    nearest: str = ""
    override: str = ""
    variant: str = ""
    kernel: str = ""
    target: str = ""
    object: str = ""
    workspace: int | None = None
    note: str = ""
    why: str = ""
    expected: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    code: dict[str, int] = {}
    roofline: BestRoofline | None = None
    schema: int = 1


_TOLD = (
    *("operator", "device", "threads", "processors", "table", "tuned", "nearest", "override"),
    *("variant", "kernel", "target", "object", "workspace", "note", "why"),
)


def explanation_of(told: Mapping[str, Any], manifest: Mapping[str, Any]) -> Explanation:
    """What a library says of a call, with what its manifest says of the variant's code."""
    operators = (one for one in manifest["operators"] if one["name"] == told.get("operator"))
    variants = next((one.get("variants", ()) for one in operators), ())
    known: dict[str, Any] = next((v for v in variants if v["name"] == told.get("variant")), {})
    beside = {"code": known.get("resources") or {}, "roofline": known.get("roofline") or None}
    return msgspec.convert({**told, **beside}, Explanation, strict=False)


def explanation_lines(found: Explanation) -> Iterator[str]:
    """An explanation as people read it."""
    for key in _TOLD:
        value = getattr(found, key)
        if value not in ("", None):  # a call without elements has no variant, and few variants have a note
            yield f"{key:<9} {value}"
    for key in ("tensors", "expected", "path", "rejected"):
        for line in getattr(found, key):
            yield f"{key.removesuffix('s'):<9} {line}"
    code, best = format_resources(found.code), found.roofline
    if code:
        yield f"{'code':<9} {code}"
    if best is not None:
        yield f"{'roofline':<9} {100 * best.share:.0f} % by {best.of}, on '{best.problem}' at best"
