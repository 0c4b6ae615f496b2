"""C++ around kernels that is the same in all libraries: it is compiled once, and kept in the cache as static libraries.

CMake compiles what `fetch_glue` does not have. `keep_glue` puts that into the cache, once the library was checked.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from aot_tune.support.digests import canonical_digest, digest_of_files
from aot_tune.support.errors import CacheError
from aot_tune.support.installed_paths import PACKAGE
from aot_tune.support.storage import (
    TEMPORARIES,
    CacheLocation,
    CorruptError,
    checked_folder,
    private_folder,
    read_own,
    replace_file,
    write_changed,
)

GLUE = ("runtime", "launchers", "binding", "xla")
"""The static libraries. CMake names their targets and files by this."""
_KEPT, _MOST = "glue", 40
"""The folder below a cache's root, and how many files it holds at most."""
_UNREADABLE = (OSError, CacheError, CorruptError)


def fetch_glue(
    directory: Path, location: CacheLocation, compiled_as: str, settings: Iterable[str], xla: str = ""
) -> dict[str, Path]:
    """Take static libraries from the cache, below the folder of a plan. Returns their files, by kind.

    What was compiled in this build folder already stays a part of it.

    Args:
        directory: of the plan.
        location: of the cache.
        compiled_as: compiler and flags, as CMake has them; empty if they cannot be told.
        settings: what else decides what is compiled.
        xla: the folder of XLA's headers.
    """
    folder, note = directory / _KEPT, directory / "glue.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        known = msgspec.json.decode(note.read_bytes(), type=dict[str, str])
    sources = digest_of_files(
        (str(p.relative_to(PACKAGE)), p)
        for part in ("runtime", "link")
        for p in (PACKAGE / part).rglob("*")
        if p.suffix in (".cpp", ".h", ".hpp")
    )
    decides = [sources, compiled_as, list(settings)]
    keys = {kind: canonical_digest([kind, xla * (kind == "xla"), *decides]) for kind in GLUE if compiled_as}
    write_changed(note, msgspec.json.encode(keys))
    fetched = {}
    for kind, key in keys.items():
        file = folder / key[:16] / f"lib{kind}.a"
        made_here = known.get(kind) == key and (folder / file.name).is_file()
        if not made_here and (data := _read(location, key)) is not None:
            write_changed(file, data)
            fetched[kind] = file
    return fetched


def keep_glue(directory: Path, location: CacheLocation) -> None:
    """Put what CMake has compiled into the cache. If that fails, the next build compiles it again."""
    keys: Mapping[str, str] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        keys = msgspec.json.decode((directory / "glue.json").read_bytes(), type=dict[str, str])
    made = {key: directory / _KEPT / f"lib{kind}.a" for kind, key in keys.items()}
    missing = {key: file for key, file in made.items() if file.is_file() and _read(location, key) is None}
    if not missing or location.root is None or location.mode not in ("rw", "fresh"):
        return
    with contextlib.suppress(*_UNREADABLE):
        root, writes = checked_folder(
            location.root, trusted=location.trusted, writable=True, required=False, tell=lambda _: None
        )
        for key, file in missing.items() if root is not None and writes else ():
            assert root is not None
            data = file.read_bytes()
            private_folder(root / _KEPT)
            replace_file(root / _KEPT / f"{key}-{hashlib.sha256(data).hexdigest()}", data, root / TEMPORARIES)
            for old in sorted((root / _KEPT).iterdir(), key=lambda p: -p.stat().st_mtime_ns)[_MOST:]:
                old.unlink(missing_ok=True)


def _read(location: CacheLocation, key: str) -> bytes | None:
    """A static library in the cache, if it is as it was written."""
    if location.root is None or location.mode == "fresh":
        return None
    for file in (location.root / _KEPT).glob(f"{key}-*"):
        with contextlib.suppress(*_UNREADABLE):
            data = read_own(file, trusted=location.trusted)
            if hashlib.sha256(data).hexdigest() == file.name.partition("-")[2]:
                return data
    return None
