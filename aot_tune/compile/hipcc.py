"""The compiler of HIP C++ for AMD's GPUs, where hipcc is installed. Nothing that it made ran on a card."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from aot_tune.compile.cxx import CxxToolchain
from aot_tune.compile.diagnostics import SOURCE_NAME, first_error
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
    QUERY_SECONDS,
    Compiler,
    ask,
    baseline_flags,
    named_command,
    option_flags,
    program_digest,
    program_of,
    program_state,
    rule_files,
)
from aot_tune.compile.toolchain import NO_OPTIONS, Object
from aot_tune.compile.triton_toolchain import HIP_TARGETS
from aot_tune.spec import CompileOptions, Target
from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import key_environment, run

FLAGS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-fuse-cuid=none",  # else names in the object depend on its folder
    "-w",
    "-fdiagnostics-format=clang",
    "-fno-color-diagnostics",
    "-fno-caret-diagnostics",
    *baseline_flags(),
)
_VERSION = re.compile(r"HIP version: \S+|clang version \S+")
_FIX = "install hipcc (`apt-get install hipcc`, or AMD's ROCm), set HIPCC to it, or leave the hip targets out"


class HipccToolchain(CxxToolchain):
    """hipcc, or what HIPCC names. The library's runtime finds libamdhip64 at a call, so none is needed to build."""

    name = "hipcc"

    def targets(self) -> tuple[Target, ...]:
        """Triton's targets of AMD, as far as this hipcc knows them."""
        return HIP_TARGETS

    def baselines(self) -> tuple[Target, ...]:
        """All: a device runs the code of its architecture alone."""
        return HIP_TARGETS

    def native(self) -> tuple[Target, ...]:
        """None. No AMD device is looked for."""
        return ()

    def left_out(self) -> str:
        """Nothing is looked for."""
        return ""

    def command(self) -> list[str]:
        """The compiler and the arguments that always come before ours. Raises ToolchainError when there is none."""
        env = self._env()
        named = env.get("HIPCC", "")
        homes = (str(Path(env[n], "bin/hipcc")) for n in ("HIP_PATH", "ROCM_PATH") if env.get(n))
        for name in (named,) if named else (*homes, "hipcc", "/opt/rocm/bin/hipcc"):
            if (command := named_command(name, env.get("PATH"))) is not None:
                return command
        what = f"HIPCC={named!r} is not a program" if named else "no hipcc found: not on PATH, nor in /opt/rocm"
        raise ToolchainError(what, why="kernels of HIP C++ are compiled when the library is built", fix=_FIX)

    def identity(self) -> dict[str, str]:
        """What it says of its version, and the digests of its script, of its clang and of the host's binutils."""
        host = self.host()
        said = _VERSION.findall(ask(host, "--version", fix=_FIX))  # beside it, it may complain that there is no device
        identity = {"version": ", ".join(said), "driver": program_digest(host.state)}
        if clang := program_of(host, "clang"):
            identity["clang"] = program_digest(program_state(Path(clang)))
        return identity | {f"host {n}": program_digest(program_state(Path(p))) for n, p in self._binutils().items()}

    def recipe(self, target: Target) -> dict[str, object]:
        """Flags and the variables that the compiler sees."""
        host, arch = self.host(), target.name.removeprefix("hip-")
        if problem := _refusal(arch, host):
            raise ToolchainError(
                f"{host.command[0]} cannot compile for {target.name}: {problem}",
                fix=f"install a newer ROCm, or leave {target.name} out of AOT_TUNE_TARGETS",
            )
        return {"flags": [*host.command[1:], *_flags(target)], "environment": key_environment(self._env())}

    def compile(
        self, source: str, target: Target, out: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> Object:
        """Compile in the folder of `out` under a fixed file name."""
        folder, made = out.parent, out.with_name("made.o")
        (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
        flags = (*_flags(target), *option_flags(options, folder))
        argv = [*self.command(), *flags, f"-ffile-prefix-map={folder}=.", "-MD", "-MF", "candidate.d"]
        argv += ["-x", "hip", "-c", SOURCE_NAME, "-o", made.name]
        done, rule = run(argv, folder=folder, environ=self._child(folder), timeout=timeout), folder / "candidate.d"
        if (failed := failure_of(done, timeout, "hipcc", made, rule)) is not None:
            return self._with_includes(failed, source, (*flags, "--cuda-host-only", "-x", "hip"), folder, options)
        functions = {name: name for name in public_functions(made)}
        if not functions:
            log = f"error: the source defines no C function whose name ends in {', '.join(FUNCTIONS)}"
            return Object(status="compile-failed", log=log, seconds=done.seconds)
        child, debugging = self._child(folder), self.debugs(options)
        if problem := localize(made, out, functions, self._binutils(), child, debugging=debugging):
            return Object(status="compile-failed", log=problem, seconds=done.seconds, lasting=False)
        seen, whole = self._includes(source, rule_files(rule, SOURCE_NAME), options)
        return Object(
            status="ok",
            log=done.output,
            seconds=done.seconds,
            lasting=whole,
            includes=dict.fromkeys(seen, ""),
            device=device_digest(out.read_bytes()),
            resources={"text": object_bytes(out), "memory": done.memory},
        )

    def texts(
        self, source: str, target: Target, folder: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> dict[str, bytes]:
        """The device's assembly."""
        flags = (*_flags(target), *option_flags(options, folder), "--cuda-device-only", "-x", "hip")
        return self._assembly(source, flags, folder, timeout)

    def link_shared(self, objects: Sequence[Path], out: Path, libraries: Sequence[str] = ()) -> None:  # noqa: ARG002
        """Nothing is measured on AMD's devices, so nothing is linked for the benchmark."""
        raise ToolchainError(f"cannot link {out.name}: nothing is measured on AMD's devices")

    def _binutils(self) -> dict[str, str]:
        return binutils(CxxToolchain(self._env()).host())


def _flags(target: Target) -> tuple[str, ...]:
    return (*FLAGS, f"--offload-arch={target.name.removeprefix('hip-')}")


@cache
def _refusal(arch: str, host: Compiler) -> str:
    """What a compiler says of an architecture that it does not know, or empty."""
    argv = [*host.command, f"--offload-arch={arch}", "-nogpuinc", "-E", "-x", "hip", os.devnull, "-o", os.devnull]
    done = run(argv, folder=Path(tempfile.gettempdir()), environ=dict(host.environ), timeout=QUERY_SECONDS)
    return first_error(done.output) if done.code else ""
