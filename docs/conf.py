"""The site of the documents: `sphinx-build -W docs build/site`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from aot_tune import __version__

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT / "docs"))

import generate_reference  # noqa: E402

project = "aot_tune"
version = release = __version__
copyright = "the authors of aot_tune; Apache-2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 4
exclude_patterns = ["site"]
html_theme = "furo"
html_title = f"aot_tune {__version__}"
html_theme_options = {"top_of_page_buttons": []}
html_show_sphinx = False


def _first_page() -> str:
    """The README as from this folder, and the sections of the list of all pages as the site's contents."""
    readme = re.sub(r"\]\((?!docs/|https?:)", "](../", (_ROOT / "README.md").read_text()).replace("](docs/", "](")
    contents = ["All pages\n:maxdepth: 1\n\nREADME"]
    for section in re.split(r"^## ", (_ROOT / "docs" / "README.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        pages = re.findall(r"\]\(((?!\.\./|reference/)\S+)\.md\)", text)
        contents.append("\n".join((title, ":maxdepth: 1", ":glob:", "", *(pages or ["reference/*"]))))
    return readme + "".join(f"\n```{{toctree}}\n:hidden:\n:caption: {each}\n```\n" for each in contents)


def _within_the_site(_: Any, docname: str, source: list[str]) -> None:
    """Links to files outside of the site become plain text: in the repository they lead to the files."""
    folder = (_ROOT / "docs" / docname).parent
    if docname == "index":
        source[0] = _first_page()

    def link(match: re.Match[str]) -> str:
        path = match[2].partition("#")[0]
        inside = (folder / path).resolve().is_relative_to(_ROOT / "docs") if path and ":" not in path else True
        return match[0] if inside else match[1]

    source[0] = re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    generate_reference.write(generate_reference.pages())
    app.connect("source-read", _within_the_site)
