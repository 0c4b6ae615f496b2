"""The log of a build for programs: what was compiled, measured and chosen, when, and how long it took.

Each line is one of Chrome's trace events, so that viewers of traces need no more than the lines as a list.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import IO, Any

from aot_tune.support.errors import BuildError

LOG_NAME = "build.jsonl"
_APART = 2e-3
"""What ends within so many seconds after the next event's begin does not overlap with it: clocks differ."""


class BuildLog:
    """Writes events to a file, once it is open. Any thread may add one. A file that cannot be written costs no build.

    Events of a track that overlap get rows of their own, which viewers show as threads.
    """

    def __init__(self) -> None:
        self._file: IO[str] | None = None
        self._lock = threading.Lock()
        self._rows: dict[str, list[tuple[int, float]]] = {}
        self._since = time.time()

    def open(self, path: Path) -> None:
        """Write to a file from now on, unless one is open."""
        with contextlib.suppress(OSError):
            if self._file is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("w", encoding="utf-8")

    def add(self, track: str, kind: str, name: str, seconds: float = 0.0, **facts: object) -> None:
        """Add what has ended now and took so many seconds; 0 for what only happened."""
        if self._file is None:
            return
        with self._lock:
            began = time.time() - seconds
            event = {"name": name, "cat": kind, "ph": "X", "ts": round(began * 1e6), "dur": round(seconds * 1e6)}
            self._write(event, self._row(track, began, began + seconds), facts)

    def close(self) -> None:
        """Add the whole build and close the file."""
        self.add("build", "build", "build", time.time() - self._since)
        with self._lock, contextlib.suppress(OSError):
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def _row(self, track: str, began: float, ended: float) -> int:
        rows = self._rows.setdefault(track, [])
        nests = track == "build"  # a stage is within the build, and is told before it
        for place, (row, last) in enumerate(rows):
            if nests or last <= began + _APART:
                rows[place] = row, ended
                return row
        row = sum(map(len, self._rows.values())) + 1
        rows.append((row, ended))
        name = track if len(rows) == 1 else f"{track} {len(rows)}"
        self._write({"name": "thread_name", "ph": "M"}, row, {"name": name})
        return row

    def _write(self, event: dict[str, object], row: int, facts: dict[str, Any]) -> None:
        if self._file is not None:
            line = json.dumps({**event, "pid": os.getpid(), "tid": row, "args": facts})
            with contextlib.suppress(OSError, ValueError):
                self._file.write(f"{line}\n")
                self._file.flush()


def trace_of(path: Path) -> str:
    """A log as Chrome and Perfetto open it, without lines that are torn. Raises BuildError when it is none."""
    fix = "name the folder of a build, or a file of AOT_TUNE_PROFILE; builds by pip keep their log below AOT_TUNE_KEEP"
    try:
        events = list(filter(_is_event, path.read_text(encoding="utf-8").split("\n")))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BuildError(f"{path} cannot be read", why=why, fix=fix) from error
    if not events:
        raise BuildError(f"{path} has no events", fix=fix)
    return '{"traceEvents": [\n' + ",\n".join(events) + "\n]}\n"


def _is_event(line: str) -> bool:
    try:
        event = json.loads(line)
    except ValueError:
        return False
    return isinstance(event, dict) and "ph" in event
