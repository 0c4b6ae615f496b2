"""What a candidate can still do, and what is seen only by luck: each line of the tables in docs/sandbox.md.

These pass because something is *not* found. When one fails, the sandbox has become better: change the page with it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from environments import ROOT

pytestmark = pytest.mark.slow

CAN = ("reads_outside", "sends_datagram", "uses_openmp", "daemon", "deceives")
LUCK = ("small_values", "many_calls", "large_sizes", "at_home")
PAGE = ROOT / "docs" / "sandbox.md"


def rows(heading: str) -> list[str]:
    """What the table below a heading of the page names as the candidate that shows a line."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"\| `(\w+)` \|$", section, re.MULTILINE)


def test_each_line_of_the_page_is_a_test() -> None:
    assert rows("What a candidate can still do") == [*CAN]
    assert rows("What is seen only by luck") == [*LUCK]


def test_what_a_candidate_can_still_do(own_bed: Any) -> None:
    for name in CAN:
        measured = own_bed.screen(name)
        assert measured.status == "ok", (name, measured.reason)


def test_what_a_candidate_changed_of_its_worker_ends_with_it(own_bed: Any) -> None:
    """It spoils who judges it, so who comes after it in the same worker is judged by that as well."""
    bed = own_bed
    assert bed.screen("deceives").status == "ok"
    assert bed.screen("one_wrong").status == "ok"
    bed.bench.pool.workers()[0].kill()
    assert bed.screen("one_wrong").status == "wrong-result"


def test_what_is_seen_only_by_luck(bed: Any) -> None:
    for name in LUCK:
        measured = bed.screen(name)
        assert measured.status == "ok", (name, measured.reason)


def test_what_an_author_declares_is_seen(bed: Any, operator_folder: Path, make_bench: Any, make_bed: Any) -> None:
    """Values as calls have them, and a problem of the size that calls have."""
    path = operator_folder / "operator.py"
    text = path.read_text()
    assert bed.screen("large_sizes", bed.prepare(R=100_001, D=2), tune_checks=False).status == "wrong-result"
    path.write_text(
        text.replace("problem\n", "problem, uniform\n", 1).replace(
            'Tensor("x", (R, D))', 'Tensor("x", (R, D), values=uniform(-2000.0, 2000.0))'
        )
    )
    with make_bench() as bench:
        assert make_bed(bench).screen("small_values").status == "wrong-result"
