"""The CUDA compiler: targets of NVIDIA GPUs, flags, and objects that hold one kernel source for one target."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot_tune.compile.cxx import CxxToolchain
from aot_tune.compile.device_targets import BASELINE, CUDA_TARGETS, best_targets, check_known, code_flags
from aot_tune.compile.diagnostics import CUDA_SOURCE_NAME, is_lasting
from aot_tune.compile.headers import opened_files, sought
from aot_tune.compile.object_files import (
    FUNCTIONS,
    binutils,
    device_digest,
    failure_of,
    localize,
    object_bytes,
    public_functions,
)
from aot_tune.compile.programs import (
    LINK_FLAGS,
    QUERY_SECONDS,
    baseline_flags,
    cut,
    library_file,
    link,
    link_words,
    option_files,
    option_flags,
    option_key,
    program_digest,
    program_state,
    real_include,
    real_places,
    rule_files,
    spelled,
)
from aot_tune.compile.toolchain import NO_OPTIONS, Object, Toolchain
from aot_tune.compile.toolkit import Toolkit, find_cutlass, find_nvcc, open_toolkit
from aot_tune.compile.visible_gpus import visible_devices
from aot_tune.render import CONSTANTS
from aot_tune.spec import CompileOptions, Target
from aot_tune.support.cuda_tools import SYSTEM_CUDA, kernel_resources
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import Finished, key_environment, run

_HOST = ("-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-frandom-seed=candidate")
_RULE = ("-MD", "-MF", "candidate.d")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",  # an assert would put the header's path into the device code
    "--expt-relaxed-constexpr",
    "-w",  # thousands of warnings in headers of others would hide the errors
    "-Xptxas=-v",
    "-Xcudafe=--orig_src_path_name=candidate.cu",  # names of kernels contain a digest of this path
    *_RULE,
)

_MEMORY = 8 << 30
_MEMORY_PER_JOB = int(3.6 * (1 << 30))
_OUTPUT = 4 << 20
"""Names of CUTLASS kernels are pages long, and each appears twice in the report of its resources."""

_LISTING = 64 << 20
"""The instructions of a large kernel, with their codes."""

_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")
_CUTLASS = re.compile(r"^\s*#\s*include\s*[<\"](?:cutlass|cute)/", re.MULTILINE)


_ANY = "aot_tune_any_candidate"
"""Stands for the symbol of a candidate whose source others have too."""


@dataclass(frozen=True)
class _Shared:
    """A compiler's run that several candidates have in common: its files, and the state of what it included."""

    done: Finished
    files: Mapping[str, bytes]
    headers: Mapping[str, tuple[int, int]]

    def holds(self) -> bool:
        """Whether a run would give the same now."""
        return all(_state(path) == state for path, state in self.headers.items())


_SHARED: dict[str, tuple[threading.Lock, list[_Shared]]] = {}
_SHARED_LOCK = threading.Lock()
_MOST_SHARED = 32


def _state(path: str) -> tuple[int, int]:
    try:
        status = Path(path).stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _parted(source: str) -> tuple[str, str, str]:
    """What is compiled of a source once for several candidates, the symbol of this one, and its own constants.

    If it has no constants, it is returned whole.
    """
    common, line, constants = source.partition(f"\n{CONSTANTS} ")
    symbol, _, constants = constants.partition("\n")
    if not line:
        return source, "", ""
    return f"{common}\n".replace(symbol, _ANY), symbol, constants.replace(symbol, _ANY)


