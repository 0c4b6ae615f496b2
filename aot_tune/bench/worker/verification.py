"""Verifies a candidate on a problem, for every family of devices: a plan of runs, each of which is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from aot_tune.bench.protocol.measurement_records import Check, Policy, Status
from aot_tune.bench.protocol.messages import Checked
from aot_tune.bench.worker.loaded_objects import LaunchError
from aot_tune.spec import Operator, Problem
from aot_tune.spec.calls import aliases_on

__all__ = [
    "CANARY",
    "GARBAGE",
    "Attempt",
    "Bits",
    "Placement",
    "Trial",
    "TrialResult",
    "WorkspaceError",
    "aliased",
    "allowed_workspace",
    "verify",
]

CANARY = 0xA5
"""The contents of guard zones."""

GARBAGE = (0xFF, 0x7F)
"""Bytes that fill a workspace before the runs of one problem, in turn: NaN, then 3.4e38."""

Bits = dict[str, Any]
"""Bytes of outputs, by name."""

Placement = Literal["inside", "end", "start"]
"""Which side of a tensor's memory touches a page that no one may access: neither, its end, or its start."""

_BESIDE: Mapping[Placement, str] = MappingProxyType(
    {
        "inside": "",
        "end": ", whose tensors end where memory that may be read ends",
        "start": ", whose tensors begin where memory that may be read begins",
    }
)


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


class Trial(NamedTuple):
    """One run of a plan. `aliases` are the outputs that use an input's memory.

    `again` says that its bits are compared with those of the first run. If that took longer than `most_ns`, there is no
    such run.
    """

    placement: Placement = "inside"
    aliases: Mapping[str, str] = MappingProxyType({})
    again: bool = False
    most_ns: float = math.inf

    @property
    def beside(self) -> str:
        """Which outputs use which input's memory, as text that follows a problem's name."""
        return "".join(f", {output!r} in the memory of {name!r}" for output, name in self.aliases.items())


def aliased(operator: Operator, problem: Problem) -> list[Trial]:
    """The runs in which outputs are the memory of inputs, if they may be."""
    return [Trial(aliases=aliases) for aliases in aliases_on(operator, problem)]


class TrialResult(NamedTuple):
    """What a run did: its ns, what is wrong, the largest error in tolerances, and whether the bits were the same."""

    ns: float
    fault: str
    error: float
    same: bool


class Attempt(Protocol):
    """A loaded candidate on a problem, as a family runs it."""

    def make(self, trial: Trial, garbage: int, bits: Bits, *, renewed: bool) -> TrialResult:
        """Make a run on poisoned outputs, with a workspace full of `garbage`, and judge what it left.

        Outputs that hold `bits`, which were right before, are right. With `renewed`, there is first a call on other
        contents of the same memory, if there are any. Its result is not judged. It exposes a candidate that keeps, by
        the addresses of its inputs, what it made of them.

        Raises:
            LaunchError: when the call returns an error.
            WorkspaceError: when it wants too much.
        """

    def bits(self, trial: Trial) -> Bits:
        """Copies of the bytes of the outputs."""

    def restore(self, trial: Trial) -> None:
        """Write inputs and guard zones again."""


def verify(
    attempt: Attempt,
    check: Check,
    plan: Sequence[Trial],
    tell: Callable[[str], None],
    *,
    renewed: bool = False,
) -> tuple[Checked, Bits]:
    """Make the runs of a plan. The first fault ends it. Returns the outputs too, if they are right.

    Before each run, tensors that are read and written get their first contents again. `tell` is told where it is. With
    `renewed`, other contents come before the first run, see `Attempt.make`.

    Raises:
        WorkspaceError: when the candidate wants too much.
    """
    runs: list[float] = []
    worst, bitwise = 0.0, None
    bits: Bits = {}

    def ended(status: Status, reason: str) -> tuple[Checked, Bits]:
        attempt.restore(trial)
        return Checked(status=status, reason=reason, error=worst, bitwise=bitwise, runs=tuple(runs)), {}

    for trial in plan:
        if trial.again and runs[0] > trial.most_ns:
            continue
        tell(f"a run of {check.place}{trial.beside}{_BESIDE[trial.placement]}")
        try:
            earlier, second = ({}, False) if trial.aliases else (bits, len(runs) == 1)
            judged = attempt.make(trial, GARBAGE[second], earlier, renewed=renewed and not runs)
        except LaunchError as failure:
            return ended("failed", f"{failure.what} ({check.place}{trial.beside})")
        worst = max(worst, judged.error)
        if not trial.aliases:
            runs.append(judged.ns)
        if trial.again:
            bitwise = judged.same
        if judged.fault:
            hint = f"; if no call has any there, declare {check.special!r} with finite=True" if check.special else ""
            return ended("wrong-result", f"{judged.fault} ({check.place}{trial.beside}{hint})")
        bits = bits or attempt.bits(trial)
    return Checked(status="ok", error=worst, bitwise=bitwise, runs=tuple(runs)), bits
