"""Device families: each is a module of this package by the family's name, with one object called FAMILY."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol, cast

from aot_tune.bench.messages import Reply, Request
from aot_tune.bench.records import Device, Policy
from aot_tune.errors import WorkerError

__all__ = ["Emit", "Family", "Role", "Session", "family"]

Role = Literal["candidate", "framework"]
"""Workers run either candidates, or frameworks: references and baselines."""

Emit = Callable[[Reply], None]


class Session(Protocol):
    """The worker's side of a family: carries out requests, one at a time."""

    def handle(self, request: Request, emit: Emit) -> Reply:
        """Answer a request; `emit` sends Progress in between."""

    def clean(self) -> None:
        """Put things in order after a request that failed."""


class Family(Protocol):
    """The bench's side of a family."""

    def identify(self, threads: int) -> Device:
        """The device of this machine."""

    def environment(self, threads: int, role: Role) -> Mapping[str, str]:
        """Variables that a worker needs beside the allow-list."""

    def writable(self) -> tuple[Path, ...]:
        """Files and folders that a worker must be able to write beside its scratch folder."""

    def floor_ns(self, device: Device, flops: int, nbytes: int) -> float:
        """A time that no honest call can beat, from generous estimates of the device's peaks."""

    def session(self, policy: Policy, role: Role) -> Session:
        """The worker's side; called in the worker."""


def family(name: str) -> Family:
    """The family of that name.

    Raises:
        WorkerError: when there is no such module.
    """
    if re.fullmatch(r"[a-z][a-z0-9_]{0,15}", name):
        try:
            module = importlib.import_module(f"aot_tune.bench.{name}")
            return cast(Family, module.FAMILY)
        except (ModuleNotFoundError, AttributeError):
            pass
    raise WorkerError(f"there is no device family {name!r}", fix="use 'cpu'")
