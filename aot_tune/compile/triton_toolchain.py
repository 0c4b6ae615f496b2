"""Triton: functions are compiled for GPUs of NVIDIA and AMD, without such a GPU, and embedded with their launchers.

The C++ compiler makes a candidate's object from its image, `kernel.h` and its launcher. Launchers call functions that
every family of devices has in one object, made when the first launcher is linked.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from aot_tune.compile.cxx import CxxToolchain
from aot_tune.compile.device_targets import BASELINE, CUDA_TARGETS, EIGHT_BIT_BASELINE, fits
from aot_tune.compile.diagnostics import SOURCE_NAME, first_error, is_lasting
from aot_tune.compile.object_files import KERNEL_IMAGE, device_digest, failure_of, object_bytes
from aot_tune.compile.programs import (
    BUSY_SHARE,
    CXX_ADDRESS_SPACE,
    NO_LTO,
    QUERY_SECONDS,
    Compiler,
    baseline_flags,
    cut,
    program_digest,
    program_state,
    rule_files,
    spelled,
)
from aot_tune.compile.toolchain import NO_OPTIONS, Object, Toolchain
from aot_tune.render.environment import text_templates
from aot_tune.render.template_functions import CPP
from aot_tune.render.triton.recipe import read_recipes
from aot_tune.spec import CompileOptions, Target
from aot_tune.support.errors import ToolchainError
from aot_tune.support.installed_paths import RUNTIME
from aot_tune.support.run_program import Finished, compiler_environment, key_environment, run
from aot_tune.support.storage import scratch_folder
from aot_tune.triton.absent_devices import DEVICES, target_of
from aot_tune.triton.ask_declarations import template_roots
from aot_tune.triton.compile_pool import CompilerDiedError, CompilerSetup, TimedOutError, pool
from aot_tune.triton.installed import find_triton
from aot_tune.triton.triton_messages import CompileRequest, Image

LAUNCHER = RUNTIME / "triton"
"""The folder of the headers that launchers include, and of the functions that they call."""
FUNCTIONS = {"cuda": LAUNCHER / "cuda.cpp", "hip": LAUNCHER / "hip.cpp"}
"""The source for each family. CMake links a library with the same source."""
HEADER = "kernel.h"
_LAUNCHER_FLAGS = (
    "-std=c++17",
    "-O1",  # -O2 takes a third longer, and saves 2 of the 10 ns that a launcher takes
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",  # nothing throws, and such tables would make every launcher larger
    "-fno-gnu-unique",
    "-frandom-seed=candidate",
    "-fmax-errors=5",
    "-fdiagnostics-color=never",
    "-fno-diagnostics-show-caret",
    "-pipe",
)
_FUNCTION_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-gnu-unique",
)
_MEMORY_PER_JOB = 3 << 29
_PROGRAMS = (
    "_C/libtriton.so",
    "backends/nvidia/bin/ptxas",
    "backends/nvidia/bin/ptxas-blackwell",
    "backends/nvidia/lib/libdevice.10.bc",
    "backends/amd/lib/libtriton_amd_codegen.so",
    "backends/amd/lib/ocml.bc",
    "backends/amd/lib/ockl.bc",
)
_RESOURCES = 2
"""Raised when more is reported about the resources of code. Then older objects are made again."""
_TENSOR_MEMORY = 512
"""The columns of tensor memory of a multiprocessor of sm_100."""
_TEMPLATES = text_templates(CPP)
_lock = threading.Lock()
_made: dict[tuple[str, ...], Path] = {}
_folders: list[tempfile.TemporaryDirectory[str]] = []


def _hip(arch: str) -> Target:
    # gfx942 is 9, 4, 2 in base 16. A device only runs code of its own architecture.
    level = int(arch.removeprefix("gfx"), 16)
    shared = DEVICES[arch].shared
    facts = {"capability": 0, "shared_bytes": shared, "wgmma": 0, "arch_specific": 1, "warp_size": 64}
    return Target(name=f"hip-{arch}", family="hip", level=level, last=level, facts=facts)


HIP_TARGETS = tuple(_hip(arch) for arch in DEVICES if arch.startswith("gfx"))


def _supported(target: Target) -> bool:
    return target.name not in ("cuda-sm_100", "cuda-sm_120")


class TritonToolchain(Toolchain):
    """The Triton that this process can import, and the C++ compiler for launchers.

    Args:
        environ: variables that choose the C++ compiler, and `AOT_TUNE_TEMPLATE_ROOTS`. By default, this process's.
        search: folders to import from. By default, those that this process imports from.
    """

    name = "triton"

    def __init__(self, environ: Mapping[str, str] | None = None, search: Sequence[str] | None = None) -> None:
        super().__init__(environ)
        self._search = search

    def targets(self) -> tuple[Target, ...]:
        """The CUDA compiler's targets on whose devices all Triton code can run, and three of AMD.

        cuda-ptx_89 is for generic kernels with f8e4m3 instructions.
        """
        return (*(t for t in CUDA_TARGETS if _supported(t)), EIGHT_BIT_BASELINE, *HIP_TARGETS)

    def baselines(self) -> tuple[Target, ...]:
        """cuda-ptx_80, whose PTX of sm_80 the driver translates for every later device, and each target of AMD."""
        return (BASELINE, *HIP_TARGETS)

    def identity(self) -> dict[str, str]:
        """Triton's version, the digests of its compilers and its Python code, and the C++ compiler's identity."""
        installed = find_triton(self._search)
        programs = {Path(p).name: installed.folder / p for p in _PROGRAMS if (installed.folder / p).is_file()}
        identity = {"version": installed.version, "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
        identity |= {name: program_digest(program_state(path)) for name, path in sorted(programs.items())}
        identity["library"] = _library_digest(installed.folder)
        return identity | {f"host {name}": text for name, text in self._cxx().identity().items()}

    def memory_per_job(self) -> int:
        """A worker that has loaded torch holds 0.7 GB. A large kernel takes as much again."""
        return _MEMORY_PER_JOB

    def recipe(self, target: Target) -> dict[str, object]:
        """The architecture, the launcher's flags, and the variables that compilers see."""
        arch, virtual = target_of(target.name)
        flags = [*self._cxx().command()[1:], *spelled(host_flags(), self._cxx().host())]
        environment, added = key_environment(self._env()), self._cxx().added()
        return {
            "arch": arch,
            "virtual": virtual,
            "flags": flags,
            "added": added,
            "environment": environment,
            "resources": _RESOURCES,
        }

    def compile(
        self,
        source: str,
        target: Target,
        out: Path,
        timeout: float,
        options: CompileOptions = NO_OPTIONS,  # noqa: ARG002 - declarations refuse them
    ) -> Object:
        """Compile the functions that a source names, write `kernel.bin` and `kernel.h`, and compile the launcher."""
        began = time.monotonic()
        try:
            recipes = read_recipes(source)
        except ValueError as error:
            return Object(status="compile-failed", log=f"error: {error}")
        target_of(target.name)
        images, most = [], 0
        for number, recipe in enumerate(recipes):
            request = CompileRequest(recipe=recipe, image=str(out.parent.resolve() / image_name(number)))
            left = timeout - (time.monotonic() - began)
            try:
                reply, memory = pool().compile(self._setup(target), request, left)
            except CompilerDiedError as error:
                return _failed(f"error: compiling {recipe.function}: {error}", began, lasting=False)
            except TimedOutError as error:
                log = f"error: Triton took longer than {timeout:g} s for {recipe.function}"
                lasting = error.busy > BUSY_SHARE * left
                return Object(status="timeout", log=log, seconds=time.monotonic() - began, lasting=lasting)
            if reply.image is None:
                return _failed(
                    f"{reply.error}\n{reply.log}".strip(), began, lasting=reply.lasting and is_lasting(reply.error)
                )
            unfit = _unfit(target, reply.image)
            if unfit:
                return _failed(f"error: {recipe.function} needs {unfit}", began, lasting=True)
            images.append(reply.image)
            most = max(most, memory)
        left = timeout - (time.monotonic() - began)
        return self._embed(source, images, out, left, began, most)

    def texts(
        self,
        source: str,
        target: Target,
        folder: Path,
        timeout: float,
        options: CompileOptions = NO_OPTIONS,  # noqa: ARG002 - declarations refuse them
    ) -> dict[str, bytes]:
        """TTGIR, and PTX or AMD's assembly."""
        texts: dict[str, bytes] = {}
        for number, recipe in enumerate(read_recipes(source)):
            request = CompileRequest(recipe=recipe, image=str(folder.resolve() / image_name(number)), texts=True)
            try:
                reply, _ = pool().compile(self._setup(target), request, timeout)
            except (CompilerDiedError, TimedOutError):
                return {}
            for name, text in reply.texts.items():
                texts[name] = texts.get(name, b"") + text.encode()
        return texts

    def _setup(self, target: Target) -> CompilerSetup:
        search = sys.path if self._search is None else self._search
        return CompilerSetup.of(target.name, template_roots(self._env()), search, self._env())

    def link_shared(self, objects: Sequence[Path], out: Path, libraries: Sequence[str] = ()) -> None:  # noqa: ARG002
        """Link objects into a shared library for the benchmark. It finds drivers when it runs."""
        cxx = self._cxx()
        called = functions_of(objects, cxx.host(), self._env())
        cxx.link_shared([*objects, *called, *(Path(word) for word in self.link_arguments())], out)

    def link_arguments(self) -> tuple[str, ...]:
        """dlopen and mutexes, which are separate libraries in older C libraries."""
        return ("-ldl", "-lpthread")

    def locate(self, include: str) -> str:
        """Headers of launchers are named launcher:..., and all others by their path."""
        prefix, colon, name = include.partition(":")
        return str(LAUNCHER / name) if colon and prefix == "launcher" else include

    def _embed(
        self, source: str, images: Sequence[Image], out: Path, timeout: float, began: float, memory: int
    ) -> Object:
        """Compile the launcher with the images in it."""
        done = compile_launcher(self._cxx().host(), source, images, out, self._child(out.parent), timeout)
        if done.timed_out:
            log = f"{done.output}\nerror: the C++ compiler took too long for the launcher"
            return Object(status="timeout", log=log, seconds=time.monotonic() - began, lasting=False)
        rule = out.parent / "candidate.d"
        failed = failure_of(done, timeout, "the compiler", out, rule)
        if failed is not None:
            return msgspec.structs.replace(failed, seconds=time.monotonic() - began)
        shared = max(i.shared for i in images)
        resources = {n: max(getattr(i, n) for i in images) for n in ("registers", "spill_bytes")}
        resources = {name: count for name, count in resources.items() if count >= 0}
        text = object_bytes(out) + sum(i.size for i in images)
        return Object(
            status="ok",
            log=done.output,
            seconds=time.monotonic() - began,
            includes=dict.fromkeys(_includes(rule), ""),
            device=device_digest(out.read_bytes()),
            resources=resources
            | {"shared": shared, "dynamic_shared": shared, "text": text, "memory": max(memory, done.memory)},
        )

    def _cxx(self) -> CxxToolchain:
        return CxxToolchain(self._env())


