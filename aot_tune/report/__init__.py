"""What people read."""

from __future__ import annotations

from aot_tune.report.report_records import read_report

__all__ = ["read_report"]