class NvccToolchain(Toolchain):
    """nvcc of the machine's toolkit, or else of the wheel `nvidia-cuda-nvcc` and its family.

    Args:
        environ: variables that choose the compiler. By default, those of this process.
        system: where the machine's toolkit is if no variable tells.
        search: folders in which wheels are looked for. By default, those that Python imports from.
    """

    name = "nvcc"
    debugging = ("-G", "-Xcompiler=-O0,-g")

    def __init__(
        self, environ: Mapping[str, str] | None = None, system: Path = SYSTEM_CUDA, search: Sequence[str] | None = None
    ) -> None:
        super().__init__(environ)
        self._system, self._search = system, search
        # Looked up once per environment, because a cache asks for them for every file that an object includes.
        self._toolkit: Toolkit | None = None
        self._cutlass: tuple[Path | None] | None = None

    def targets(self) -> tuple[Target, ...]:
        """The baseline, cuda-sm_80 to cuda-sm_120, and those with an `a`, which are for devices of one level only."""
        return CUDA_TARGETS

    def baselines(self) -> tuple[Target, ...]:
        """cuda-ptx_80: machine code of sm_80, and PTX that the driver translates for every later device."""
        return (BASELINE,)

    def native(self) -> tuple[Target, ...]:
        """The best targets of the GPUs that CUDA_VISIBLE_DEVICES leaves visible. The driver is asked once."""
        return best_targets(device.capability for device in visible_devices(self._env()).devices)

    def memory_per_job(self) -> int:
        """A CUTLASS candidate takes 3.6 GB."""
        return _MEMORY_PER_JOB

    def toolkit(self) -> Toolkit:
        """The compiler in use. Raises ToolchainError when there is none, or it is not complete."""
        if self._toolkit is None or self._environ is None:
            nvcc = find_nvcc(self._env(), self._system, self._search)
            self._toolkit = open_toolkit(nvcc.command, self._host().command()[0], self._env())
        return self._toolkit

    def origin(self) -> str:
        """Which nvcc, and why that one."""
        nvcc, real = find_nvcc(self._env(), self._system, self._search), self.toolkit().programs["nvcc"]
        program = os.path.realpath(nvcc.command[0])
        return f"{shlex.join(nvcc.command)}{f' ({real})' if real != program else ''}, {nvcc.reason}"

    def cutlass(self) -> Path | None:
        """The include folder of CUTLASS, or None if there is none."""
        if self._cutlass is None or self._environ is None:
            self._cutlass = (find_cutlass(self._env(), self._search),)
        return self._cutlass[0]

    def identity(self) -> dict[str, str]:
        """nvcc's version, the digests of its parts and of the host compiler, and the digest of CUTLASS's version."""
        toolkit, host = self.toolkit(), self._host()
        identity = {"version": toolkit.version}
        identity |= {name: program_digest(program_state(Path(p))) for name, p in sorted(toolkit.programs.items())}
        identity |= {f"host {name}": text for name, text in host.identity().items()}
        identity |= {f"host {n}": program_digest(program_state(Path(p))) for n, p in self.binutils().items()}
        cutlass = self.cutlass()
        if cutlass is not None:  # headers that an object was made from are also compared one by one
            identity["cutlass"] = program_digest(program_state(cutlass / "cutlass" / "version.h"))
        return identity

    def recipe(self, target: Target) -> dict[str, object]:
        """Flags and the variables that the compiler sees."""
        toolkit = self.toolkit()
        check_known(target, toolkit.known, toolkit.version)
        environment = key_environment(self._env()) | self._nvcc_variables()
        flags = [*toolkit.command[1:], *self._flags(target)]
        return {"flags": flags, "host added": self._host().added(), "environment": environment}

    def compile(
        self, source: str, target: Target, out: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> Object:
        """Compile in the folder of `out` under fixed relative names, so that equal sources give equal objects."""
        toolkit, folder = self.toolkit(), out.parent
        check_known(target, toolkit.known, toolkit.version)
        (folder / CUDA_SOURCE_NAME).write_text(source, encoding="utf-8")
        source, symbol, constants = _parted(source)
        with tempfile.TemporaryDirectory(dir=folder, prefix="nvcc-") as scratch:
            cutlass = self._include_flags(source, Path(scratch))
            if cutlass is None:
                return Object(status="compile-failed", log="error: no CUTLASS headers found", lasting=False)
            includes = (*option_flags(options, Path(scratch)), *cutlass)
            child = self._child(Path(scratch))
            made, rule = Path(scratch, "made.o"), Path(scratch, "candidate.d")
            if symbol:
                done = self._run_once(source, target, Path(scratch), includes, timeout, options)
            else:
                done = self._run(source, target, Path(scratch), includes, timeout)
            short = msgspec.structs.replace(done, output=cut(done.output))
            failed = failure_of(short, timeout, "nvcc", made, rule)
            if failed is not None:
                opened = self._opened(target, Path(scratch), includes) if failed.lasting else ()
                seen, whole = self._includes(source, opened, Path(scratch), options, done.output)
                lasting = failed.lasting and whole
                return msgspec.structs.replace(
                    failed,
                    log=real_places(failed.log, options),
                    includes=dict.fromkeys(seen if lasting else (), ""),
                    lasting=lasting,
                )
            functions = {name: name.replace(_ANY, symbol) for name in public_functions(made)}
            if not functions:
                log = f"error: the source defines no C function whose name ends in {', '.join(FUNCTIONS)}"
                return Object(status="compile-failed", log=log, seconds=done.seconds)
            more = [Path(scratch, "constants.o")] if symbol else []
            problem = self._define(constants, more[0], child) if symbol else ""
            prune = any("-ffunction-sections" in option for option in options.options)
            flags = {"debugging": self.debugs(options), "prune": prune}
            to, programs = Path(scratch, "local.o"), self.binutils()
            problem = problem or localize(made, to, functions, programs, child, more, **flags)
            if problem:
                return Object(status="compile-failed", log=problem, seconds=done.seconds, lasting=False)
            Path(scratch, "local.o").replace(out)
            listed = rule_files(rule, CUDA_SOURCE_NAME)
            seen, whole = self._includes(source, listed, Path(scratch), options)
            return Object(
                status="ok",
                log=short.output,
                seconds=done.seconds,
                lasting=whole,
                includes=dict.fromkeys(seen, ""),
                device=device_digest(out.read_bytes()),
                resources=kernel_resources(done.output) | {"text": object_bytes(out), "memory": done.memory},
            )

    def _run(self, source: str, target: Target, scratch: Path, includes: Sequence[str], timeout: float) -> Finished:
        """Run the compiler. The result is `made.o`, beside intermediate files."""
        (scratch / CUDA_SOURCE_NAME).write_text(source, encoding="utf-8")
        argv = [*self.toolkit().command, f"-ccbin={self._host().command()[0]}", *self._flags(target), *includes]
        argv += ["--keep", "--keep-dir", ".", "-c", CUDA_SOURCE_NAME, "-o", "made.o"]
        child = self._child(scratch)
        return run(argv, folder=scratch, environ=child, timeout=timeout, memory=_MEMORY, keep=_OUTPUT)

    def _run_once(
        self,
        source: str,
        target: Target,
        scratch: Path,
        includes: Sequence[str],
        timeout: float,
        options: CompileOptions,
    ) -> Finished:
        """As `_run`, for a source that several candidates have in common. It is compiled by the first that comes."""
        makers = (self.toolkit().command, self._flags(target), self._host().command(), self._nvcc_variables())
        key = f"{makers} {option_key(options)} {source}"
        with _SHARED_LOCK:
            lock, runs = _SHARED.setdefault(key, (threading.Lock(), []))
            while len(_SHARED) > _MOST_SHARED:
                _SHARED.pop(next(iter(_SHARED)))
        with lock:
            for run_before in runs:
                if run_before.holds():
                    for name, data in run_before.files.items():
                        (scratch / name).write_bytes(data)
                    return msgspec.structs.replace(run_before.done, seconds=0.0, busy=0.0)
            done = self._run(source, target, scratch, includes, timeout)
            kept = {n: (scratch / n).read_bytes() for n in ("made.o", "candidate.d") if (scratch / n).is_file()}
            names = rule_files(scratch / "candidate.d", CUDA_SOURCE_NAME) if "candidate.d" in kept else []
            headers = {os.path.realpath(scratch / name) for name in names}
            fails_again = done.code > 0 and "candidate.d" in kept and is_lasting(done.output)
            if not done.timed_out and (done.code == 0 or fails_again):
                runs[:] = [_Shared(done, kept, {path: _state(path) for path in headers})]
            return done

    def _define(self, constants: str, out: Path, child: Mapping[str, str]) -> str:
        """Compile constants on the host. Returns what the compiler says if that fails."""
        source = out.with_suffix(".cpp")
        source.write_text(constants)
        flags = spelled(_HOST, self._host().host())
        argv = [*self._host().command(), *flags, *baseline_flags(), "-O2", "-c", source.name, "-o", out.name]
        done = run(argv, folder=out.parent, environ=child, timeout=QUERY_SECONDS)
        return "" if done.code == 0 and not done.timed_out else f"{done.output}\nerror: {argv[0]} fails"

    def texts(
        self, source: str, target: Target, folder: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> dict[str, bytes]:
        """PTX, and SASS if cuobjdump is beside nvcc."""
        cutlass = self._include_flags(source, folder)
        if cutlass is None:
            return {}
        self._run(source, target, folder, (*option_flags(options, folder), *cutlass), timeout)
        texts = {"ptx": b"\n".join(p.read_bytes() for p in sorted(folder.glob("*.ptx")))}
        disassembler = Path(self.toolkit().programs["nvcc"]).with_name("cuobjdump")
        if disassembler.is_file() and (folder / "made.o").is_file():
            argv = [str(disassembler), "-sass", "made.o"]
            done = run(argv, folder=folder, environ=self._child(folder), timeout=timeout, keep=_LISTING)
            texts["sass"] = done.output.encode() if done.code == 0 else b""
        return {ending: text for ending, text in texts.items() if text}

    def link_shared(self, objects: Sequence[Path], out: Path, libraries: Sequence[str] = ()) -> None:
        """Link objects into a shared library that uses dlopen and the shared CUDA runtime, where that is now."""
        runtime = self.toolkit().shared_runtime()
        argv = [*self._host().command(), *LINK_FLAGS, "-o", str(out), *(str(p) for p in objects), str(runtime)]
        argv += [*link_words(libraries), f"-Wl,-rpath,{runtime.parent}", "-ldl", "-lpthread"]
        link(argv, out, self._child(out.parent))

    def link_arguments(self) -> tuple[str, ...]:
        """The static CUDA runtime and what it needs. libcuda is not part of it: it is loaded at its first use."""
        return (str(self.toolkit().static_runtime()), "-ldl", "-lpthread", "-lrt")

    def _library(self, name: str) -> str | None:
        host = self._host()._library(name)
        folder = self.toolkit().shared_runtime().parent
        return host or library_file(name, [str(folder), *map(str, sorted(folder.parent.parent.glob("*/lib")))])

    def include_folders(self) -> tuple[str, ...]:
        """The folder of the CUDA runtime's headers."""
        return (self.toolkit().include,)

    def locate(self, include: str) -> str:
        """Files of the toolkit are named cuda:..., and those of CUTLASS cutlass:....

        All others are named by their path.
        """
        prefix, colon, name = include.partition(":")
        if not colon or prefix not in ("cuda", "cutlass"):
            return include
        try:
            root = self.toolkit().include if prefix == "cuda" else self.cutlass()
        except ToolchainError:
            root = None
        return "" if root is None else str(Path(root, name))

    def _nvcc_variables(self) -> dict[str, str]:
        return {name: self._env()[name] for name in _VARIABLES if self._env().get(name)}

    def _child(self, scratch: Path) -> dict[str, str]:
        return super()._child(scratch) | self._nvcc_variables()

    def _host(self) -> CxxToolchain:
        """The host compiler: CUDAHOSTCXX, NVCC_CCBIN or CXX without a launcher before it, or else g++."""
        environ = dict(self._env())
        named = next((environ[n] for n in ("CUDAHOSTCXX", "NVCC_CCBIN", "CXX") if environ.get(n)), "")
        if shutil.which(named, path=environ.get("PATH")) is None:
            words = named.split()
            while len(words) > 1 and Path(words[0]).name in _LAUNCHERS:
                del words[0]
            named = words[0] if words else ""
        return CxxToolchain(environ | {"CXX": named})

    def binutils(self) -> dict[str, str]:
        """The host linker and objcopy, by name."""
        return binutils(self._host().host())

    def _flags(self, target: Target) -> tuple[str, ...]:
        host = (f"-Xcompiler={flag}" for flag in (*spelled(_HOST, self._host().host()), *baseline_flags()))
        return (*FLAGS, *host, *code_flags(target))

    def _include_flags(self, source: str, scratch: Path) -> tuple[str, ...] | None:
        """Where CUTLASS is, if the source asks for it. It is passed as a link, so that no path gets into the object."""
        if _CUTLASS.search(source) is None:
            return ()
        cutlass = self.cutlass()
        if cutlass is None:
            return None
        (scratch / "cutlass-include").symlink_to(cutlass)
        return ("-I", "cutlass-include")

    def _includes(
        self, source: str, listed: Sequence[str], scratch: Path, options: CompileOptions, log: str = ""
    ) -> tuple[tuple[str, ...], bool]:
        """Names of the files that a source depends on, without itself, and whether they are all.

        Those of `listed` may be relative to `scratch`.
        """
        opened = [real_include(name, options) for name in listed]
        paths = {name: str(scratch / name) for name in opened}
        folders = (*map(str, options.include_directories), *self._host().search_folders())
        words = [*self.toolkit().command[1:], *(w for v in self._nvcc_variables().values() for w in shlex.split(v))]
        files, whole = option_files((*words, *options.options))
        given = (*words, *(f"-D{d}" for d in options.defined()), *options.options)
        beside = sought(source, paths.values(), folders, log, given)
        names = [os.path.relpath(p, scratch) if p.startswith(f"{scratch}/") else p for p in beside.paths]
        whole &= beside.whole and not beside.assembles
        return self._include_names([*opened, *names, *files], self.toolkit()), whole

    def _opened(self, target: Target, scratch: Path, includes: Sequence[str]) -> list[str]:
        """What a source includes that does not compile. A compiler lists this itself, unless a header is at fault."""
        rule = scratch / "candidate.d"
        if listed := rule_files(rule, CUDA_SOURCE_NAME) if rule.is_file() else []:
            return listed
        flags = [flag for flag in self._flags(target) if flag not in _RULE]  # those flags are not for -E
        argv = [*self.toolkit().command, f"-ccbin={self._host().command()[0]}", *flags, *includes]
        argv += ["-E", "-Xcompiler=-H", CUDA_SOURCE_NAME, "-o", os.devnull]
        done = run(argv, folder=scratch, environ=self._child(scratch), timeout=QUERY_SECONDS, keep=_OUTPUT)
        return opened_files(done.output)

    def _include_names(self, files: Sequence[str], toolkit: Toolkit) -> tuple[str, ...]:
        names = set()
        for file in files:
            real = os.path.normpath(file)
            if real.startswith("cutlass-include/"):
                names.add("cutlass:" + real.removeprefix("cutlass-include/"))
            elif (real := os.path.realpath(file)).startswith(toolkit.include + "/"):
                names.add("cuda:" + real.removeprefix(toolkit.include + "/"))
            else:
                names.add(real)
        return tuple(sorted(names))
