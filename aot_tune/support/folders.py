"""Whole folders: their digests, and putting one in another's place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from aot_tune.support.digests import digest_of_files
from aot_tune.support.storage import discard

__all__ = ["folder_digest", "put_folder"]


def folder_digest(folder: Path, suffixes: tuple[str, ...] = ()) -> str:
    """Digest of the names and contents of all files below a folder, as they are now; links are followed.

    Only those of some suffixes where any are given; what Python compiled is left out. Empty for no folder.

    Raises:
        OSError: when a file cannot be read.
    """
    named = [(n, p) for n, p in _files(folder) if p is None or not suffixes or p.suffix in suffixes]
    return digest_of_files(named) if named else ""


def _files(folder: Path) -> Iterator[tuple[str, Path | None]]:
    """Names and paths of the files below a folder.

    A folder that is there twice, by a link, is entered once; the other time it has a name that says which one it is.
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
    """Put a folder in another's place; of two builds at once, one wins whole."""
    for last in (False, False, True):
        with contextlib.suppress(FileNotFoundError):
            discard(folder, temporaries)
        try:
            fresh.rename(folder)
            return
        except OSError:
            if last:
                raise
