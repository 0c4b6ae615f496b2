"""docs/tracing.md shows lines that are those of a trace."""

from __future__ import annotations

import json
import re

from places import ROOT
from traces import Trace

TEXT = (ROOT / "docs" / "tracing.md").read_text()


def test_the_lines_that_it_shows() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    shown = Trace([json.loads(line) for line in block.splitlines()])
    assert [calls for calls, _ in shown.calls().values()] == [12, 7]
    assert (len(shown.headers), shown.others) == (1, 105)
