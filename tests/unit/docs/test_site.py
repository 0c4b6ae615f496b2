"""The documents as a site: Sphinx builds it without a warning, so each page is in it, and links lead somewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from places import ROOT


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        tmp_path / "trees",
        ROOT / "docs",
        tmp_path / "site",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "How a build works" in (tmp_path / "site" / "concepts" / "README.html").read_text()