def _failed(log: str, began: float, *, lasting: bool) -> Object:
    return Object(status="compile-failed", log=cut(log), seconds=time.monotonic() - began, lasting=lasting)


def _unfit(target: Target, image: Image) -> str:
    """What a block needs and a target does not have, or empty."""
    if image.tensor_memory > _TENSOR_MEMORY:
        return f"{image.tensor_memory} columns of tensor memory, {target.name} has {_TENSOR_MEMORY}"
    registers = max(image.registers, 0) if target.family == "cuda" else 0
    return fits(target, image.shared, image.warps * image.warp_size, registers)


def _includes(rule: Path) -> tuple[str, ...]:
    """Files that a launcher includes, without those that were made for it."""
    names = set()
    for file in rule_files(rule, "candidate.cpp"):
        real = Path(os.path.realpath(rule.parent / file))
        if real == rule.parent.resolve() / HEADER:
            continue
        names.add(f"launcher:{real.relative_to(LAUNCHER)}" if real.is_relative_to(LAUNCHER) else str(real))
    return tuple(sorted(names))


@cache
def _library_digest(folder: Path) -> str:
    """Digest of Triton's Python: its language, the order of its compiler passes, and the library that kernels call."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0{program_digest(program_state(path))}\n".encode())
    return digest.hexdigest()


def image_name(number: int) -> str:
    """The file with the image of a candidate's function, counted from 0."""
    return f"kernel_{number + 1}.bin" if number else "kernel.bin"


