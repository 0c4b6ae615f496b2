"""Finds the headers of XLA's FFI, for libraries that export handlers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from aot_tune.support.errors import BuildError

__all__ = ["xla_include_folder"]

_HEADER = "xla/ffi/api/c_api.h"
_NEWEST_USED = "XLA_FFI_DeviceOrdinal_Get"


def xla_include_folder(option: str) -> str:
    """The include folder for XLA's headers, by the option AOT_TUNE_XLA_FFI; empty if the option is empty.

    Args:
        option: empty, a folder, or 1 for the headers of the jaxlib in the build's Python.

    Raises:
        BuildError: when there are no headers, or they are too old.
    """
    if not option:
        return ""
    folder = _of_jax() if option == "1" else Path(option)
    if not (folder / _HEADER).is_file():
        raise BuildError(
            f"AOT_TUNE_XLA_FFI={option}: there is no {folder / _HEADER}",
            why="handlers of XLA's FFI are compiled against its header",
            fix="name the folder that jax.ffi.include_dir() returns, or 1 for the headers of the build's Python",
        )
    if _NEWEST_USED not in (folder / _HEADER).read_text(encoding="utf-8", errors="replace"):
        raise BuildError(
            f"AOT_TUNE_XLA_FFI={option}: {folder / _HEADER} is too old",
            why=f"it lacks {_NEWEST_USED}",
            fix="use the headers of a newer jaxlib",
        )
    return str(folder)


def _of_jax() -> Path:
    """The folder that jax.ffi.include_dir() returns. jax is not imported."""
    found = importlib.util.find_spec("jaxlib")
    if found is None or not found.submodule_search_locations:
        raise BuildError(
            "AOT_TUNE_XLA_FFI=1: the Python of the build has no jaxlib",
            why="handlers of XLA's FFI are compiled against its headers",
            fix="install jaxlib for that Python, with --no-build-isolation or among the build's requirements, or name "
            "the folder that jax.ffi.include_dir() returns",
        )
    return Path(next(iter(found.submodule_search_locations))) / "include"
