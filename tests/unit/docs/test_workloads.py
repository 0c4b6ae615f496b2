"""docs/workloads.md: its lines can be read, its commands exist, and its tables name what is known."""

from __future__ import annotations

import re
import shlex

import pytest
from bundled import OPERATORS
from places import ROOT

from aot_tune.cli.main import command_line, main
from aot_tune.workloads.from_tunableop import map_tunableop
from aot_tune.workloads.known_problems import known
from aot_tune.workloads.mapped_calls import MappedCalls
from aot_tune.workloads.workload_records import decode_workload

TEXT = (ROOT / "docs" / "workloads.md").read_text()
COMMANDS = re.findall(r"aot-tune workload [^`\n]+\.[^`\n]+", TEXT)


def test_its_lines_are_read_and_that_of_tunableop_is_the_problem_that_it_says() -> None:
    operators = dict(OPERATORS)
    for lines in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL):
        found = known(decode_workload(lines.encode(), "docs"), operators)
        assert len(found) == lines.count('"operator"') > 0
    line, stated = re.findall(r"`(tn_\S+)` is `([^`]+)`", TEXT)[0]
    calls = MappedCalls(operators)
    map_tunableop(f"GemmTunableOp_float_TN,{line}\n", "docs", calls)
    assert [one.problem.id for one in calls.problems] == [f"{stated} b:10"]


def test_its_commands_are_understood_and_are_all_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        command_line().parse_args(shlex.split(command)[1:])
    with pytest.raises(SystemExit):
        main(["workload", "--help"])
    listed = set(re.findall(r"^    ([a-z-]+)(?: {2,}\S|$)", capsys.readouterr().out, re.MULTILINE))
    assert listed == {shlex.split(command)[2] for command in COMMANDS}
