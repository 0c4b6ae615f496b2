"""What toolchains share: finding and asking compilers, results of runs, and the files that were read and made."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from elftools.elf.elffile import ELFFile

from aot_tune.compile.diagnostics import first_error, is_lasting
from aot_tune.compile.object_records import CompileOutcome, CompileStatus
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import OUTPUT, Finished, run

__all__ = [
    "DEVICE_CODE",
    "LINK_FLAGS",
    "ask",
    "baseline_flags",
    "cut",
    "failure_of",
    "is_object",
    "link",
    "named_command",
    "object_bytes",
    "program_digest",
    "program_of",
    "program_state",
    "rule_files",
]

QUERY_SECONDS = 60.0
CXX_ADDRESS_SPACE = 4 << 30
"""Bytes of address space that a C++ compiler may use."""

BUSY_SHARE = 0.5
"""If a run computed for this share of its time, the run itself was slow. With less, the machine was busy."""

LINK_FLAGS = ("-shared", "-Wl,--as-needed", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,--build-id=none")
DEVICE_CODE = ".nv_fatbin"
"""The section of an object that holds what an NVIDIA GPU runs."""

_EXECUTABLE = 0x4
_NO_OBJECT = "error: the compiler ended without an error, but made no whole object"
"""The log if a compiler, or a launcher before it, hides its failure."""


def named_command(named: str, path: str | None) -> list[str] | None:
    """A program on `path`, perhaps with arguments, as variables name it. None if it does not exist."""
    words = [named] if shutil.which(named, path=path) else shlex.split(named)
    program = shutil.which(words[0], path=path) if words else None
    # The path is absolute, because the program runs in other folders.
    return None if program is None else [str(Path(program).absolute()), *words[1:]]


def baseline_flags() -> tuple[str, ...]:
    """The flags with which a C++ compiler compiles for every CPU of this machine's kind."""
    return ("-march=x86-64",) if platform.machine() == "x86_64" else ()


def program_state(path: Path) -> tuple[str, int, int, int]:
    """Path, size, time and inode of a program. While they stay the same, so does its digest."""
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ino


@cache
def program_digest(state: tuple[str, int, int, int]) -> str:
    """SHA-256 of a program in that state."""
    return hashlib.sha256(Path(state[0]).read_bytes()).hexdigest()


def ask(
    command: Sequence[str],
    environ: Mapping[str, str],
    *question: str,
    fix: str = "set CXX to a working g++ 11 or later",
) -> str:
    """What a compiler answers to options.

    Raises:
        ToolchainError: when it fails or says nothing.
    """
    done = run([*command, *question], folder=Path("/"), environ=environ, timeout=QUERY_SECONDS)
    if done.code != 0 or not done.output.strip():
        raise ToolchainError(f"{command[0]} {question[0]} fails: {first_error(done.output)}", fix=fix)
    return done.output


def link(argv: Sequence[str], out: Path, environ: Mapping[str, str]) -> None:
    """Run a linker that makes `out`.

    Raises:
        ToolchainError: with its first error line.
    """
    done = run(argv, folder=out.parent, environ=environ, timeout=QUERY_SECONDS)
    if done.code != 0 or done.timed_out:
        raise ToolchainError(f"cannot link {out.name}: {first_error(done.output)}", why=" ".join(argv))


def failure_of(done: Finished, timeout: float, compiler: str, made: Path, rule: Path) -> CompileOutcome | None:
    """The result of a run that did not make both files, an object and its make rule. None if it made them.

    Args:
        compiler: its name in the log.
    """
    log, lasting = done.output, False
    status: CompileStatus = "compile-failed"
    if done.timed_out:
        log, status = f"{log}\nerror: {compiler} took longer than {timeout:g} s", "timeout"
        lasting = done.busy > BUSY_SHARE * timeout
    elif done.code < 0:
        log = f"{log}\nerror: {compiler} died of signal {-done.code}"
    elif done.code > 0:
        lasting = is_lasting(log)
    elif is_object(made) and rule.is_file():
        return None
    else:
        log = f"{log}\n{_NO_OBJECT}"
    return CompileOutcome(status=status, log=log, seconds=done.seconds, lasting=lasting)


def cut(text: str) -> str:
    """The head and the tail of a long text."""
    if len(text) <= OUTPUT:
        return text
    return f"{text[: OUTPUT // 2]}\n... {len(text) - OUTPUT} characters left out ...\n{text[-OUTPUT // 2 :]}"


def program_of(command: Sequence[str], environ: Mapping[str, str], name: str) -> str | None:
    """The real path of a part of a C++ compiler, such as its assembler. None if it has no such part."""
    # Scripts around the compiler may print warnings before the answer.
    answer = ask(command, environ, f"-print-prog-name={name}").splitlines()
    found = (shutil.which(line.strip(), path=environ["PATH"]) for line in answer if line.strip())
    return next((os.path.realpath(where) for where in found if where is not None), None)


def is_object(path: Path) -> bool:
    """Whether a file is a whole 64-bit ELF object. Its section table is written last, and must be within the file."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    table, (size, count) = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<HH", data, 0x3A)
    return bool(0 < table <= len(data) - size * count)


def object_bytes(path: Path) -> int:
    """Bytes of code in an object, for the host and for the device."""
    with path.open("rb") as file:
        sections = list(ELFFile(file).iter_sections())
        wanted = (s for s in sections if s["sh_flags"] & _EXECUTABLE or s.name == DEVICE_CODE)
        return int(sum(s["sh_size"] for s in wanted))


def rule_files(path: Path, source: str) -> list[str]:
    """The files in a make rule that a compiler wrote, sorted, without the source itself."""
    text = os.fsdecode(path.read_bytes()).replace("\\\n", " ").partition(":")[2]
    marked = text.replace("\\ ", "\0").replace("$$", "$").replace("\\#", "#")
    names = {word.replace("\0", " ") for word in marked.split()}
    return sorted(names - {source})
