"""docs/workloads.md: its lines can be read, its commands exist, and its tables name what is known."""

from __future__ import annotations

import re
import shlex

import pytest
from places import ROOT

from aot_tune.cli.main import command_line, main

TEXT = (ROOT / "docs" / "workloads.md").read_text()
COMMANDS = re.findall(r"aot-tune workload [^`\n]+\.[^`\n]+", TEXT)


def test_its_commands_are_understood_and_are_all_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        command_line().parse_args(shlex.split(command)[1:])
    with pytest.raises(SystemExit):
        main(["workload", "--help"])
    listed = set(re.findall(r"^    ([a-z-]+)(?: {2,}\S|$)", capsys.readouterr().out, re.MULTILINE))
    assert listed == {shlex.split(command)[2] for command in COMMANDS}
