"""The pages: code that they show is that of the examples, their links lead somewhere, they are not too long."""

from __future__ import annotations

import re
from pathlib import Path

from places import ROOT

DOCS = ROOT / "docs"
WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *(p for p in sorted(DOCS.rglob("*.md")) if "reference" not in p.parts),
]
LONGEST, LIMITS = 12_000, {"README.md": 9_000, "CONTRIBUTING.md": 6_000}
"""Bytes of a page: what is longer is read by nobody, and is split by topic."""
REFERENCE = [DOCS / "reference" / f"{name}.md" for name in ("options", "commands", "cmake")]
"""What is generated and kept. A build of the site writes other files beside them."""
SHOWN = [
    (page, path, code)
    for page in WRITTEN
    for path, code in re.findall(r"<!-- (examples/\S+) -->\n```\w+\n(.*?)```", page.read_text(), re.DOTALL)
]
"""A page, and what it shows of which file: `<!-- examples/... -->` stands in front of the code."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Those that a renderer makes of the headings."""
    heads = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_code_is_that_of_the_examples() -> None:
    assert {page.name for page, _, _ in SHOWN} >= {"change-a-kernel.md", "triton-kernel.md", "cuda-kernel.md"}
    for page, path, code in SHOWN:
        assert code.strip("\n") in (ROOT / path).read_text(), f"{name(page)} shows other code than {path} has"


def test_no_page_is_too_long() -> None:
    long = [name(page) for page in WRITTEN if page.stat().st_size > LIMITS.get(name(page), LONGEST)]
    assert not long, "split it by topic; a reader looks for one thing"


def test_links_lead_somewhere() -> None:
    for page in (*WRITTEN, *REFERENCE):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith(("http://", "https://")):
                continue
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            assert other.exists(), f"{name(page)}: {target} is not there"
            assert not anchor or anchor in anchors(other), f"{name(page)}: {target}: no such heading"


def test_every_page_is_linked_from_the_readme_or_an_index() -> None:
    indices = [ROOT / "README.md", *DOCS.rglob("README.md")]
    linked = {(i.parent / t).resolve() for i in indices for t in re.findall(r"\]\(([^)#\s]+\.md)", i.read_text())}
    assert {*WRITTEN, *REFERENCE} - {ROOT / "README.md", *(ROOT / "benchmarks").glob("*.md")} <= {
        *linked,
        DOCS / "index.md",
    }


def test_scripts_that_pages_name_are_there() -> None:
    folder = ROOT / "benchmarks"
    named = {
        n for page in [*WRITTEN, folder / "card.sh"] for n in re.findall(r"benchmarks/([\w./-]+\w)", page.read_text())
    }
    named |= {n for page in folder.glob("*.md") for n in re.findall(r"`(\w+\.(?:py|cpp|sh))`", page.read_text())}
    assert {"cpu.py", "cuda.py", "worker.py"} <= named
    assert not [n for n in named if not (folder / n).exists()]
