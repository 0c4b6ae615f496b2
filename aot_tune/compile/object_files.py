"""Objects that compilers made: whether they are whole, what they hold, and which of their symbols others see."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from aot_tune.compile.diagnostics import is_lasting
from aot_tune.compile.programs import BUSY_SHARE, QUERY_SECONDS, Compiler, program_of
from aot_tune.compile.toolchain import CompileStatus, Object
from aot_tune.spec import Target
from aot_tune.spec.targets import TILES_LEVEL
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import Finished, run

_DEVICE_CODE = (".nv_fatbin", ".hip_fatbin")
"""The sections of an object that hold what GPUs of NVIDIA and AMD run."""
KERNEL_IMAGE = ".rodata.aot_tune_kernel_image"
"""The section of a Triton launcher's object that holds its image, with a zero byte after the image."""
FUNCTIONS = ("_launch", "_workspace", "_preload", "_note")
"""The endings of a candidate's function names. Everything else becomes local."""

_AT_LOAD = (".init_array", ".ctors", ".preinit_array", ".fini_array", ".dtors")
"""Beginnings of the names of sections that list functions which run when a library is loaded or unloaded."""
_IOSTREAM = "_ZNSt8ios_base4InitC1Ev"  # std::ios_base::Init::Init()
_ABOVE = {
    2: r"(?:popcnt|crc32|pshufb|pmulld|ptest|palignr|round[ps]|blend|dpp|pmov[sz]x|pextr[bdq]|pinsr[bdq]|phadd)",
    3: r"(?:v\w+ .*%[xy]mm|andn |bextr|bls|bzhi|mulx|pdep|pext |rorx|sarx|shlx|shrx|lzcnt|movbe)",
    4: r"\w+ .*(?:%zmm|%k[0-7]|%[xy]mm(?:1[6-9]|[23]\d))",
    5: r"(?:vdpbf16ps|vcvtne2?ps2bf16)",
    TILES_LEVEL: r"\w+ .*%tmm",
}
"""For each level of x86-64, what instructions begin with that came with it, as objdump writes them."""
_DISASSEMBLY = 64 << 20
_EXECUTABLE = 0x4
_NO_OBJECT = "error: the compiler ended without an error, but made no whole object"
"""The log if a compiler, or a launcher before it, hides its failure."""


def failure_of(done: Finished, timeout: float, compiler: str, made: Path, rule: Path) -> Object | None:
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
    return Object(status=status, log=log, seconds=done.seconds, lasting=lasting)


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
        wanted = (s for s in sections if s["sh_flags"] & _EXECUTABLE or s.name in _DEVICE_CODE)
        return int(sum(s["sh_size"] for s in wanted))


def device_digest(data: bytes) -> str:
    """SHA-256 of the device code (machine code and PTX, or a Triton image) in an object. Empty if there is none.

    Equal sources and the same CUDA compiler give equal digests, whatever the host compiler.
    """
    elf = ELFFile(BytesIO(data))
    *codes, image = (elf.get_section_by_name(name) for name in (*_DEVICE_CODE, KERNEL_IMAGE))
    if image is not None:
        return hashlib.sha256(image.data()[:-1]).hexdigest()
    return next((hashlib.sha256(code.data()).hexdigest() for code in codes if code is not None), "")


def public_functions(path: Path) -> list[str]:
    """Global functions of an object whose names have these endings, sorted."""
    with path.open("rb") as file:
        symbols = _symbols(ELFFile(file))
        names = [
            s.name
            for s in symbols
            if s["st_info"]["bind"] == "STB_GLOBAL" and s["st_shndx"] != "SHN_UNDEF" and s.name.endswith(FUNCTIONS)
        ]
    return sorted(names)


def _symbols(elf: ELFFile) -> Iterable[Any]:
    table = elf.get_section_by_name(".symtab")
    return table.iter_symbols() if isinstance(table, SymbolTableSection) else ()


class Symbols(NamedTuple):
    """Global or weak symbols of an object: those that it defines, and those that it only uses."""

    defined: frozenset[str]
    used: frozenset[str]


