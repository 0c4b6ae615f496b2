"""What a worker process is started with, as JSON on its command line."""

from __future__ import annotations

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Policy, Role

__all__ = ["Setup"]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is started with. `shared` is where it writes references, and is empty for candidates' workers.

    `mark` identifies its descendants, see `support.processes.mark_of`.
    """

    device: Device
    role: Role
    threads: int
    policy: Policy
    parent: int
    requests: int
    replies: int
    scratch: str
    shared: str = ""
    mark: int = 0
