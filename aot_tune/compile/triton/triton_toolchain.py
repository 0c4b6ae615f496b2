"""Triton: functions are compiled for GPUs of NVIDIA and AMD, without such a GPU, and embedded with their launchers."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from aot_tune.compile.cuda.gpu_targets import BASELINE, EIGHT_BIT_BASELINE, TARGETS, fits
from aot_tune.compile.cxx import CxxToolchain
from aot_tune.compile.diagnostics import is_lasting
from aot_tune.compile.object_records import CompileOutcome
from aot_tune.compile.programs import (
    BUSY_SHARE,
    cut,
    failure_of,
    object_bytes,
    program_digest,
    program_state,
    rule_files,
)
from aot_tune.compile.toolchain import NO_OPTIONS, Toolchain, toolchain_for
from aot_tune.compile.triton.compile_pool import CompilerDiedError, CompilerSetup, TimedOutError, pool
from aot_tune.compile.triton.launcher_functions import functions_of
from aot_tune.compile.triton.launcher_objects import HEADER, IMAGE, LAUNCHER, compile_launcher, host_flags
from aot_tune.render.triton.recipe import read_recipe
from aot_tune.spec import CompileOptions, Target
from aot_tune.support.run_program import key_environment
from aot_tune.triton.absent_devices import DEVICES, target_of
from aot_tune.triton.client import template_roots
from aot_tune.triton.installed import Installed, find_triton
from aot_tune.triton.triton_messages import CompileRequest, Image

__all__ = ["HIP_TARGETS", "TOOLCHAIN", "TritonToolchain"]

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
_TENSOR_MEMORY = 512
"""The columns of tensor memory of a multiprocessor of sm_100."""


_RESOURCES = 2
"""Raised when more is reported about the resources of code. Then older objects are made again."""


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

    def configured(self, environ: Mapping[str, str]) -> TritonToolchain:
        """The same toolchain with the C++ compiler that CXX of `environ` names."""
        return TritonToolchain(dict(environ), self._search)

    def targets(self) -> tuple[Target, ...]:
        """The CUDA compiler's targets on whose devices all Triton code can run, and three of AMD.

        cuda-ptx_89 is for generic kernels with f8e4m3 instructions.
        """
        return (*(t for t in TARGETS if _supported(t)), EIGHT_BIT_BASELINE, *HIP_TARGETS)

    def baselines(self) -> tuple[Target, ...]:
        """cuda-ptx_80, whose PTX of sm_80 the driver translates for every later device, and each target of AMD."""
        return (BASELINE, *HIP_TARGETS)

    def native(self) -> tuple[Target, ...]:
        """The CUDA compiler's. No AMD device is looked for."""
        cuda: Toolchain = toolchain_for("nvcc", self._env())
        return tuple(t for t in cuda.native() if _supported(t))

    def identity(self) -> dict[str, str]:
        """Triton's version, the digests of its compilers and its Python code, and the C++ compiler's identity."""
        found = self._installed()
        programs = {Path(p).name: found.folder / p for p in _PROGRAMS if (found.folder / p).is_file()}
        identity = {"version": found.version, "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
        identity |= {name: program_digest(program_state(path)) for name, path in sorted(programs.items())}
        identity["library"] = _library_digest(found.folder)
        return identity | {f"host {name}": text for name, text in self._cxx().identity().items()}

    def memory_per_job(self) -> int:
        """A worker that has loaded torch holds 0.7 GB. A large kernel takes as much again."""
        return _MEMORY_PER_JOB

    def recipe(self, target: Target) -> dict[str, object]:
        """The architecture, the launcher's flags, and the variables that compilers see."""
        arch, virtual = target_of(target.name)
        flags = [*self._cxx().command()[1:], *host_flags()]
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
    ) -> CompileOutcome:
        """Compile the function that a source names, write `kernel.bin` and `kernel.h`, and compile the launcher."""
        began = time.monotonic()
        try:
            recipe = read_recipe(source)
        except ValueError as error:
            return CompileOutcome(status="compile-failed", log=f"error: {error}")
        target_of(target.name)
        request = CompileRequest(recipe=recipe, image=str(out.parent.resolve() / IMAGE))
        try:
            reply, memory = pool().compile(self._setup(target), request, timeout)
        except CompilerDiedError as error:
            return _failed(f"error: compiling {recipe.function}: {error}", began, lasting=False)
        except TimedOutError as error:
            log = f"error: Triton took longer than {timeout:g} s for {recipe.function}"
            lasting = error.busy > BUSY_SHARE * timeout
            return CompileOutcome(status="timeout", log=log, seconds=time.monotonic() - began, lasting=lasting)
        if reply.image is None:
            return _failed(
                f"{reply.error}\n{reply.log}".strip(), began, lasting=reply.lasting and is_lasting(reply.error)
            )
        unfit = _unfit(target, reply.image)
        if unfit:
            return _failed(f"error: {recipe.function} needs {unfit}", began, lasting=True)
        left = timeout - (time.monotonic() - began)
        return self._embed(source, reply.image, out, left, began, memory)

    def texts(
        self,
        source: str,
        target: Target,
        folder: Path,
        timeout: float,
        options: CompileOptions = NO_OPTIONS,  # noqa: ARG002 - declarations refuse them
    ) -> dict[str, bytes]:
        """TTGIR, and PTX or AMD's assembly."""
        request = CompileRequest(recipe=read_recipe(source), image=str(folder.resolve() / IMAGE), texts=True)
        try:
            reply, _ = pool().compile(self._setup(target), request, timeout)
        except (CompilerDiedError, TimedOutError):
            return {}
        return {name: text.encode() for name, text in reply.texts.items()}

    def _setup(self, target: Target) -> CompilerSetup:
        search = sys.path if self._search is None else self._search
        return CompilerSetup.of(target.name, template_roots(self._env()), search, self._env())

    def link_shared(self, objects: Sequence[Path], out: Path, libraries: Sequence[str] = ()) -> None:  # noqa: ARG002
        """Link objects into a shared library for the benchmark. It finds drivers when it runs."""
        cxx = self._cxx()
        called = functions_of(objects, cxx.command(), self._env())
        cxx.link_shared([*objects, *called, *(Path(word) for word in self.link_arguments())], out)

    def link_arguments(self) -> tuple[str, ...]:
        """dlopen and mutexes, which are separate libraries in older C libraries."""
        return ("-ldl", "-lpthread")

    def locate(self, include: str) -> str:
        """Headers of launchers are named launcher:..., and all others by their path."""
        place, colon, name = include.partition(":")
        return str(LAUNCHER / name) if colon and place == "launcher" else include

    def _embed(self, source: str, image: Image, out: Path, timeout: float, began: float, memory: int) -> CompileOutcome:
        """Compile the launcher with the image in it."""
        done = compile_launcher(self._cxx().command(), source, image, out, self._child(out.parent), timeout)
        if done.timed_out:
            log = f"{done.output}\nerror: the C++ compiler took too long for the launcher"
            return CompileOutcome(status="timeout", log=log, seconds=time.monotonic() - began, lasting=False)
        rule = out.parent / "candidate.d"
        failed = failure_of(done, timeout, "the compiler", out, rule)
        if failed is not None:
            return msgspec.structs.replace(failed, seconds=time.monotonic() - began)
        resources = {"registers": image.registers, "spill_bytes": image.spill_bytes}
        resources = {name: count for name, count in resources.items() if count >= 0}
        text = object_bytes(out) + image.size
        return CompileOutcome(
            status="ok",
            log=done.output,
            seconds=time.monotonic() - began,
            includes=_includes(rule),
            device=hashlib.sha256((out.parent / IMAGE).read_bytes()).hexdigest(),
            resources=resources
            | {
                "shared": image.shared,
                "dynamic_shared": image.shared,
                "text": text,
                "memory": max(memory, done.memory),
            },
        )

    def _cxx(self) -> CxxToolchain:
        return CxxToolchain(self._env())

    def _installed(self) -> Installed:
        return find_triton(self._search)


def _failed(log: str, began: float, *, lasting: bool) -> CompileOutcome:
    return CompileOutcome(status="compile-failed", log=cut(log), seconds=time.monotonic() - began, lasting=lasting)


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


TOOLCHAIN = TritonToolchain()
