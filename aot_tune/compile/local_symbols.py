"""Which symbols of a candidate's object others see: its own functions and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from aot_tune.compile.programs import QUERY_SECONDS, program_of
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import run

__all__ = ["FUNCTIONS", "binutils", "localize", "public_functions"]

FUNCTIONS = ("_launch", "_workspace", "_preload", "_note")
"""The endings of a candidate's function names. Everything else becomes local."""


def public_functions(path: Path) -> list[str]:
    """Global functions of an object whose names have these endings, sorted."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        symbols = table.iter_symbols() if isinstance(table, SymbolTableSection) else ()
        names = [
            s.name
            for s in symbols
            if s["st_info"]["bind"] == "STB_GLOBAL" and s["st_shndx"] != "SHN_UNDEF" and s.name.endswith(FUNCTIONS)
        ]
    return sorted(names)


def localize(
    made: Path, out: Path, functions: Sequence[str], programs: Mapping[str, str], environ: Mapping[str, str]
) -> str:
    """Copy an object with only `functions` global, so that templates in two candidates never meet.

    Template code is in section groups, and a linker keeps one group of each name. So the groups are dissolved first.
    Otherwise a linker would still merge the groups of two candidates that have the same name.

    Args:
        programs: paths of `ld` and `objcopy`.

    Returns:
        The output of the program that failed, or an empty text.
    """
    merged = made.with_name("merged.o")
    keep = [f"--keep-global-symbol={name}" for name in functions]
    for argv in (
        [programs["ld"], "-r", "--force-group-allocation", "--build-id=none", "-o", merged.name, made.name],
        [programs["objcopy"], "--strip-unneeded", *keep, merged.name, out.name],
    ):
        done = run(argv, folder=made.parent, environ=environ, timeout=QUERY_SECONDS)
        if done.code != 0 or done.timed_out:
            return f"{done.output}\nerror: {' '.join(argv)} fails: GNU binutils 2.30 or later are needed"
    return ""


@cache
def binutils(
    command: tuple[str, ...], environ: tuple[tuple[str, str], ...], _driver: tuple[object, ...]
) -> dict[str, str]:
    """Paths of GNU ld and objcopy, as the host compiler finds them."""
    found = {}
    for name, choices in (("ld", ("ld.bfd", "ld")), ("objcopy", ("objcopy",))):
        paths = (program_of(command, dict(environ), choice) for choice in choices)
        where = next((p for p in paths if p is not None), None)
        if where is None:
            raise ToolchainError(
                f"no {name} found",
                why="a build needs it to prepare objects for the link",
                fix="install GNU binutils",
            )
        found[name] = where
    return found
