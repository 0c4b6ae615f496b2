"""An author's options as a compiler takes them. Folders are passed as links, so that no path gets into an object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from aot_tune.spec import CompileOptions

__all__ = ["library_file", "link_words", "option_flags", "option_key", "real_include"]

_LINK = re.compile(r"(?:\./)?include-(\d+)/(.*)", re.DOTALL)


def option_flags(options: CompileOptions, folder: Path) -> list[str]:
    """Flags of options for a compiler that runs in `folder`. The folder gets links to the include folders."""
    flags = []
    for number, include in enumerate(options.include_directories):
        link = folder / f"include-{number}"
        if not link.is_symlink():
            link.symlink_to(include)
        flags.append(f"-Iinclude-{number}")
    return [*flags, *(f"-D{one}" for one in options.defined()), *options.options]


def option_key(options: CompileOptions) -> dict[str, object]:
    """The part of a cache's key for options. It has the places of folders, because each has its own headers."""
    return {**options.plain(), "include_directories": [str(d) for d in options.include_directories]}


def real_include(name: str, options: CompileOptions) -> str:
    """The path of a header that was included through a link."""
    match = _LINK.fullmatch(name)
    if match is None or int(match[1]) >= len(options.include_directories):
        return name
    return str(Path(options.include_directories[int(match[1])], match[2]))


def library_file(name: str, folders: Sequence[str]) -> str | None:
    """The file of a library in folders: shared if there is one, perhaps with a version in its name, or else static."""
    for folder in folders:
        exact = [Path(folder, f"lib{name}.so"), Path(folder, f"lib{name}.a")]
        versions = sorted(Path(folder).glob(f"lib{name}.so.*"), key=lambda p: len(p.name))
        found = next((p for p in (exact[0], *versions, exact[1]) if p.is_file()), None)
        if found is not None:
            return str(found)
    return None


def link_words(libraries: Sequence[str]) -> list[str]:
    """Files of libraries as a linker takes them for the benchmark.

    Shared ones are found again when the result is loaded.
    """
    words = list(libraries)
    folders = dict.fromkeys(str(Path(lib).parent) for lib in libraries if ".so" in Path(lib).name)
    return [*words, *(f"-Wl,-rpath,{folder}" for folder in folders)]
