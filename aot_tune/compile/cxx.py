"""The C++ compiler: targets of CPUs, flags, and its identity."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from aot_tune.compile.device_targets import CPU_TARGETS, OTHER_CPUS, cpu_flags, cpu_level
from aot_tune.compile.diagnostics import SOURCE_NAME, first_error, is_lasting
from aot_tune.compile.headers import opened_files, search_folders, sought
from aot_tune.compile.object_files import (
    binutils,
    failure_of,
    instructions_above,
    localize,
    object_bytes,
    public_functions,
)
from aot_tune.compile.programs import (
    CXX_ADDRESS_SPACE,
    LINK_FLAGS,
    NO_LTO,
    QUERY_SECONDS,
    Compiler,
    ask,
    files_of_assembler,
    link,
    link_words,
    named_command,
    option_files,
    option_flags,
    program_digest,
    program_of,
    program_state,
    real_include,
    real_places,
    rule_files,
    spelled,
)
from aot_tune.compile.toolchain import NO_OPTIONS, Object, Toolchain
from aot_tune.spec import CompileOptions, Target
from aot_tune.spec.targets import TILES_LEVEL
from aot_tune.support.errors import ToolchainError
from aot_tune.support.kernel_features import has_tiles
from aot_tune.support.run_program import Finished, key_environment, run
from aot_tune.support.storage import scratch_folder

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
_LISTING = 4 << 20
"""The most bytes of a list of included files that is kept. In large libraries there are thousands of files."""

_OWN_TARGET = re.compile(r"\b(?:target(?:_clones)?|__target__)\s*\(|\b(?:asm|__asm|__asm__)\b|\bclang attribute\b")
"""How a source asks for other instructions than those of its target."""
_PROBES = {"cpu-x86-64-v4-bf16": "vdpbf16ps %zmm0, %zmm1, %zmm2", "cpu-x86-64-v4-amx": "tdpbf16ps %tmm0, %tmm1, %tmm2"}
"""For each target, an instruction that not every compiler with x86-64-v4 knows."""


class CxxToolchain(Toolchain):
    """g++, or what CXX names: a program, perhaps with a launcher such as ccache before it, perhaps with arguments."""

    name = "cxx"
    debugging = ("-O0", "-g")

    def __init__(self, environ: Mapping[str, str] | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
        super().__init__(environ)
        self._cpuinfo = cpuinfo

    def targets(self) -> tuple[Target, ...]:
        """cpu-aarch64; cpu-x86-64 (every x86-64 CPU), its levels v2, v3 and v4, and what is above: v4-bf16, v4-amx."""
        return (*OTHER_CPUS, *CPU_TARGETS)

    def baselines(self) -> tuple[Target, ...]:
        """cpu-x86-64 and cpu-aarch64. A library has that of its machine."""
        return (CPU_TARGETS[0], *OTHER_CPUS)

    def native(self) -> tuple[Target, ...]:
        """The levels that all CPUs of this machine have in full. AMX only counts if the kernel lets programs use it."""
        level = self._level()
        if level == TILES_LEVEL and not has_tiles():
            level -= 1
        return tuple(t for t in CPU_TARGETS if t.level <= level)

    def left_out(self) -> str:
        """Says so if the kernel refuses AMX."""
        if self._level() == TILES_LEVEL and not has_tiles():
            return f"{CPU_TARGETS[-1].name} is left out: the CPU has AMX, but the kernel does not let programs use it"
        return ""

    def _level(self) -> int:
        try:
            return cpu_level(self._cpuinfo.read_text())
        except OSError:
            return 0

    def command(self) -> list[str]:
        """The compiler and the arguments that always come before ours. Raises ToolchainError when there is none."""
        named, path = self._env().get("CXX", ""), self._env().get("PATH")
        tried = (named_command(name, path) for name in ((named,) if named else ("g++", "c++")))
        compiler = next((command for command in tried if command is not None), None)
        if compiler is None:
            raise ToolchainError(
                f"CXX={named!r} is not a program" if named else "no C++ compiler found: neither g++ nor c++ is on PATH",
                why="candidates are compiled when the library is built",
                fix="install g++ 11 or later, or set CXX to its path, or configure with -DCMAKE_CXX_COMPILER=<path>",
            )
        return compiler

    def identity(self) -> dict[str, str]:
        """Version line, machine, and the digests of the driver, the compiler proper and the assembler."""
        return dict(_identity(self.host()))

    def recipe(self, target: Target) -> dict[str, object]:
        """Flags, the variables that the compiler sees, and what it adds by itself."""
        host = self.host()
        if target.name in _PROBES and (reason := _refusal(target.name, host)):
            raise ToolchainError(
                f"{host.command[0]} cannot compile for {target.name}: {reason}",
                why="it, or the assembler that it uses, does not know the instructions",
                fix="install g++ 11 and binutils 2.35 or later, or set CXX to a newer compiler, or configure with "
                "-DAOT_TUNE_TARGETS=cpu-x86-64-v4",
            )
        flags = [*host.command[1:], *_flags(target, host)]
        return {"flags": flags, "added": self.added(), "environment": key_environment(self._env())}

    def compile(
        self, source: str, target: Target, out: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> Object:
        """Compile in the folder of `out` under a fixed file name, so that equal sources give equal objects anywhere."""
        folder = out.parent
        (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
        fixed = (NO_LTO, f"-ffile-prefix-map={folder}=.")
        flags = (*_flags(target, self.host()), *option_flags(options, folder))
        argv = [*self.command(), *flags, *fixed, "-MD", "-MF", "candidate.d"]
        argv += ["-c", SOURCE_NAME, "-o", out.name]
        done = run(argv, folder=folder, environ=self._child(folder), timeout=timeout, memory=CXX_ADDRESS_SPACE)
        rule = folder / "candidate.d"
        failed = failure_of(done, timeout, "the compiler", out, rule)
        if failed is not None:
            return self._with_includes(failed, source, flags, folder, options)
        # Names in authors' code may also be in other authors' code. What a sanitizer watches is linked alone.
        watched = any(option.startswith("-fsanitize=") for option in options.options)
        problem = self._localized(out, options) if options and not watched else ""
        if problem:
            return Object(status="compile-failed", log=problem, seconds=done.seconds, lasting=False)
        if (options or _OWN_TARGET.search(source)) and (above := self.instructions_above(out, target)):
            log = f"error: `{above}` is above {target.name}: kernels for CPUs that have it are for other targets"
            return Object(status="compile-failed", log=log, seconds=done.seconds, lasting=True)
        seen, whole = self._includes(
            source, rule_files(rule, SOURCE_NAME), options, again=[*argv[:-1], "again.o"], folder=folder
        )
        return Object(
            status="ok",
            log=done.output,
            seconds=done.seconds,
            lasting=whole,
            includes=dict.fromkeys(seen, ""),
            resources=_resources(out, folder / f"{out.stem}.su", done),
        )

    def texts(
        self, source: str, target: Target, folder: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> dict[str, bytes]:
        """Assembly."""
        flags = (*_flags(target, self.host()), *option_flags(options, folder), NO_LTO, f"-ffile-prefix-map={folder}=.")
        return self._assembly(source, flags, folder, timeout, CXX_ADDRESS_SPACE)

    def _assembly(
        self, source: str, flags: Sequence[str], folder: Path, timeout: float, memory: int | None = None
    ) -> dict[str, bytes]:
        (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
        argv = [*self.command(), *flags, "-S", SOURCE_NAME, "-o", "made.s"]
        run(argv, folder=folder, environ=self._child(folder), timeout=timeout, memory=memory)
        assembly = folder / "made.s"
        return {"s": assembly.read_bytes()} if assembly.is_file() else {}

    def link_shared(self, objects: Sequence[Path], out: Path, libraries: Sequence[str] = ()) -> None:
        """Link objects into a shared library. All undefined symbols are found now, not when it is loaded."""
        argv = [*self.command(), "-fopenmp", *LINK_FLAGS, "-o", str(out), *(str(p) for p in objects)]
        argv += link_words(libraries)
        link(argv, out, self._child(out.parent))

    def public_functions(self, out: Path) -> set[str]:
        """The functions of an object that other objects can call."""
        return set(public_functions(out))

    def instructions_above(self, out: Path, target: Target) -> str:
        """An instruction of an object that CPUs of a target may lack, or empty; empty for all but x86-64."""
        if target.machine != "x86_64":
            return ""
        objdump = program_of(self.host(), "objdump")
        return instructions_above(out, target, objdump, self._child(out.parent)) if objdump else ""

    def _localized(self, out: Path, options: CompileOptions) -> str:
        """Make all but a candidate's functions local in an object. Returns what a program said that failed."""
        made, local = out.with_name("made.o"), out.with_name("local.o")
        out.rename(made)
        functions, child = {n: n for n in public_functions(made)}, self._child(out.parent)
        problem = localize(made, local, functions, binutils(self.host()), child, debugging=self.debugs(options))
        if not problem:
            local.rename(out)
        return problem

    def _library(self, name: str) -> str | None:
        host = self.host()
        for file in (f"lib{name}.so", f"lib{name}.a"):
            answer = ask(host, f"-print-file-name={file}").strip()
            if answer != file and Path(answer).is_file():
                return os.path.realpath(answer) if answer.endswith(".a") else answer
        return None

    def search_folders(self) -> tuple[str, ...]:
        """Folders in which headers are looked for, in the compiler's order."""
        return search_folders(self.host())

    def added(self) -> str:
        """Digest of what the driver, scripts around it and files of options pass to the compiler proper.

        Such a script may run another script. The digests of programs do not cover that one.
        """
        return _added_digest(self.host())

    def host(self) -> Compiler:
        """The compiler, with what its answers depend on."""
        command = self.command()
        environ = tuple(sorted(self._child(Path(tempfile.gettempdir())).items()))
        return Compiler(tuple(command), environ, program_state(Path(os.path.realpath(command[0]))))

    def _includes(
        self,
        source: str,
        opened: Sequence[str],
        options: CompileOptions,
        log: str = "",
        again: Sequence[str] = (),
        folder: Path = Path(),
    ) -> tuple[tuple[str, ...], bool]:
        """The files that an object depends on, and whether they are all. `again` compiles once more, in `folder`."""
        host = self.host()
        files, whole = option_files((*(w for w in host.command[1:] if not w.startswith("-B")), *options.options))
        real = [real_include(name, options) for name in opened]
        searched = search_folders(host._replace(command=(*host.command, *options.options))) or search_folders(host)
        folders = (*map(str, options.include_directories), *searched)
        given = (*host.command[1:], *(f"-D{d}" for d in options.defined()), *options.options)
        beside = sought(source, real, folders, log, given)
        if beside.assembles:
            assembled = files_of_assembler(again, folder, self._child(folder)) if again else None
            files += [real_include(name, options) for name in assembled or ()]
            whole &= assembled is not None
        return tuple(sorted({*real, *beside.paths, *files})), whole and beside.whole

    def _with_includes(
        self, failed: Object, source: str, flags: Sequence[str], folder: Path, options: CompileOptions
    ) -> Object:
        """A failure with what its source includes. Compilers list nothing for a source that does not compile."""
        seen: tuple[str, ...] = ()
        whole = failed.lasting
        if failed.lasting:
            argv = [*self.command(), *flags, "-E", "-H", SOURCE_NAME, "-o", os.devnull]
            done = run(argv, folder=folder, environ=self._child(folder), timeout=QUERY_SECONDS, keep=_LISTING)
            seen, whole = self._includes(source, opened_files(done.output), options, failed.log)
        log = real_places(failed.log, options)
        return msgspec.structs.replace(failed, log=log, includes=dict.fromkeys(seen, ""), lasting=whole)


