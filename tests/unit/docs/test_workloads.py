"""docs/workloads.md: its lines can be read, its commands exist, and its tables name what is known."""

from __future__ import annotations

import re
import shlex

import pytest
from bundled import OPERATORS
from places import ROOT

from aot_tune.cli.main import main
from aot_tune.workloads.from_tunableop import map_tunableop
from aot_tune.workloads.known_problems import known
from aot_tune.workloads.mapped_calls import MappedCalls
from aot_tune.workloads.workload_records import decode_workload

TEXT = (ROOT / "docs" / "workloads.md").read_text()
COMMANDS = re.findall(r"aot-tune workload [^`\n]+\.[^`\n]+", TEXT)


@pytest.mark.parametrize("lines", re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
def test_its_lines_are_read(lines: str) -> None:
    found = known(decode_workload(lines.encode(), "docs"), OPERATORS)
    assert len(found) == lines.count('"operator"') > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They end for the lack of their files, not for their words."""
    assert main(shlex.split(command)[1:]) == 1
    assert re.search(r"cannot be read|is not a folder", capsys.readouterr().err)


def test_it_shows_each_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["workload", "--help"])
    listed = set(re.findall(r"^    ([a-z-]+)(?: {2,}\S|$)", capsys.readouterr().out, re.MULTILINE))
    assert listed == {shlex.split(command)[2] for command in COMMANDS}


def test_the_line_of_tunableop_is_the_problem_that_it_says() -> None:
    line, stated = re.findall(r"`(tn_\S+)` is `([^`]+)`", TEXT)[0]
    calls = MappedCalls(OPERATORS)
    map_tunableop(f"GemmTunableOp_float_TN,{line}\n", "docs", calls)
    assert [one.problem.id for one in calls.problems] == [f"{stated} b:10"]
