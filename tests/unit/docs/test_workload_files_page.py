"""docs/workload-files.md shows lines that are right, all fields that there are, and a mistake as it is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bundled import OPERATORS
from places import ROOT

from aot_tune.plan.stated_workloads import ReadWorkload, read_workload
from aot_tune.support.errors import Mistakes, SpecError

TEXT = (ROOT / "docs" / "workload-files.md").read_text()
(LINES,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)


def read(path: Path, text: str) -> ReadWorkload:
    path.write_text(text)
    operators = {n: OPERATORS[n] for n in ("gemm", "softmax")}
    mistakes = Mistakes()
    found = read_workload([str(path)], ("ops", "aot_tune"), operators, (), {}, mistakes)
    mistakes.tell()
    return found


def test_the_lines_that_it_shows_are_right(tmp_path: Path) -> None:
    found = read(tmp_path / "serving.jsonl", LINES)
    stated = {n: [(p.problem.id, p.weight) for p in one.problems] for n, one in found.plan.operators.items()}
    assert stated == {
        "gemm": [
            ("M=16 N=4096 K=4096 b:10 T=bf16", 12.5),
            ("M=16 N=14336 K=4096 b:10 +bias activation=gelu T=bf16", 3.0),
        ],
        "softmax": [("R=512 D=4096 T=f16", 1.0)],
    }


def test_all_fields_are_in_its_table(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path / "w.jsonl", '{"nonsense": 1}')
    rows = "\n".join(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", TEXT, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", rows)) == set(caught.value.why.removeprefix("a line has ").split(", "))


def test_the_mistake_is_told_as_it_says(tmp_path: Path) -> None:
    (told,) = re.findall(r"```\naot-tune: /home/me/(.*?)\n  why: (.*?) \.\.\.\n  fix: (.*?)\n```", TEXT, re.DOTALL)
    with pytest.raises(SpecError) as caught:
        read(tmp_path / "serving.jsonl", LINES.replace("gelu", "glu"))
    error = caught.value
    assert error.what == f"{tmp_path}/{told[0]}"
    assert error.why.startswith(told[1])
    assert error.fix == told[2]
