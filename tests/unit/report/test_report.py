"""The report as text, compared whole, and the progress lines."""

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from places import GOLDEN as ALL_GOLDEN
from places import ROOT
from whole_report import REPORT, row

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Measurement, Policy
from aot_tune.pipeline.shipping.story import paired_ratio
from aot_tune.report import read_report
from aot_tune.report.report_records import RegretCurve, SurveyRow
from aot_tune.report.report_text import format_report, policy_lines, slower_line
from aot_tune.report.verdict import told_together, verdict_lines
from aot_tune.spec import problem
from aot_tune.support.errors import BuildError

GOLDEN = ALL_GOLDEN / "report.txt"


def test_candidates_are_listed_on_request_with_what_their_code_takes() -> None:
    assert "not compiled here" not in format_report(REPORT)
    told = format_report(REPORT, candidates=True).splitlines()
    head = next(i for i, line in enumerate(told) if line.lstrip().startswith("candidate "))
    assert told[head].split() == ["candidate", "config", "problems", "roofline", "on", "code"]
    code = "255 registers, 64 bytes spilled, 32 static + 64 dynamic bytes of shared memory"
    assert told[head + 1].split()[:4] == ["rows_1", "rows", "W=4", "4"]
    assert told[head + 1].endswith(f"71 %      M=16 N=64 T=f32  {code}")
    assert told[head + 2].split()[-4:] == ["-", "not", "compiled", "here"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": None}, ("version 1, this aot_tune reads version 2", "or build the library again")),
        ({"schema": 1}, ("version 1,", "or build the library again")),
        ({"schema": 99, "operators": 7}, ("version 99,", "or update this one")),
    ],
)
def test_a_report_of_another_version_says_what_to_do(
    tmp_path: Path, change: dict[str, Any], said: tuple[str, str]
) -> None:
    fields = {**msgspec.to_builtins(REPORT), **change}
    (tmp_path / "report.json").write_bytes(msgspec.json.encode({k: v for k, v in fields.items() if v is not None}))
    with pytest.raises(BuildError, match=r"report\.json is a report of another version") as caught:
        read_report(tmp_path / "report.json")
    assert said[0] in caught.value.why
    assert said[1] in caught.value.fix


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 2}', '{"schema": "two"}'])
def test_what_is_no_report_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(BuildError, match=r"report\.json is not a report"):
        read_report(tmp_path / "report.json")


def test_regret_on_surveyed_shapes_is_told_with_where_it_is_worst() -> None:
    curves = (
        RegretCurve(kind="T=bf16", variants=("a", "b"), regret=(0.3, 0.021), served=(0.5, 1.0)),
        RegretCurve(kind="", variants=("c",), regret=(0.5,), served=(1.0,)),
    )
    survey = SurveyRow(shapes=40, learned_from=160, mean=0.021, p95=0.1, worst=0.5, where="M=3 N=5 K=7")
    one = msgspec.structs.replace(REPORT.operators[0], survey=survey, curves=curves)
    told = format_report(msgspec.structs.replace(REPORT, operators=(one,)))
    assert ", 2.1 % on 40 surveyed shapes left out of learning (95 % of them within 10.0 %; worst 50.0 % on" in told
    assert "'M=3 N=5 K=7')" in told
    assert "\n  mean regret with 1, 2, ... variants of T=bf16: 30.0, 2.1 %\n" in told
    assert "\n  mean regret with 1, 2, ... variants: 50.0 %\n" in told


@pytest.mark.parametrize(
    ("count", "not_judged", "said"),
    [
        (4, 0, ", unknown on other shapes (only 4 could be decided by others, 5 are needed)\n"),
        (7, 3, ", unknown on other shapes (only 4 could be decided by others, 5 are needed)\n"),
        (5, 0, ", 5.0 % if others decide each problem\n"),
        (7, 2, ", 5.0 % if others decide each problem (without 2 of 7: the choice was never timed there)\n"),
    ],
)
def test_regret_on_other_shapes_is_told_where_there_were_enough(count: int, not_judged: int, said: str) -> None:
    one = REPORT.operators[0]
    plain = msgspec.structs.replace(one.problems[1], paired=None, baselines={})
    given = {"problems": (plain,) * count, "not_held_out": not_judged, "held_out_regret": 0.05}
    changed = msgspec.structs.replace(one, **given, survey=None)
    assert said in format_report(msgspec.structs.replace(REPORT, operators=(changed,)))


def test_report_is_as_in_the_golden_file() -> None:
    text = format_report(REPORT)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "see the difference, then run with UPDATE_GOLDEN=1"


def test_weights_are_shown_where_they_differ() -> None:
    one = REPORT.operators[0]
    rows = [msgspec.structs.replace(row, weight=w) for row, w in zip(one.problems, (12.5, 1e6, 1.0), strict=False)]
    weighed = msgspec.structs.replace(one, problems=tuple(rows), weighted_regret=0.0123)
    lines = ("serving.jsonl: 3 problems",)
    said = format_report(msgspec.structs.replace(REPORT, operators=(weighed,), workload=lines)).splitlines()
    assert "workload  serving.jsonl: 3 problems" in said
    (head,) = (line for line in said if line.startswith("  problem"))
    assert head.split()[:3] == ["problem", "weight", "winner"]
    (row,) = (line for line in said if line.startswith(f"  {rows[0].problem}"))
    assert row[head.index("weight") :].split()[0] == "12.5"
    plain = f"{100 * one.mean_regret:.1f} %"
    assert any(f"regret of dispatch: 1.2 % in the mean by weight, {plain} without weights" in line for line in said)
    assert "weight" not in format_report(REPORT)


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ({"ok": 9}, "tried 9 (9 ok), kept 3"),
        ({"ok": 9, "crashed": 1, "not-tried": 2}, "tried 10 (1 crashed, 9 ok), 2 more not tried, kept 3"),
        ({"not-tried": 1}, "tried none of 1, kept 3"),
        ({}, "tried 0 (nothing), kept 3"),
    ],
)
def test_what_was_not_tried_is_not_counted_as_tried(statuses: dict[str, int], said: str) -> None:
    one = msgspec.structs.replace(REPORT.operators[0], tried=sum(statuses.values()), statuses=statuses)
    text = format_report(msgspec.structs.replace(REPORT, operators=(one,)))
    assert f"product on cuda-sm_90a: {said}\n" in text


