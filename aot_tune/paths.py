"""Where the installed package keeps what C++ and CMake users need, and what its build reported."""

from __future__ import annotations

from pathlib import Path

from aot_tune.errors import BuildError

__all__ = ["cmake_dir", "include_dir", "installed_report"]

_PACKAGE = Path(__file__).resolve().parent


def _installed(relative: str) -> Path:
    """A path of the installed package; in an editable install, CMake's files are in site-packages."""
    roots = [_PACKAGE, *(Path(p) / "aot_tune" for p in _site_packages())]
    for root in roots:
        if (root / relative).exists():
            return root / relative
    raise BuildError(
        f"{relative} is not below {_PACKAGE}",
        why="this is a source tree, not an installed package",
        fix="install it with `pip install .`",
    )


def _site_packages() -> list[str]:
    import sysconfig

    return [sysconfig.get_paths()["platlib"], sysconfig.get_paths()["purelib"]]


def cmake_dir() -> Path:
    """The folder of aot_tuneConfig.cmake."""
    return _installed("share/cmake/aot_tune")


def include_dir() -> Path:
    """The folder to put on a C compiler's include path."""
    return _installed("include")


def installed_report() -> Path:
    """The report of the build that made the installed operators."""
    return _installed("share/aot_tune/ops/report.json")
