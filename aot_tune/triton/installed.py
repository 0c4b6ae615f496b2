"""The installed Triton: where it is, and whether its version was tested. Nothing here imports it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aot_tune.support.errors import ToolchainError

__all__ = ["Installed", "check_version", "find_triton"]

FIRST, LAST = (3, 6), (3, 9)
_VERSION = re.compile(r"^__version__ *= *['\"]([^'\"]+)['\"]", re.MULTILINE)


class Installed(msgspec.Struct, frozen=True):
    """The package's folder and version."""

    folder: Path
    version: str


def check_version(version: str) -> None:
    """Accept only versions whose private interface is known.

    Raises:
        ToolchainError: for any other version, with what to install.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or not FIRST <= (int(match[1]), int(match[2])) <= LAST:
        tested = f"{FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}"
        raise ToolchainError(
            f"Triton {version} is installed, tested are {tested}",
            why="kernels are compiled through parts of Triton that change between versions",
            fix=f"`pip install 'triton>={FIRST[0]}.{FIRST[1]},<{LAST[0]}.{LAST[1] + 1}'`",
        )


def find_triton(search: Sequence[str] | None = None) -> Installed:
    """The package that `import triton` would find in `search`; the default is where this process imports from.

    Raises:
        ToolchainError: when there is none, or its version was not tested.
    """
    for entry in sys.path if search is None else search:
        start = Path(entry or ".", "triton", "__init__.py")
        if start.is_file():
            match = _VERSION.search(start.read_text(errors="replace"))
            check_version(match[1] if match else "of an unknown version")
            return Installed(start.parent.resolve(), match[1] if match else "")
    raise ToolchainError(
        "Triton is not installed",
        why="kernels of backend 'triton' are compiled when the library is built",
        fix=f"`pip install 'triton>={FIRST[0]}.{FIRST[1]},<{LAST[0]}.{LAST[1] + 1}'`, or name it among the build "
        "requirements",
    )