def test_the_manual_quotes_the_policy_as_it_is_printed() -> None:
    words = policy_lines("cuda", family("cuda").policy(Policy()))
    printed = format_report(msgspec.structs.replace(REPORT, measuring=(words,))).replace(words[0][-12:], "...")
    text = (ROOT / "docs" / "measuring.md").read_text()
    quoted = text.split("```")[1].strip("\n").splitlines()
    assert quoted[-1].strip() == "..."
    assert "\n".join(quoted[:-1]) in printed
    on_gpu = (ROOT / "docs" / "measuring-gpu.md").read_text()
    gpu, numbers = family("cuda").policy(Policy()).on_gpu, set(re.findall(r"\d+", on_gpu))
    assert {str(gpu.short_calls), str(gpu.empty_calls), str(gpu.probe_cycles)} <= numbers


def test_a_changed_policy_reads_otherwise() -> None:
    base, words = family("cuda").policy(Policy()), policy_lines("cuda", family("cuda").policy(Policy()))[1:]
    of_all = {"cold_factor": 8.0, "copies": 7, "sample_ns": 123_000, "screen_stop": 1.25, "screen_samples": 9}
    of_all |= {"screen_ns": 5_000_000, "race_least": 6, "race_rounds": 33, "race_ns": 3_000_000_000}
    of_gpu = {"launch": "stream", "short_ns": 20_000, "short_calls": 20, "read_limit": 1.5, "idle_seconds": 2.0}
    of_gpu |= {"heat_seconds": 0.03, "heat_most": 0.5, "probe_cycles": 70_000, "clock_change": 0.1, "repeats": 0.5}
    of_gpu |= {"dropped": 8, "kept": 4, "least_clock": 0.7, "recovery_seconds": 2.0, "recoveries": 4, "loaded_ns": 0}
    changed = [msgspec.structs.replace(base, **{name: value}) for name, value in of_all.items()]
    for name, value in of_gpu.items():
        changed.append(msgspec.structs.replace(base, gpu=msgspec.structs.replace(base.on_gpu, **{name: value})))
    for other in changed:
        assert policy_lines("cuda", other)[1:] != words, other


def measured(candidate: str, *final: float, race: str = "r") -> Measurement:
    return Measurement(
        candidate=candidate, code="", problem=problem(M=1), device="d", policy="p", status="ok", final=final, race=race
    )


def test_an_operator_that_is_slower_than_the_baseline_is_told() -> None:
    base, one = REPORT.operators[0], row(1, "f32")
    slow, close = (
        msgspec.structs.replace(one, problem=name, ns=200.0, paired=None, baselines={"numpy": ns})
        for name, ns in (("N=1", 100.0), ("N=2", 198.0))
    )
    (said,) = slower_line(msgspec.structs.replace(base, problems=(slow, close)))
    assert said.endswith("on 1 of 2 problems; on N=1 numpy takes 0.50 of the winner's time")
    assert slower_line(msgspec.structs.replace(base, problems=(close,))) == []


def test_a_winner_is_compared_with_the_fastest_baseline_round_by_round() -> None:
    drifting = [100.0, 150.0, 120.0, 200.0, 110.0]
    winner = measured("w", *drifting)
    baselines = [measured("baseline:a", *(1.25 * t for t in drifting)), measured("baseline:b", *[400.0] * 5)]
    assert paired_ratio(winner, baselines) == pytest.approx((1.25, 0.0))
    noisy = measured("baseline:a", *(t * f for t, f in zip(drifting, (1.2, 1.25, 1.3, 1.25, 1.28), strict=True)))
    ratio, error = paired_ratio(winner, [noisy]) or (0.0, 0.0)
    assert ratio == pytest.approx(1.25)
    assert 0.005 < error < 0.05
    assert paired_ratio(winner, []) is None
    assert paired_ratio(measured("w", 0.0, 0.0), [measured("baseline:a", 1.0, 1.0)]) is None
    assert paired_ratio(measured("w", 1.0, 1.0), [measured("baseline:a", 0.0, 1.0)]) is None
    assert paired_ratio(winner, [measured("baseline:a", *drifting, race="other")]) is None


def test_a_verdict_has_a_few_lines_of_all_operators() -> None:
    said = verdict_lines(REPORT, {"product": ["torch"], "other": []})
    assert len(said) <= 5
    assert "product has no baseline: install torch to compare" in said
    assert "other has no baseline: declare `baselines` to compare" in said
    assert any(line.startswith("dropped candidates: product 1 of ") for line in said), said
    assert told_together([("a", "x"), ("b", "y"), ("c", "x"), ("d", "x"), ("e", "x")]) == [
        "a, c and 2 others: x",
        "b: y",
    ]
