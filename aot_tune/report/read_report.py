"""A report as a build left it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aot_tune.report.report_records import Report
from aot_tune.support.errors import BuildError

__all__ = ["read_report"]


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        BuildError: when the file is missing or not a report of this version.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise BuildError(f"{path} cannot be read", why=str(error), fix="name the report.json of a build") from error
    except msgspec.DecodeError as error:
        raise BuildError(
            f"{path} is not a report of this version", why=str(error), fix="build the library again"
        ) from error
