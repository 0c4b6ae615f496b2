"""The build backend: scikit-build-core's, plus what the targets of a build need and nothing that they do not.

It runs before anything but scikit-build-core is installed, so it imports only that and the standard library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as _backend

from aot_tune.plan.requirements import build_requirements

_Settings = dict[str, Any] | None

build_sdist = _backend.build_sdist
get_requires_for_build_sdist = _backend.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = _backend.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _backend.prepare_metadata_for_build_editable


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """What scikit-build-core asks for; for GPUs also a compiler, templates and torch where the machine lacks them."""
    return _requires(_backend.get_requires_for_build_wheel(config_settings), config_settings, editable=False)


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:
    """As for a wheel, but an editable install measures only when it is told to."""
    return _requires(_backend.get_requires_for_build_editable(config_settings), config_settings, editable=True)


def _requires(basic: list[str], settings: _Settings, *, editable: bool) -> list[str]:
    return [*basic, *build_requirements(settings, os.environ, Path.cwd(), editable=editable)]


def _pass_import_path_on() -> None:
    """Tell CMake's Python steps where the build requirements are: under isolation only this process knows.

    A front end's own start-up hook stays behind: it expects a path that nobody has extended yet. So does DESTDIR: with
    it, CMake would install a wheel's files elsewhere, and leave the wheel empty.
    """
    os.environ.pop("DESTDIR", None)
    paths = [p for p in sys.path if p and not os.path.exists(os.path.join(p, "sitecustomize.py"))]  # noqa: PTH110, PTH118
    os.environ["AOT_TUNE_IMPORT_PATH"] = os.pathsep.join(paths)


def _kept_symbols(settings: _Settings) -> _Settings:
    """The settings, so that what debuggers read is not stripped from a wheel with AOT_TUNE_DEBUG."""
    given = (settings or {}).get("cmake.define.AOT_TUNE_DEBUG") or os.environ.get("AOT_TUNE_DEBUG")
    return {**(settings or {}), "install.strip": "false"} if given == "1" else settings


def build_wheel(wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None) -> str:
    """Build a wheel; tunes, replays or neither, as AOT_TUNE_MODE says."""
    _pass_import_path_on()
    return _backend.build_wheel(wheel_directory, _kept_symbols(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel; it never measures unless AOT_TUNE_MODE asks for it."""
    _pass_import_path_on()
    return _backend.build_editable(wheel_directory, config_settings, metadata_directory)
