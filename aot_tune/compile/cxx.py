"""The C++ compiler: targets of x86-64 CPUs, flags, and its identity."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from aot_tune.compile.diagnostics import SOURCE_NAME, first_error, is_lasting
from aot_tune.compile.headers import opened_files, search_folders, sought
from aot_tune.compile.jobs import MEMORY_PER_COMPILE
from aot_tune.compile.object_records import CompileOutcome
from aot_tune.compile.programs import (
    NO_OBJECT,
    QUERY_SECONDS,
    ask,
    is_object,
    program_digest,
    program_of,
    program_state,
    rule_files,
)
from aot_tune.spec import Target
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import Finished, compiler_environment, key_environment, run

__all__ = ["TOOLCHAIN", "CxxToolchain", "cpu_level"]

FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
    "-frandom-seed=candidate",
    "-fstack-usage",
    "-fmax-errors=10",
    "-fdiagnostics-color=never",
    "-fno-diagnostics-show-caret",
)
LINK_FLAGS = ("-shared", "-fopenmp", "-Wl,--as-needed", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,--build-id=none")
BUSY_SHARE = 0.5
"""A run that computed for this share of its time was slow by itself; with less, the machine was busy."""

_MEMORY = 4 << 30
_LISTING = 4 << 20
"""Bytes of a list of included files that are kept: there are thousands in large libraries."""

_LEVELS = (
    (2, "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
    (3, "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    (4, "avx512f avx512bw avx512cd avx512dq avx512vl"),
)


def _target(level: int, vector_bytes: int, registers: int) -> Target:
    name = "cpu-x86-64" if level == 1 else f"cpu-x86-64-v{level}"
    facts = {"vector_bytes": vector_bytes, "registers": registers}
    return Target(name=name, family="cpu", level=level, facts=facts)


_TARGETS = (_target(1, 16, 16), _target(2, 16, 16), _target(3, 32, 16), _target(4, 64, 32))


def cpu_level(cpuinfo: str) -> int:
    """The x86-64 level that all processors in the text of /proc/cpuinfo have in full; 0 on another architecture."""
    rows = [set(line.partition(":")[2].split()) for line in cpuinfo.splitlines() if line.startswith("flags")]
    if not rows or "lm" not in rows[0]:
        return 0
    flags = set.intersection(*rows)
    level = 1
    for number, words in _LEVELS:
        if not flags.issuperset(words.split()):
            break
        level = number
    return level


class CxxToolchain:
    """g++, or what CXX names (a program, perhaps behind a launcher such as ccache, perhaps with arguments)."""

    name = "cxx"

    def __init__(self, environ: Mapping[str, str] | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
        self._environ = environ
        self._cpuinfo = cpuinfo

    def configured(self, environ: Mapping[str, str]) -> CxxToolchain:
        """The same toolchain with the compiler that CXX of `environ` names."""
        return CxxToolchain(dict(environ), self._cpuinfo)

    def targets(self) -> tuple[Target, ...]:
        """cpu-x86-64 (every x86-64 CPU) and its levels v2, v3, v4."""
        return _TARGETS

    def baselines(self) -> tuple[Target, ...]:
        """cpu-x86-64."""
        return _TARGETS[:1]

    def native(self) -> tuple[Target, ...]:
        """The levels that all CPUs of this machine have in full."""
        try:
            level = cpu_level(self._cpuinfo.read_text())
        except OSError:
            level = 0
        return tuple(t for t in _TARGETS if t.level <= level)

    def memory_per_job(self) -> int:
        """A large candidate takes 400 MB."""
        return MEMORY_PER_COMPILE

    def command(self) -> list[str]:
        """The compiler and the arguments that always precede ours.

        Raises:
            ToolchainError: when there is none.
        """
        environ = self._env()
        named = environ.get("CXX", "")
        if named:
            whole = shutil.which(named, path=environ.get("PATH"))
            words = [named] if whole else shlex.split(named)
        else:
            words = next(([w] for w in ("g++", "c++") if shutil.which(w, path=environ.get("PATH"))), [])
        program = shutil.which(words[0], path=environ.get("PATH")) if words else None
        if program is None:
            raise ToolchainError(
                f"CXX={named!r} is not a program" if named else "no C++ compiler found: neither g++ nor c++ is on PATH",
                why="candidates are compiled when the library is built",
                fix="install g++ 11 or later, or set CXX to its path, or configure with -DCMAKE_CXX_COMPILER=<path>",
            )
        return [str(Path(program).absolute()), *words[1:]]  # it is run in other folders than this one

    def identity(self) -> dict[str, str]:
        """Version line, machine, and the digests of the driver, the compiler proper and the assembler."""
        return dict(_identity(*self._asked()))

    def device_identity(self, identity: Mapping[str, str]) -> dict[str, str]:
        """All of it: an object is told by its own digest."""
        return dict(identity)

    def recipe(self, target: Target) -> dict[str, object]:
        """Flags and the variables that the compiler sees, and what it makes of them by itself."""
        flags = [*self.command()[1:], *_flags(target)]
        return {"flags": flags, "added": self.added(), "environment": key_environment(self._env())}

    def compile(self, source: str, target: Target, out: Path, timeout: float) -> CompileOutcome:
        """Compile in the folder of `out` under a fixed file name, so that equal sources give equal objects anywhere."""
        folder = out.parent
        (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
        prefix = f"-ffile-prefix-map={folder}=."
        argv = [*self.command(), *_flags(target), prefix, "-MD", "-MF", "candidate.d"]
        argv += ["-c", SOURCE_NAME, "-o", out.name]
        done = run(argv, folder=folder, environ=self._child(folder), timeout=timeout, memory=_MEMORY)
        if done.timed_out:
            log = f"{done.output}\nerror: the compiler took longer than {timeout:g} s"
            lasting = done.busy > BUSY_SHARE * timeout
            seen = self._opened(source, target, folder, log) if lasting else ()
            return CompileOutcome(status="timeout", log=log, seconds=done.seconds, includes=seen, lasting=lasting)
        if done.code != 0:
            log = done.output if done.code > 0 else f"{done.output}\nerror: the compiler died of signal {-done.code}"
            lasting = done.code > 0 and is_lasting(done.output)
            seen = self._opened(source, target, folder, log) if lasting else ()
            return CompileOutcome(
                status="compile-failed", log=log, seconds=done.seconds, includes=seen, lasting=lasting
            )
        rule = folder / "candidate.d"
        if not is_object(out) or not rule.is_file():
            log = f"{done.output}\n{NO_OBJECT}"
            return CompileOutcome(status="compile-failed", log=log, seconds=done.seconds, lasting=False)
        return CompileOutcome(
            status="ok",
            log=done.output,
            seconds=done.seconds,
            includes=self._includes(source, rule_files(rule, SOURCE_NAME)),
            resources=_resources(out, folder / f"{out.stem}.su", done),
        )

    def link_shared(self, objects: Sequence[Path], out: Path) -> None:
        """Link objects into a shared library whose undefined symbols are all found now, not when it is loaded."""
        argv = [*self.command(), *LINK_FLAGS, "-o", str(out), *(str(p) for p in objects)]
        done = run(argv, folder=out.parent, environ=self._child(out.parent), timeout=QUERY_SECONDS)
        if done.code != 0 or done.timed_out:
            raise ToolchainError(f"cannot link {out.name}: {first_error(done.output)}", why=" ".join(argv))

    def link_arguments(self) -> tuple[str, ...]:
        """Nothing beside what the compiler itself adds."""
        return ()

    def include_folders(self) -> tuple[str, ...]:
        """Nothing beside the compiler's own."""
        return ()

    def locate(self, include: str) -> str:
        """Names of included files are their paths."""
        return include

    def search_folders(self) -> tuple[str, ...]:
        """Folders in which headers are looked for, in the compiler's order."""
        return search_folders(*self._asked())

    def added(self) -> str:
        """Digest of what its driver, scripts around that and files of options tell the compiler proper.

        Such a script may run another one, of which the digests of programs tell nothing.
        """
        return _added(*self._asked())

    def _asked(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, int, int, int]]:
        """What answers of the compiler depend on."""
        command = self.command()
        environ = tuple(sorted(self._child(Path(tempfile.gettempdir())).items()))
        return tuple(command), environ, program_state(Path(os.path.realpath(command[0])))

    def _includes(self, source: str, opened: Sequence[str], log: str = "") -> tuple[str, ...]:
        return tuple(sorted({*opened, *sought(source, opened, self.search_folders(), log)}))

    def _opened(self, source: str, target: Target, folder: Path, log: str) -> tuple[str, ...]:
        """What a source includes that does not compile, of which compilers list nothing."""
        argv = [*self.command(), *_flags(target), "-E", "-H", SOURCE_NAME, "-o", os.devnull]
        done = run(argv, folder=folder, environ=self._child(folder), timeout=QUERY_SECONDS, keep=_LISTING)
        return self._includes(source, opened_files(done.output), log)

    def _env(self) -> Mapping[str, str]:
        return os.environ if self._environ is None else self._environ

    def _child(self, scratch: Path) -> dict[str, str]:
        return compiler_environment(self._env(), scratch)


