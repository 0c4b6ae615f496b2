"""What kernels are compiled for, and how: targets, what only their devices tell, and an author's options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

import msgspec

from aot_tune.spec.names import check_several
from aot_tune.support.errors import SpecError

_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_LIBRARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")
_REFUSED = (
    (
        re.compile(r"-m(?:arch|cpu|tune)=|-m(?:32|x32)\Z|-m(?:avx|sse|fma|amx|f16c|bmi)|--?(?:gpu-)?(?:arch|code)\b|-gencode|--generate-code"),
        "a candidate is compiled for each target of the library, and the target decides the instructions",
        "name targets in AOT_TUNE_TARGETS, or restrict the kernel to some by `constraints`",
    ),
    (
        re.compile(
            r"-f(?:abi-version|pack-struct|short-enums|short-wchar|no-pic|no-PIC|no-pie|whole-program)\b|-mabi="
            r"|-m(?:no-)?(?:ms-bitfields|align-double)|-malign-|-mlong-double"
        ),
        "it changes the ABI: the function would not get what the library passes",
        "leave it out",
    ),
    (
        re.compile(r"-f(?:no-)?lto\b|--?dlink-time-opt\b|-dlto\b"),
        "a candidate is one file with all of its code, so a link has nothing left to optimise",
        "leave it out, and include the files of the functions that it calls",
    ),
    (
        re.compile(r"-(?:c|E|S|o.*|M\w*|x.*|###)\Z|--coverage|-fprofile-(?:arcs|generate)|-(?:shared|static|r)\Z|--?(?:rdc|relocatable-device-code)\b|-dc\Z|-dlink"
                   r"|--?(?:compile|preprocess|ptx|cubin|fatbin|lib|run|output-file|keep|dryrun)\b"),
        "the compiler must make one object that needs no further step, and this option changes what it makes",
        "leave it out",
    ),
)  # fmt: skip

WHY = "a target is an architecture, and its devices differ in that: only a launch knows it"
ELSEWHERE = (
    'use device("multiprocessors") in a grid, a Buffer or an ordinary argument of a function of Triton or CUDA C++, '
    "and count_multiprocessors of common/launch.cuh.j2 in a template"
)

TILES_LEVEL = 6
"""The level of CPUs with AMX. A process must ask the kernel for its tiles."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target such as `cpu-x86-64-v3`.

    `family` is the first word of the name. `level` orders the targets of a family: a device of level n runs all targets
    up to n, unless `last` limits that. `facts` are numbers for constraints and templates.

    `last` is the highest level of a device that runs the target; 0 is no limit. An NVIDIA GPU runs only machine code of
    its own generation: `cuda-sm_80` ends at 89, `cuda-sm_90a` at 90.

    `machine` is the first word of what a C++ compiler for the target says to `-dumpmachine`, such as `aarch64`. Empty
    for GPUs.
    """

    name: str
    family: str
    level: int
    facts: dict[str, int] = {}
    last: int = 0
    machine: str = ""

    @property
    def on_host(self) -> bool:
        """Whether it is for the CPU, which compilers use as well."""
        return self.family == "cpu"

    def runs_on(self, level: int) -> bool:
        """Whether a device of that level runs this target."""
        return self.level <= level and (self.last == 0 or level <= self.last)

    def meets(self, other: Target) -> bool:
        """Whether one device may run both this target and another."""
        lowest = max(self.level, other.level)
        alike = (self.family, self.machine) == (other.family, other.machine)
        return alike and self.runs_on(lowest) and other.runs_on(lowest)


@dataclass(frozen=True)
class CompileOptions:
    """A kernel's own flags.

    Args:
        include_directories: folders of headers. They are searched in this order, before the compiler's own. They are
            below the project's folder or absolute, such as `package_folder("flashinfer") / "include"`.
        definitions: macros of the preprocessor, name to value. None and True define a macro without a value.
        options: options of the compiler, such as `-std=c++20`, `--fmad=false`, `-Xcompiler=-fno-strict-aliasing`.
            The target decides which instructions may be used.
        libraries: libraries to link with: names, such as `cublas` for `-lcublas`, or paths.
    """

    include_directories: tuple[str | PurePath, ...] = ()
    definitions: Mapping[str, str | int | bool | None] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    libraries: tuple[str | PurePath, ...] = ()

    def __post_init__(self) -> None:
        for several in ("include_directories", "options", "libraries"):
            check_several(getattr(self, several), f"compile options: {several}")
        if not isinstance(self.definitions, Mapping):
            raise SpecError(
                f"compile options: definitions are {str(self.definitions)[:80]!r}", fix='write {"NAME": value}'
            )
        for name, value in self.definitions.items():
            if not _NAME.match(name) or (isinstance(value, str) and "\n" in value):
                raise SpecError(
                    f"compile options: definition {name!r} is not the name of a macro with a value of one line"
                )
        for option in self.options:
            check_option(option, "compile options")
        for library in self.libraries:
            if not _is_path(library) and not _LIBRARY.match(str(library).removeprefix("-l")):
                raise SpecError(
                    f"compile options: library {str(library)[:80]!r} is not a name",
                    fix='write "cublas" for -lcublas, or a path to a .so or .a',
                )

    def __bool__(self) -> bool:
        return bool(self.include_directories or self.definitions or self.options or self.libraries)

    def plain(self) -> dict[str, object]:
        """The options as a record has them. Folders and libraries have only their last name, equal on all machines."""
        return {
            "include_directories": [PurePath(d).name for d in self.include_directories],
            "definitions": {n: _text(v) for n, v in sorted(self.definitions.items())},
            "options": list(self.options),
            "libraries": [PurePath(lib).name for lib in self.libraries],
        }

    def defined(self) -> list[str]:
        """Definitions in the form that a compiler takes: `NAME` or `NAME=VALUE`."""
        return [name if _text(v) == "" else f"{name}={_text(v)}" for name, v in self.definitions.items()]


def check_option(option: object, where: str) -> None:
    """Check a compiler's option. Raises SpecError if it is none, is not the author's to decide, or changes the ABI."""
    if not isinstance(option, str) or not option.startswith("-") or len(option) < 2 or "\n" in option:
        raise SpecError(
            f"{where}: {str(option)[:80]!r} is not an option",
            fix="write each as one text that begins with -: -Xptxas=-O2",
        )
    if option.startswith(("-D", "-U", "-I", "-l", "-L")):
        kind = {"I": "include_directories", "l": "libraries", "L": "libraries, with its path"}
        raise SpecError(f"{where}: option {option!r}", fix=f"write it as one of {kind.get(option[1], 'definitions')}")
    bare = re.sub(r"\A(?:-Xcompiler|--compiler-options|-Xptxas)[= ]", "", option)
    for pattern, why, fix in _REFUSED:
        if any(pattern.match(part) for part in bare.split(",")):
            raise SpecError(f"{where}: option {option!r} is not allowed", why=why, fix=fix)


def _text(value: str | int | bool | None) -> str:
    if value is None or value is True:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _is_path(library: str | PurePath) -> bool:
    return isinstance(library, PurePath) or "/" in library or bool(re.search(r"\.(?:a|so(?:\.\d+)*)\Z", library))


def refuse_device_facts(facts: Iterable[str], where: str) -> None:
    """Raise SpecError for a fact that only a device has. `where` begins the message."""
    for fact in sorted(facts):
        if fact.startswith("device."):
            raise SpecError(f'{where} uses device("{fact.removeprefix("device.")}")', why=WHY, fix=ELSEWHERE)
