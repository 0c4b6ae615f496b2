"""What toolchains share: finding and asking compilers, their arguments, and the files that they read.

An author's folders are passed as links, so that no path gets into an object.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from aot_tune.compile.diagnostics import first_error
from aot_tune.spec import CompileOptions
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import OUTPUT, run

QUERY_SECONDS = 60.0
CXX_ADDRESS_SPACE = 4 << 30
"""Bytes of address space that a C++ compiler may use."""
BUSY_SHARE = 0.5
"""If a run computed for this share of its time, the run itself was slow. With less, the machine was busy."""
NO_LTO = "-fno-lto"
"""For compilers whose wrappers ask for link-time optimisation: code that is made when the library is linked is not what
was measured. Elsewhere it changes nothing, so it is in no object's key."""
LINK_FLAGS = ("-shared", "-Wl,--as-needed", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,--build-id=none")
_OF_CLANG = {"-fno-diagnostics-show-caret": "-fno-caret-diagnostics", "-fno-gnu-unique": ""}
"""How clang spells flags of g++'s; nothing if it has no such flag."""
_HANDED_ON = re.compile(r"(?:-Xcompiler|--compiler-options|-Xptxas|--ptxas-options)=")
_READS = re.compile(
    r"--?(?:specs|wrapper|load|options-file|optf|config)\b|-B|@"
    r"|-f(?:plugin|pass-plugin|profile[\w-]*-use|auto-profile|branch-probabilities|modul|sanitize-\w*list)"
)
"""Options that let a compiler read files, or run programs, that no rule for make names."""
_LINKED = re.compile(r"(?<![\w/.-])(?:\./)?include-(\d+)/")
_LINK = re.compile(r"(?:\./)?include-(\d+)/(.*)", re.DOTALL)


class Compiler(NamedTuple):
    """A C++ or CUDA compiler, and all that its answers depend on. So each question is asked once for each of these.

    Args:
        command: the program, and the arguments that always come before others.
        environ: its whole environment.
        state: of the program, see `program_state`.
    """

    command: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    state: tuple[str, int, int, int]


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


def ask(compiler: Compiler, *question: str, fix: str = "set CXX to a working g++ 11 or later") -> str:
    """What a compiler answers to options. Raises ToolchainError when it fails or says nothing."""
    done = run([*compiler.command, *question], folder=Path("/"), environ=dict(compiler.environ), timeout=QUERY_SECONDS)
    if done.code != 0 or not done.output.strip():
        raise ToolchainError(f"{compiler.command[0]} {question[0]} fails: {first_error(done.output)}", fix=fix)
    return done.output


def spelled(flags: Sequence[str], compiler: Compiler) -> tuple[str, ...]:
    """Flags of g++'s as a compiler spells them."""
    return tuple(f for flag in flags if (f := _OF_CLANG.get(flag, flag))) if _is_clang(compiler) else tuple(flags)


@cache
def _is_clang(compiler: Compiler) -> bool:
    return "clang" in ask(compiler, "--version")


def link(argv: Sequence[str], out: Path, environ: Mapping[str, str]) -> None:
    """Run a linker that makes `out`. Raises ToolchainError with its first error line."""
    done = run(argv, folder=out.parent, environ=environ, timeout=QUERY_SECONDS)
    if done.code != 0 or done.timed_out:
        raise ToolchainError(f"cannot link {out.name}: {first_error(done.output)}", why=" ".join(argv))


def cut(text: str) -> str:
    """The head and the tail of a long text."""
    if len(text) <= OUTPUT:
        return text
    return f"{text[: OUTPUT // 2]}\n... {len(text) - OUTPUT} characters left out ...\n{text[-OUTPUT // 2 :]}"


def program_of(compiler: Compiler, name: str) -> str | None:
    """The real path of a part of a C++ compiler, such as its assembler. None if it has no such part."""
    # Scripts around the compiler may print warnings before the answer.
    answer = ask(compiler, f"-print-prog-name={name}").splitlines()
    paths = (shutil.which(line.strip(), path=dict(compiler.environ)["PATH"]) for line in answer if line.strip())
    return next((os.path.realpath(where) for where in paths if where is not None), None)


def option_flags(options: CompileOptions, folder: Path) -> list[str]:
    """Flags of options for a compiler that runs in `folder`. The folder gets links to the include folders."""
    flags = []
    for number, include in enumerate(options.include_directories):
        link = folder / f"include-{number}"
        if not link.is_symlink():
            link.symlink_to(include)
        flags.append(f"-Iinclude-{number}")
    return [*flags, *(f"-D{definition}" for definition in options.defined()), *options.options]


def option_files(words: Iterable[str]) -> tuple[list[str], bool]:
    """The files that options name, and whether that is all that they let a compiler read beside headers."""
    files, whole = list[str](), True
    for part in (part for word in words for part in word.split(",")):
        option = _HANDED_ON.sub("", part)
        named = [t for t in {option.lstrip("@"), option.partition("=")[2]} if t.startswith("/")]
        files += [name for name in named if Path(name).is_file()]
        whole &= _READS.match(option) is None or (option.startswith("-f") and any(n in files for n in named))
    return files, whole


def option_key(options: CompileOptions) -> dict[str, object]:
    """The part of a cache's key for options. It has the places of folders, because each has its own headers."""
    return {**options.plain(), "include_directories": [str(d) for d in options.include_directories]}


def real_include(name: str, options: CompileOptions) -> str:
    """The path of a header that was included through a link."""
    match = _LINK.fullmatch(name)
    if match is None or int(match[1]) >= len(options.include_directories):
        return name
    return str(Path(options.include_directories[int(match[1])], match[2]))


def real_places(log: str, options: CompileOptions) -> str:
    """What a compiler says, with the paths of headers that were included through links."""

    def real(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"{options.include_directories[number]}/" if number < len(options.include_directories) else match[0]

    return _LINKED.sub(real, log)


def library_file(name: str, folders: Sequence[str]) -> str | None:
    """The file of a library in folders: shared if there is one, perhaps with a version in its name, or else static."""
    for folder in folders:
        exact = [Path(folder, f"lib{name}.so"), Path(folder, f"lib{name}.a")]
        versions = sorted(Path(folder).glob(f"lib{name}.so.*"), key=lambda p: len(p.name))
        path = next((p for p in (exact[0], *versions, exact[1]) if p.is_file()), None)
        if path is not None:
            return str(path)
    return None


def link_words(libraries: Sequence[str]) -> list[str]:
    """Files of libraries as a linker takes them for the benchmark; shared ones are found again at loading."""
    words = list(libraries)
    folders = dict.fromkeys(str(Path(lib).parent) for lib in libraries if ".so" in Path(lib).name)
    return [*words, *(f"-Wl,-rpath,{folder}" for folder in folders)]


def files_of_assembler(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> list[str] | None:
    """The files that the assembler reads when a compiler runs once more; None if it does not tell."""
    rule = folder / "assembler.d"
    wanted = f"-Wa,--MD,{rule.name}"
    done = run([*argv, wanted], folder=folder, environ=environ, timeout=QUERY_SECONDS, memory=CXX_ADDRESS_SPACE)
    if done.code != 0 or not rule.is_file():
        return None
    return [name for name in rule_files(rule, "") if name.startswith(("/", "include-"))]


def rule_files(path: Path, source: str) -> list[str]:
    """The files in a make rule that a compiler wrote, sorted, without the source itself."""
    text = os.fsdecode(path.read_bytes()).replace("\\\n", " ").partition(":")[2]
    marked = text.replace("\\ ", "\0").replace("$$", "$").replace("\\#", "#")
    names = {word.replace("\0", " ") for word in marked.split()}
    return sorted(names - {source})
