"""Remarks that belong to every time of a problem."""

from __future__ import annotations

from collections.abc import Callable

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Prepared

__all__ = ["Remarks"]


class Remarks:
    """What workers say of a problem when they first set it up. It belongs to every time of that problem."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._known: dict[str, str] = {}
        self._told: set[str] = set()

    def prepare(self, prepared: Prepared, ask: Callable[[messages.Prepare], messages.Reply]) -> messages.Reply:
        """Have a worker make a problem's buffers. The first worker's remarks on the problem are kept and logged."""
        new = prepared.key not in self._known
        reply = ask(messages.Prepare(key=prepared.key, probe=new))
        if new and isinstance(reply, messages.Done):
            self._known[prepared.key] = reply.remark
            self.log(f"{prepared.operator} {prepared.problem.id}: {reply.remark}" if reply.remark else "")
            self.log(reply.log)
        return reply

    def log(self, line: str) -> None:
        """Log a line that was not logged before."""
        if line and line not in self._told:
            self._told.add(line)
            self._log(line)

    def on(self, prepared: Prepared, note: str) -> str:
        """A note on times of a problem, with the remarks that belong to all of them."""
        return "; ".join(text for text in (note, self._known.get(prepared.key, "")) if text)
