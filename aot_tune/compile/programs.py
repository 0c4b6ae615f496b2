"""What toolchains share: digests of the programs that they run, and the files that a compiler says it read."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from aot_tune.compile.diagnostics import first_error
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import run

__all__ = ["NO_OBJECT", "ask", "is_object", "program_digest", "program_of", "program_state", "rule_files"]

QUERY_SECONDS = 60.0
NO_OBJECT = "error: the compiler ended without an error, but made no whole object"
"""Said of a compiler, or of a launcher before it, that hides its failure."""


def program_state(path: Path) -> tuple[str, int, int, int]:
    """Path, size, time and inode of a program: while they stay, so does its digest."""
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ino


@cache
def program_digest(state: tuple[str, int, int, int]) -> str:
    """SHA-256 of a program in that state."""
    return hashlib.sha256(Path(state[0]).read_bytes()).hexdigest()


def ask(command: Sequence[str], environ: Mapping[str, str], question: str) -> str:
    """What a C++ compiler answers to an option.

    Raises:
        ToolchainError: when it fails or says nothing.
    """
    done = run([*command, question], folder=Path("/"), environ=environ, timeout=QUERY_SECONDS)
    if done.code != 0 or not done.output.strip():
        raise ToolchainError(
            f"{command[0]} {question} fails: {first_error(done.output)}",
            fix="set CXX to a working g++ 11 or later",
        )
    return done.output


def program_of(command: Sequence[str], environ: Mapping[str, str], name: str) -> str | None:
    """The real path of a part of a C++ compiler, such as its assembler; None when it has none."""
    answer = ask(command, environ, f"-print-prog-name={name}").splitlines()  # among warnings, of scripts around it
    found = (shutil.which(line.strip(), path=environ["PATH"]) for line in answer if line.strip())
    return next((os.path.realpath(where) for where in found if where is not None), None)


def is_object(path: Path) -> bool:
    """Whether a file is a whole 64-bit ELF object: its table of sections, which is written last, lies within it."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    table, (size, count) = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<HH", data, 0x3A)
    return bool(0 < table <= len(data) - size * count)


def rule_files(path: Path, source: str) -> list[str]:
    """Files that a make rule written by a compiler lists, sorted, without the source itself."""
    text = os.fsdecode(path.read_bytes()).replace("\\\n", " ").partition(":")[2]
    marked = text.replace("\\ ", "\0").replace("$$", "$").replace("\\#", "#")
    names = {word.replace("\0", " ") for word in marked.split()}
    return sorted(names - {source})
