"""What a candidate can still do, and what is seen only by luck: each line of the tables in docs/sandbox.md.

These pass because something is *not* found. When one fails, the sandbox has become better: change the page with it.
"""

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
    """Values as calls have them, and how much workspace they have."""
    text = (bed.folder / "operator.py").read_text().replace("problem\n", "problem, uniform\n", 1)
    (tmp_path / "axpb").mkdir()
    (tmp_path / "axpb" / "operator.py").write_text(
        text.replace('Tensor("x", (R, D))', 'Tensor("x", (R, D), values=uniform(-2000.0, 2000.0))')
    )
    assert bed.on(tmp_path / "axpb").screen("small_values").status == "wrong-result"
    (tmp_path / "axpb" / "operator.py").write_text(text.replace("flops=", "workspace_max=3,\n    flops="))
    measured = bed.on(tmp_path / "axpb").screen("stale_workspace")
    assert (measured.status, "but only 3 are allowed" in measured.reason) == ("skipped", True), measured.reason


TOLD = (
    ("y = 2 * call.x + 1", "y = xp.clip(2 * call.x + 1, -1e-9, 1e-9) + 1", "a constant is right for nearly all of 'y'"),
    ('Tensor("x", (R, D))', 'Tensor("x", (R, D), "i32", values=integers(3, 4))', "all elements of 'x' are equal, and"),
    ('Tensor("x", (R, D))', 'Tensor("x", (R, D), values=sparse(0.001))', "a constant is right for nearly all of 'y'"),
    ("", "", ""),
)
"""What is changed of the operator, and what its author must be told."""


def test_an_author_is_told_of_values_that_cannot_tell_a_wrong_kernel(bed: Bed, tmp_path: Path) -> None:
    """Once, and not of odd problems, where an extent of 1 or a broadcast input may be to blame."""
    for number, (before, after, told) in enumerate(TOLD):
        text = (bed.folder / "operator.py").read_text().replace("problem\n", "problem, integers, sparse\n", 1)
        folder = tmp_path / str(number) / "axpb"
        folder.mkdir(parents=True)
        (folder / "operator.py").write_text(text.replace(before, after))
        bed.lines.clear()
        other = bed.on(folder)
        for rows in (16, 32):
            other.prepare(R=rows, D=256)
        if not told:
            other.screen("good")
        lines = [line for line in bed.lines if "a wrong kernel may pass" in line]
        assert len(lines) == bool(told), lines
        assert all(line.startswith(f"axpb R=16 D=256: {told}") for line in lines), lines
