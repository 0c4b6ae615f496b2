"""What people read."""

from __future__ import annotations

from aot_tune.report.compiled_kernels import (
    CompiledKernel,
    FailureKind,
    Interpreted,
    compiled_lines,
    compiled_summary,
)
from aot_tune.report.report_records import (
    NOT_TRIED,
    SCHEMA,
    CandidateRow,
    DispatchMap,
    DroppedCandidate,
    MemoryPeak,
    OperatorReport,
    ProblemRow,
    RaceRunner,
    RegretCurve,
    Report,
    SpentOf,
    SurveyPoint,
    SurveyRow,
    TimeSpent,
    VariantRow,
    read_report,
)
from aot_tune.report.report_text import (
    columns,
    format_report,
    format_resources,
    format_time,
    in_reading_order,
    policy_lines,
)

__all__ = [
    "NOT_TRIED",
    "SCHEMA",
    "CandidateRow",
    "CompiledKernel",
    "DispatchMap",
    "DroppedCandidate",
    "FailureKind",
    "Interpreted",
    "MemoryPeak",
    "OperatorReport",
    "ProblemRow",
    "RaceRunner",
    "RegretCurve",
    "Report",
    "SpentOf",
    "SurveyPoint",
    "SurveyRow",
    "TimeSpent",
    "VariantRow",
    "columns",
    "compiled_lines",
    "compiled_summary",
    "format_report",
    "format_resources",
    "format_time",
    "in_reading_order",
    "policy_lines",
    "read_report",
]
