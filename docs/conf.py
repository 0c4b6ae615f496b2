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


def _within_the_site(_: Any, docname: str, source: list[str]) -> None:
    """Links to files outside of the site become plain text: in the repository they lead to the files."""
    folder = (_ROOT / "docs" / docname).parent

    def link(match: re.Match[str]) -> str:
        path = match[2].partition("#")[0]
        inside = (folder / path).resolve().is_relative_to(_ROOT / "docs") if path and ":" not in path else True
        return match[0] if inside else match[1]

    source[0] = re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    generate_reference.write(generate_reference.pages())
    app.connect("source-read", _within_the_site)