def _flags(target: Target, host: Compiler) -> tuple[str, ...]:
    return (*spelled(FLAGS, host), *cpu_flags(target.name))


@cache
def _refusal(target: str, host: Compiler) -> str:
    """Why a compiler cannot make an object with a target's own instructions, or empty. Asked once per driver."""
    with scratch_folder() as folder:
        (Path(folder) / "probe.cpp").write_text(f'asm("{_PROBES[target]}");\n')
        argv = [*host.command, *cpu_flags(target), "-c", "probe.cpp", "-o", "probe.o"]
        done = run(argv, folder=Path(folder), environ={**dict(host.environ), "TMPDIR": folder}, timeout=QUERY_SECONDS)
    return first_error(done.output) if done.code != 0 and is_lasting(done.output) else ""


@cache
def _identity(host: Compiler) -> tuple[tuple[str, str], ...]:
    # Compilers begin with the name that they were called by.
    version = ask(host, "--version").splitlines()[0].removeprefix(Path(host.command[0]).name)
    identity = {"version": version.strip()}
    identity["machine"] = ask(host, "-dumpmachine").strip()
    identity["driver"] = program_digest(host.state)
    for name in ("cc1plus", "as"):
        where = program_of(host, name)
        if where is not None:
            identity[name] = program_digest(program_state(Path(where)))
    return tuple(identity.items())


@cache
def _added_digest(host: Compiler) -> str:
    """Digest of what the compiler adds to its command line. Asked once per driver."""
    argv = [*host.command, "-###", "-x", "c++", "-S", os.devnull, "-o", os.devnull]
    output = run(argv, folder=Path("/"), environ=dict(host.environ), timeout=QUERY_SECONDS).output
    programs = [line.strip().partition(" ")[2] for line in output.splitlines() if line.startswith(" ")]
    if any("-flto" in program for program in programs):
        programs.append(NO_LTO)
    return hashlib.sha256("\n".join(programs).encode(errors="replace")).hexdigest()


def _resources(out: Path, stack: Path, done: Finished) -> dict[str, int]:
    resources = {"text": object_bytes(out), "memory": done.memory}
    rows = stack.read_text(encoding="utf-8", errors="replace").splitlines() if stack.is_file() else []
    return resources | {"stack": max((int(r.split("\t")[1]) for r in rows), default=0)}
