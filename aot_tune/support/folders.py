"""Whole folders: digests of them, and replacing one by another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from aot_tune.support.digests import digest_of_files
from aot_tune.support.storage import discard

__all__ = ["folder_digest", "put_folder"]


def folder_digest(folder: Path, suffixes: tuple[str, ...] = ()) -> str:
    """Digest of the names and contents of all files below a folder, as they are now. Links are followed.

    If suffixes are given, only these files count. Files that Python compiled do not count. Empty if there is no folder.


    Raises:
        OSError: when a file cannot be read.
    """
    named = [(n, p) for n, p in _files(folder) if p is None or not suffixes or p.suffix in suffixes]
    return digest_of_files(named) if named else ""


def _files(folder: Path) -> Iterator[tuple[str, Path | None]]:
    """Names and paths of the files below a folder.

    If links lead to the same folder twice, it is entered once. The second time, it counts as a name that says which it
    is.
    """
    seen: dict[str, str] = {}
    for here, folders, names in os.walk(folder, followlinks=True):
        real, below = os.path.realpath(here), os.path.relpath(here, folder)
        if real in seen:
            folders.clear()
            yield f"{below} -> {seen[real]}", None
            continue
        seen[real] = below
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in names:
            path = Path(here, name)
            if path.is_file():
                yield os.path.relpath(path, folder), path


def put_folder(fresh: Path, folder: Path, temporaries: Path) -> None:
    """Replace a folder by another in one step. If two builds do this at once, one of them wins completely."""
    for last in (False, False, True):
        with contextlib.suppress(FileNotFoundError):
            discard(folder, temporaries)
        try:
            fresh.rename(folder)
            return
        except OSError:
            if last:
                raise