def kernel_header(images: Sequence[Image]) -> str:
    """The text of `kernel.h`, to follow `launch.h`: what the launcher must know of the images, and they themselves."""
    return _TEMPLATES.get_template("triton_kernel.h.j2").render(
        images=[(f"_{n + 1}" if n else "", image_name(n), image) for n, image in enumerate(images)],
        section=KERNEL_IMAGE,
    )


def host_flags() -> tuple[str, ...]:
    """Flags that compile launchers for every CPU of this machine's kind."""
    return (*_LAUNCHER_FLAGS, *baseline_flags())


def compile_launcher(
    host: Compiler, source: str, images: Sequence[Image], out: Path, environ: Mapping[str, str], timeout: float
) -> Finished:
    """Compile a launcher in the folder of `out`, which holds the images, under fixed names."""
    folder, began = out.parent, time.monotonic()
    (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
    (folder / HEADER).write_text(kernel_header(images))
    argv = [*host.command, *spelled(host_flags(), host), NO_LTO, "-I", ".", "-I", str(LAUNCHER)]
    argv += ["-MD", "-MF", "candidate.d", "-c", SOURCE_NAME, "-o", out.name]
    left = max(1.0, timeout - (time.monotonic() - began))
    return run(argv, folder=folder, environ=environ, timeout=left, memory=CXX_ADDRESS_SPACE)


def functions_of(objects: Sequence[Path], host: Compiler, environ: Mapping[str, str]) -> list[Path]:
    """What launchers among `objects` are linked with, compiled by `host`. Raises ToolchainError if it fails."""
    held = [path.read_bytes() for path in objects]
    wanted = [f for f in FUNCTIONS if any(f"_ZN8launcher{len(f)}{f}".encode() in data for data in held)]
    with _lock:
        return [_function_object(family, host, environ) for family in wanted]


def _function_object(family: str, host: Compiler, environ: Mapping[str, str]) -> Path:
    key = (family, *host.command, str(key_environment(environ)))
    if key not in _made:
        if not _folders:
            _folders.append(scratch_folder())
            atexit.register(_folders[0].cleanup)
        folder = Path(_folders[0].name)
        out = folder / f"{len(_made)}_{family}.o"
        argv = [*host.command, *spelled(_FUNCTION_FLAGS, host), "-I", str(LAUNCHER.parent / "include")]
        argv += ["-c", str(FUNCTIONS[family]), "-o", str(out)]
        done = run(argv, folder=folder, environ=compiler_environment(environ, folder), timeout=QUERY_SECONDS)
        if done.code != 0 or done.timed_out:
            raise ToolchainError(
                f"the functions of Triton launchers do not compile: {first_error(done.output)}", why=" ".join(argv)
            )
        _made[key] = out
    return _made[key]
