"""What a candidate can still do, and what is seen only by luck: each line of the tables in docs/sandbox.md.

These pass because something is *not* found. When one fails, the sandbox has become better: change the page with it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compiled import Bed
from environments import ROOT

pytestmark = pytest.mark.slow

CAN = ("reads_outside", "sends_datagram", "uses_openmp", "deceives")
LUCK = ("small_values", "many_calls", "large_sizes", "at_home")


def rows(heading: str) -> list[str]:
    """What the table below a heading of the page names as the candidate that shows a line."""
    page = (ROOT / "docs" / "sandbox.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"\| `(\w+)` \|$", section, re.MULTILINE)


def test_what_a_candidate_can_still_do_ends_with_its_worker(bed: Bed) -> None:
    """The last one spoils who judges it, so who comes after it in the same worker is judged by that as well."""
    assert rows("What a candidate can still do") == [*CAN]
    for name in (*CAN, "one_wrong"):
        measured = bed.screen(name)
        assert measured.status == "ok", (name, measured.reason)
    bed.bench.pool.workers()[0].kill()
    assert bed.screen("one_wrong").status == "wrong-result"


def test_what_is_seen_only_by_luck(bed: Bed) -> None:
    assert rows("What is seen only by luck") == [*LUCK]
    for name in LUCK:
        measured = bed.screen(name)
        assert measured.status == "ok", (name, measured.reason)
    assert bed.screen("large_sizes", bed.prepare(R=100_001, D=2), tune_checks=False).status == "wrong-result"


def test_what_an_author_declares_is_seen(bed: Bed, tmp_path: Path) -> None:
    """Values as calls have them."""
    text = (bed.folder / "operator.py").read_text().replace("problem\n", "problem, uniform\n", 1)
    (tmp_path / "axpb").mkdir()
    (tmp_path / "axpb" / "operator.py").write_text(
        text.replace('Tensor("x", (R, D))', 'Tensor("x", (R, D), values=uniform(-2000.0, 2000.0))')
    )
    assert bed.on(tmp_path / "axpb").screen("small_values").status == "wrong-result"
