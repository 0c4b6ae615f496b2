"""What people read."""

from __future__ import annotations

from aot_tune.report.code_resources import code_resources, format_resources
from aot_tune.report.compiled_kernels import (
    CompiledKernel,
    FailureKind,
    Interpreted,
    compiled_lines,
    compiled_summary,
)
from aot_tune.report.policy_words import policy_lines
from aot_tune.report.read_report import read_report
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
)
from aot_tune.report.report_words import format_time, in_reading_order
from aot_tune.report.table import columns, format_report

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
    "code_resources",
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
