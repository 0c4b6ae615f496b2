"""Reads a report that a build left."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aot_tune.report.report_records import SCHEMA, Report
from aot_tune.support.errors import BuildError

__all__ = ["read_report"]


class _Version(msgspec.Struct):
    """Only the version, which is read first. Reports before version 2 have none."""

    schema: int = 1


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        BuildError: when the file is missing, is not a report, or is a report of another version.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BuildError(f"{path} cannot be read", why=str(error), fix="name the report.json of a build") from error
    try:
        found = msgspec.json.decode(text, type=_Version).schema
        if found != SCHEMA:
            raise BuildError(
                f"{path} is a report of another version",
                why=f"it has version {found}, this aot_tune reads version {SCHEMA}",
                fix="read it with the aot_tune that built the library, or "
                + ("update this one" if found > SCHEMA else "build the library again"),
            )
        return msgspec.json.decode(text, type=Report)
    except msgspec.DecodeError as error:
        raise BuildError(f"{path} is not a report", why=str(error), fix="name the report.json of a build") from error
