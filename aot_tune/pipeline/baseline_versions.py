"""Versions of the packages whose functions take part in races as baselines."""

from __future__ import annotations

import functools
import importlib.metadata

from aot_tune.pipeline.loaded_operators import LoadedOperator

__all__ = ["baseline_versions"]


def baseline_versions(loaded: LoadedOperator) -> dict[str, str]:
    """Version of each baseline's package, by baseline name. A package that is not installed is left out."""
    versions = {b.name: _version(b.requires) for b in loaded.operator.baselines}
    return {name: version for name, version in versions.items() if version is not None}


@functools.cache
def _version(package: str) -> str | None:
    """A package's version, None if it is not installed. To find it, a file must be read."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
