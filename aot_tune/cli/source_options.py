"""Options for how a library's sources are compiled: what CMake passes on, for commands that people type."""

from __future__ import annotations

import argparse
from pathlib import Path

from aot_tune.plan.compile_settings import CompileSettings

__all__ = ["add_source_options", "source_options"]

_OPTIONS = {
    "include-directory": ("DIR", "folder of headers, as INCLUDE_DIRECTORIES of aot_tune_add_library"),
    "definition": ("NAME[=VALUE]", "macro, as COMPILE_DEFINITIONS"),
    "compile-option": ("OPTION", "option of the compiler, as COMPILE_OPTIONS; write --compile-option=-O2"),
    "library": ("LIBRARY", "name or file, as LINK_LIBRARIES"),
}


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, each of which may be repeated."""
    for name, (shown, text) in _OPTIONS.items():
        parser.add_argument(f"--{name}", action="append", default=[], metavar=shown, help=f"{text}; may be repeated")


def source_options(given: argparse.Namespace) -> CompileSettings:
    """The values that were given."""
    return CompileSettings(
        include_directories=tuple(str(Path(folder).absolute()) for folder in given.include_directory),
        definitions=tuple(given.definition),
        options=tuple(given.compile_option),
        libraries=tuple(given.library),
    )