def _flags(target: Target) -> tuple[str, ...]:
    return (*FLAGS, f"-march={target.name.removeprefix('cpu-')}")


@cache
def _identity(
    command: tuple[str, ...], environ: tuple[tuple[str, str], ...], _driver: tuple[object, ...]
) -> tuple[tuple[str, str], ...]:
    child = dict(environ)
    # compilers begin with the name that they were called by
    version = ask(command, child, "--version").splitlines()[0].removeprefix(Path(command[0]).name)
    found = {"version": version.strip()}
    found["machine"] = ask(command, child, "-dumpmachine").strip()
    found["driver"] = program_digest(program_state(Path(os.path.realpath(command[0]))))
    for name in ("cc1plus", "as"):
        where = program_of(command, child, name)
        if where is not None:
            found[name] = program_digest(program_state(Path(where)))
    return tuple(found.items())


@cache
def _added(command: tuple[str, ...], environ: tuple[tuple[str, str], ...], _driver: tuple[object, ...]) -> str:
    argv = [*command, "-###", "-x", "c++", "-S", os.devnull, "-o", os.devnull]
    said = run(argv, folder=Path("/"), environ=dict(environ), timeout=QUERY_SECONDS).output
    programs = (line.strip().partition(" ")[2] for line in said.splitlines() if line.startswith(" "))
    return hashlib.sha256("\n".join(programs).encode(errors="replace")).hexdigest()


def _resources(out: Path, stack: Path, done: Finished) -> dict[str, int]:
    found = {"text": _text_bytes(out.read_bytes()), "memory": done.memory}
    rows = stack.read_text(encoding="utf-8", errors="replace").splitlines() if stack.is_file() else []
    return found | {"stack": max((int(r.split("\t")[1]) for r in rows), default=0)}


def _text_bytes(elf: bytes) -> int:
    """Bytes of code of a 64-bit little-endian ELF file: the sizes of its executable sections."""
    table, (size, count) = struct.unpack_from("<Q", elf, 0x28)[0], struct.unpack_from("<HH", elf, 0x3A)
    total = 0
    for at in range(table, table + size * count, size):
        flags, length = struct.unpack_from("<Q", elf, at + 8)[0], struct.unpack_from("<Q", elf, at + 0x20)[0]
        total += length if flags & 0x4 else 0
    return int(total)


TOOLCHAIN = CxxToolchain()
