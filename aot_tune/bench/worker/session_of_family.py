"""What a family's session is: the worker's side, which carries out requests one at a time."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, cast

from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.bench.protocol.messages import Reply, Request

__all__ = ["Emit", "WorkerSession", "session_of"]

Emit = Callable[[Reply], None]


class WorkerSession(Protocol):
    """The worker's side of a family: carries out requests, one at a time."""

    def handle(self, request: Request, emit: Emit) -> Reply:
        """Answer a request; `emit` sends Progress in between."""

    def clean(self) -> None:
        """Put things in order after a request that failed."""


def session_of(policy: Policy, role: Role, device: Device) -> WorkerSession:
    """The session for a device: `make_session` of the module that this package has for its family."""
    module = importlib.import_module(f"aot_tune.bench.worker.{device.family}.worker_session")
    return cast(WorkerSession, module.make_session(policy, role, device))
