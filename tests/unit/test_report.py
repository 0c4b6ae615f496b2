"""The report as text, compared whole, and the progress lines."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import msgspec
import pytest

from aot_tune.progress import Progress
from aot_tune.report import Failure, OperatorReport, ProblemRow, Report, VariantRow, format_report, format_time

GOLDEN = Path(__file__).parent / "golden" / "report.txt"

REPORT = Report(
    library="ops",
    mode="auto",
    targets=("cpu-x86-64-v3",),
    devices=("Some CPU",),
    toolchains={"cxx": "12.2.0"},
    policy="version 1, digest 0123456789ab",
    notes=("gemm: the budget ended before 1 of 3 problems were measured",),
    operators=(
        OperatorReport(
            operator="gemm",
            target="cpu-x86-64-v3",
            tried=12,
            statuses={"ok": 9, "compile-failed": 1, "crashed": 2},
            problems=(
                ProblemRow(
                    problem="M=1 N=4096 K=4096 b:10",
                    winner="skinny_0123abcd",
                    ns=1_250_000.0,
                    spread=0.021,
                    picked="skinny_0123abcd",
                    regret=0.0,
                    tie=False,
                    baselines={"numpy.matmul": 1_500_000.0, "torch.matmul": 1_400_000.0},
                    flops=2 * 4096 * 4096,
                    bytes=4 * (4096 + 4096 * 4096 + 4096),
                ),
                ProblemRow(
                    problem="M=64 N=768 K=768",
                    winner="packed_4567cdef",
                    ns=210_000.0,
                    spread=0.004,
                    picked="packed_89ab0123",
                    regret=0.013,
                    tie=True,
                    baselines={},
                    flops=2 * 64 * 768 * 768,
                    bytes=4 * (64 * 768 + 768 * 768 + 64 * 768),
                ),
            ),
            variants=(
                VariantRow(
                    name="skinny_0123abcd",
                    label="skinny MR=1",
                    target="cpu-x86-64-v3",
                    bytes=7886,
                    wins=1,
                    rebuilt=False,
                ),
                VariantRow(
                    name="packed_89ab0123",
                    label="packed MR=6",
                    target="cpu-x86-64-v3",
                    bytes=14904,
                    wins=1,
                    rebuilt=True,
                    varies=True,
                ),
                VariantRow(
                    name="generic_00000000", label="generic", target="cpu-x86-64", bytes=5051, wins=0, rebuilt=False
                ),
            ),
            failures=(
                Failure(
                    candidate="packed MR=14", status="compile-failed", reason="packed.cpp.j2:12: no such thing", count=1
                ),
                Failure(candidate="packed MR=8", status="crashed", reason="SIGSEGV in launch", count=3),
            ),
            mean_regret=0.0065,
            held_out_regret=0.05,
            not_held_out=1,
        ),
        OperatorReport(
            operator="softmax",
            target="cpu-x86-64",
            tried=0,
            statuses={},
            problems=(),
            variants=(),
            failures=(),
            mean_regret=0.0,
            held_out_regret=None,
        ),
    ),
)


def test_report_is_as_in_the_golden_file() -> None:
    text = format_report(REPORT)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "see the difference, then run with UPDATE_GOLDEN=1"


def test_report_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(REPORT), type=Report) == REPORT


def test_report_of_one_operator_and_few_failures() -> None:
    text = format_report(REPORT, operators=["gemm"], failures=1)
    assert "softmax" not in text
    assert "and 1 more dropped" in text


@pytest.mark.parametrize(
    ("ns", "text"), [(3.4, "3 ns"), (999.0, "999 ns"), (1500.0, "1.50 us"), (2.5e6, "2.50 ms"), (3e9, "3.00 s")]
)
def test_times_have_a_unit_that_fits(ns: float, text: str) -> None:
    assert format_time(ns) == text


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_tells_the_time_left_and_is_not_a_flood() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, clock)
    for done in range(1, 101):
        clock.now = done / 10
        progress.count("tried", done, 100, "best so far 1.00 ms")
    lines = out.getvalue().splitlines()
    assert len(lines) <= 12
    assert "aot_tune: tried 50 of 100, best so far 1.00 ms, about 5 s left" in lines or any("left" in x for x in lines)
    assert lines[-1] == "aot_tune: tried 100 of 100, best so far 1.00 ms, took 10 s"


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_output_does_not_end_the_build() -> None:
    Progress(Full()).line("text")
