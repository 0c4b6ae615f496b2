"""Headers that many compiles of one test run share, read by the compiler once."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path


def include(folder: Path, header: Path, flags: Sequence[str]) -> list[str]:
    """Options for g++ that include a header first, precompiled with the same flags; `folder` keeps it for others."""
    known = hashlib.sha256("\0".join([str(header), *flags]).encode()).hexdigest()[:16]
    stub = folder / f"precompiled-{known}" / header.name
    made = stub.with_name(f"{stub.name}.gch")
    if not made.exists():
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f'#include "{header}"\n')
        part = made.with_suffix(".part")
        subprocess.run(["g++", *flags, "-x", "c++-header", str(stub), "-o", str(part)], check=True)
        part.rename(made)
    return [*flags, "-include", str(stub)]