def symbols_of(data: bytes) -> Symbols:
    """The symbols by which an object is linked. Raises ELFError when it is no ELF file."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for symbol in _symbols(ELFFile(BytesIO(data))):
        if symbol["st_info"]["bind"] != "STB_LOCAL":
            names[symbol["st_shndx"] != "SHN_UNDEF"].add(symbol.name)
    return Symbols(defined=frozenset(names[True]), used=frozenset(names[False]))


def why_unlinkable(data: bytes, symbol: str, target: str) -> tuple[str, str] | None:
    """What an object has that must not be in a library, and what to do, or None.

    Objects of several targets are in one library. So nothing of one object may be used, or run, in place of another's.
    A CUDA object has host code for the baseline. It may have an initialiser by which nvcc registers its kernels. It may
    also have that of <iostream>, which CUTLASS includes: before GCC 13, every file that includes <iostream> has one.

    Raises:
        ELFError: when it is no ELF file.
    """
    symbols, elf = symbols_of(data), ELFFile(BytesIO(data))
    if foreign := sorted(symbols.defined - {symbol + ending for ending in FUNCTIONS}):
        return (
            f"defines the global symbol {foreign[0]!r}",
            "put the template's helpers into an unnamed namespace, or make them static",
        )
    sizes = {s.name: s["sh_size"] for s in elf.iter_sections() if s["sh_size"] > 0}
    run = sum(size for name, size in sizes.items() if name.startswith(_AT_LOAD)) // (elf.elfclass // 8)
    run += sum(name in (".init", ".fini") for name in sizes)
    run += sum(s["st_info"]["type"] == "STT_LOOS" for s in _symbols(elf))  # its address is what a function returns
    allowed = 1 + (_IOSTREAM in symbols.used) if target.startswith(("cuda-", "hip-")) else 0
    if run > allowed:
        return (
            "has code that runs when the library is loaded",
            "initialise the template's globals with constants, and clone no functions",
        )
    return None


def instructions_above(made: Path, target: Target, objdump: str, environ: Mapping[str, str]) -> str:
    """An instruction of an object that CPUs of a target of x86-64 may lack, or empty."""
    argv = [objdump, "-d", "--no-show-raw-insn", made.name]
    done = run(argv, folder=made.parent, environ=environ, timeout=QUERY_SECONDS, keep=_DISASSEMBLY)
    above = "|".join(words for level, words in _ABOVE.items() if target.level < level)
    found = re.search(rf"^ +[0-9a-f]+:\t((?:{above}).*)", done.output, re.MULTILINE) if above else None
    return " ".join(found[1].split()) if found else ""


def localize(
    made: Path,
    out: Path,
    functions: Mapping[str, str],
    programs: Mapping[str, str],
    environ: Mapping[str, str],
    more: Sequence[Path] = (),
    *,
    debugging: bool = False,
    prune: bool = False,
) -> str:
    """Copy an object with only `functions` global, so that templates in two candidates never meet.

    They get the names that they are mapped to. Objects in the same folder that it needs `more` become part of it. To
    `prune` leaves out sections that they do not need, such as functions of a framework's binding.

    Template code is in section groups, and a linker keeps one group of each name. So the groups are dissolved first.
    Otherwise a linker would still merge the groups of two candidates that have the same name.

    Args:
        programs: paths of `ld` and `objcopy`.
        debugging: keep what debuggers read.

    Returns:
        The output of the program that failed, or an empty text.
    """
    merged = made.with_name("merged.o")
    keep = [f"--keep-global-symbol={name}" for name in functions.values()]
    keep += [f"--redefine-sym={name}={new}" for name, new in functions.items() if name != new]
    parts = [path.name for path in (made, *more)]
    pruned = ["--gc-sections", *(f"--undefined={name}" for name in functions)] if prune else []
    for argv in (
        [programs["ld"], "-r", "--force-group-allocation", "--build-id=none", *pruned, "-o", merged.name, *parts],
        [programs["objcopy"], *([] if debugging else ["--strip-unneeded"]), *keep, merged.name, out.name],
    ):
        done = run(argv, folder=made.parent, environ=environ, timeout=QUERY_SECONDS)
        if done.code != 0 or done.timed_out:
            return f"{done.output}\nerror: {' '.join(argv)} fails: GNU binutils 2.30 or later are needed"
    return ""


@cache
def binutils(compiler: Compiler) -> dict[str, str]:
    """Paths of GNU ld and objcopy, as the host compiler finds them."""
    programs = {}
    for name, choices in (("ld", ("ld.bfd", "ld")), ("objcopy", ("objcopy",))):
        paths = (program_of(compiler, choice) for choice in choices)
        where = next((p for p in paths if p is not None), None)
        if where is None:
            raise ToolchainError(
                f"no {name} found", why="a build needs it to prepare objects for the link", fix="install GNU binutils"
            )
        programs[name] = where
    return programs
