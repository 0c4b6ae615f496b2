"""The result of one candidate on one problem, and what keeps the candidate from running there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aot_tune.bench.protocol.measurement_records import Check, Policy, Status

__all__ = ["CANARY", "GARBAGE", "Verdict", "WorkspaceError", "allowed_workspace", "refusal", "told"]

CANARY = 0xA5
"""The contents of guard zones."""

GARBAGE = (0xFF, 0x7F)
"""Bytes that fill a workspace before the runs of one problem, in turn: NaN, then 3.4e38."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result on one problem.

    `runs` are the ns of single calls, in order. `bits` are the outputs that were right, by name.
    """

    status: Status = "ok"
    reason: str = ""
    error: float = 0.0
    bitwise: bool | None = None
    runs: tuple[float, ...] = ()
    bits: dict[str, Any] = {}


def told(aliases: Mapping[str, str]) -> str:
    """Text that says which outputs use which input's memory. It follows a problem's name."""
    return "".join(f", {output!r} in the memory of {name!r}" for output, name in aliases.items())


def refusal(fault: str, check: Check, beside: str = "") -> str:
    """Text on what is wrong on a check, and on what could be declared if no call is like it."""
    hint = f"; if no call has any there, declare {check.special!r} with finite=True" if check.special else ""
    return f"{fault} ({check.place}{beside}{hint})"


class WorkspaceError(Exception):
    """A candidate asks for more workspace than it may have."""


def allowed_workspace(size: int, policy: Policy) -> int:
    """The bytes of workspace that a candidate asks for, if they are allowed.

    Raises:
        WorkspaceError: when it asks for more than the policy allows.
    """
    if size > policy.workspace_bytes:
        raise WorkspaceError(f"asks for {size} bytes of workspace, but only {policy.workspace_bytes} are allowed")
    return size
