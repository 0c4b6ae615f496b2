"""What a compiler must offer, and how the modules of this folder that offer it are found."""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from aot_tune.spec import CompileOptions, Target
from aot_tune.support.errors import ToolchainError, did_you_mean
from aot_tune.support.run_program import compiler_environment

CompileStatus = Literal["ok", "compile-failed", "timeout"]
NO_OPTIONS = CompileOptions()
_OF_CODE = ("registers", "spill_bytes", "shared", "dynamic_shared", "stack")
"""Resources that depend on the code only, not on where and when it was compiled."""
MEMORY_PER_COMPILE = 1 << 30
_FOREIGN = re.compile(r"(?:cuda-?)?(?:sm|compute)?_?(\d+)\.?(\d)([a-z]?)(?:-real|-virtual|\+ptx)?")


class Object(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A compiled candidate. A compiler run fills in what it knows, the cache the rest.

    The cache's `object.json` holds all of it but the key, the path, `cached` and `lasting`.

    Args:
        key: digest of everything that decides what the compiler makes. It is the name of the cache entry.
        path: the object file. Empty unless `status` is ok.
        digest: SHA-256 of the object file. Empty unless `status` is ok.
        device: digest of what a GPU runs of it: its device code, or the name of the library that it calls. It does not
            depend on the host compiler. Empty on a CPU, where only the whole object counts.
        symbol: its functions are `<symbol>_workspace` and `<symbol>_launch`.
        source: the digest of the rendered source.
        target: name of the target.
        error: the first line that matters, with the template's file and line.
        log: the compiler's output, cut in the middle when it is long. The cache keeps it only if it failed.
        seconds: how long the compiler ran, at most `timeout`.
        cached: whether nothing had to be compiled.
        lasting: the same input would end the same way again. A run that lost its memory, disk or time to something
            else is not lasting, nor is one that may have read files that nobody names. It is never cached.
        includes: the digests of the files that were read beside the source, under names that `Toolchain.locate` knows.
            They are empty for files that were looked for but missing, and until the cache has read the files.
        resources: bytes: `text` of the object, `stack` of its deepest function, `memory` at the compiler's peak. For a
            GPU they are of the worst kernel, and also have `registers` of a thread (a count), `spill_bytes`, and
            `shared`, as far as the compiler knows it. What a launch adds is only known of Triton's kernels. It is
            `dynamic_shared`, a part of `shared`.
    """

    key: str = ""
    path: str = ""
    digest: str = ""
    symbol: str = ""
    source: str = ""
    target: str = ""
    status: CompileStatus
    device: str = ""
    error: str = ""
    log: str = ""
    seconds: float = 0.0
    timeout: float = 0.0
    resources: dict[str, int] = {}
    cached: bool = False
    lasting: bool = True
    includes: dict[str, str] = {}

    @property
    def code(self) -> str:
        """What its measurements are of. See `measured_code`."""
        return measured_code(self.source, self.digest, self.device)

    @property
    def code_resources(self) -> dict[str, int]:
        """The resources that depend on its code only; empty if it did not compile."""
        return {n: self.resources[n] for n in _OF_CODE if n in self.resources} if self.status == "ok" else {}


def measured_code(source: str, digest: str, device: str) -> str:
    """What a measurement of an object is of: on a CPU the whole object, on a GPU its device code and its source.

    The source contains what launches the device code. The host compiler does not matter, since it changes nothing that
    is measured.

    Args:
        source, digest, device: as in `Object`. Empty if there is none.
    """
    return hashlib.sha256(f"{source}\0{device}".encode()).hexdigest() if device else digest


class Toolchain(ABC):
    """A backend's compiler. A module of this folder offers one, or several, as its `TOOLCHAIN`. Nothing else names it.

    Args:
        environ: variables that choose the compiler. By default, those of this process.
    """

    name: str
    """The backend that kernels name."""
    only_calls = False
    """Whether what it compiles calls a vendor's library, which has the code for the device."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ

    @abstractmethod
    def configured(self, environ: Mapping[str, str]) -> Toolchain:
        """The toolchain that another environment chooses (for C++: by CXX)."""

    @abstractmethod
    def targets(self) -> tuple[Target, ...]:
        """All targets, by level."""

    @abstractmethod
    def baselines(self) -> tuple[Target, ...]:
        """What generic variants are compiled for: one target for all devices of a family, if that is possible.

        Code that only runs on one architecture has a baseline for each. `generic_targets` gives those of a library.
        """

    @abstractmethod
    def native(self) -> tuple[Target, ...]:
        """Targets that run on this machine, by level. The last is the best. Empty if there is no such device."""

    def left_out(self) -> str:
        """Why `native` is less than what this machine's devices have. Empty if it is not."""
        return ""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Version and content digests of the programs that make objects. No paths.

        Raises:
            ToolchainError: when there is no compiler. It says how to point to one.
        """

    def origin(self) -> str:
        """Where the compiler is and why it was chosen, for people. Empty if there was no choice."""
        return ""

    def device_identity(self, identity: Mapping[str, str]) -> dict[str, str]:
        """The part of an `identity` that decides `Object.device`.

        What the host's C++ compiler adds is not in it.
        """
        return {name: text for name, text in identity.items() if not name.startswith("host ")}

    def memory_per_job(self) -> int:
        """Bytes that one compiler run may need. They limit how many run at a time. g++ takes 400 MB at most."""
        return MEMORY_PER_COMPILE

    @abstractmethod
    def recipe(self, target: Target) -> dict[str, object]:
        """As plain data, everything that decides what an object holds, beside the source and the identity.

        Raises:
            ToolchainError: when this compiler does not know the target.
        """

    @abstractmethod
    def compile(
        self, source: str, target: Target, out: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> Object:
        """Compile `source` to the file `out`.

        The folder of `out` is for the compiler alone, which may leave files there.

        `options` are the author's. They come in addition to what every candidate is compiled with.

        Raises:
            ToolchainError: when the compiler cannot be started, never for what the source does.
        """

    def texts(
        self,
        source: str,
        target: Target,
        folder: Path,
        timeout: float,
        options: CompileOptions = NO_OPTIONS,
    ) -> dict[str, bytes]:
        """Intermediate texts between a source that compiles and its code.

        The keys are endings of file names, such as `ptx`.

        `folder` is for the compiler alone, which may leave files there. Texts that cannot be had are left out.

        Raises:
            ToolchainError: when the compiler cannot be started.
        """
        del source, target, folder, timeout, options
        return {}

    @abstractmethod
    def link_shared(self, objects: Sequence[Path], out: Path, libraries: Sequence[str] = ()) -> None:
        """Link objects into a shared library for the benchmark. `libraries` are the author's, as arguments.

        Raises:
            ToolchainError: with the linker's first error line.
        """

    def link_arguments(self) -> tuple[str, ...]:
        """What a library with objects of this toolchain must be linked with, after the objects.

        Raises:
            ToolchainError: when a library that it needs is not there.
        """
        return ()

    def libraries(self, options: CompileOptions) -> tuple[str, ...]:
        """Files of the libraries that an author's options name. The linker's folders and the toolkit's are searched.

        Raises:
            ToolchainError: when one does not exist.
        """
        files = []
        for library in options.libraries:
            name = str(library).removeprefix("-l")
            file = name if "/" in name else self._library(name)
            if file is None or not Path(file).is_file():
                raise ToolchainError(
                    f"library {name!r} is not found",
                    why=f"lib{name}.so and lib{name}.a are in none of the linker's folders" if file is None else "",
                    fix="install it with its files for development, or give its path",
                )
            files.append(file)
        return tuple(files)

    def _library(self, name: str) -> str | None:  # noqa: ARG002
        """The file of a library by its name."""
        return None

    def include_folders(self) -> tuple[str, ...]:
        """Header folders that the runtime of this toolchain's family is compiled with."""
        return ()

    def locate(self, include: str) -> str:
        """Where an included file is now. `include` is its name in `Object.includes`.

        Names contain no folder that changes from build to build, such as a wheel's under build isolation.
        """
        return include

    def _env(self) -> Mapping[str, str]:
        return os.environ if self._environ is None else self._environ

    def _child(self, scratch: Path) -> dict[str, str]:
        return compiler_environment(self._env(), scratch)


class CompilersElsewhere(Protocol):
    """They make from a source exactly what the local toolchain would make, byte for byte."""

    def compile(
        self, toolchain: Toolchain, source: str, target: Target, out: Path, timeout: float, options: CompileOptions
    ) -> Object:
        """See `Toolchain.compile`. Any thread may call it.

        Raises:
            ToolchainError: when a compiler cannot be started, or differs from the local one. Names the machine.
        """

    def end_compiles(self) -> None:
        """End the running compilers. Each then has a failure that is not lasting."""


@cache
def toolchains() -> Mapping[str, Toolchain]:
    """All backends by name, as found in this folder and below."""
    package = importlib.import_module(__package__ or "aot_tune.compile")
    by_name: dict[str, Toolchain] = {}
    for module in sorted(m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")):
        offered = getattr(importlib.import_module(module), "TOOLCHAIN", None)
        for chain in offered if isinstance(offered, tuple) else (offered,) if offered is not None else ():
            if not isinstance(chain, Toolchain):
                raise ToolchainError(f"TOOLCHAIN of module {module} is not derived from Toolchain")
            by_name[chain.name] = chain
    return by_name


def toolchain_for(backend: str, environ: Mapping[str, str] | None = None) -> Toolchain:
    """The toolchain of a backend, as the environment chooses it.

    Raises:
        ToolchainError: for an unknown backend, with the nearest names.
    """
    try:
        toolchain = toolchains()[backend]
    except KeyError:
        raise ToolchainError(f"there is no backend {backend!r}", fix=did_you_mean(backend, toolchains())) from None
    return toolchain.configured(os.environ if environ is None else environ)


def target_by_name(name: str) -> Target:
    """The target of that name.

    Raises:
        ToolchainError: when no backend has it, with the nearest names.
    """
    by_name = _targets()
    try:
        return by_name[name]
    except KeyError:
        fix = did_you_mean(_spelled(name), [*by_name, *{t.family for t in by_name.values()}, "native"])
        raise ToolchainError(f"unknown target {name!r}", why="semicolons separate targets", fix=fix) from None


@cache
def _targets() -> Mapping[str, Target]:
    return {t.name: t for chain in toolchains().values() for t in chain.targets()}


def _spelled(name: str) -> str:
    """Our name of a GPU target, if `name` is that of another tool.

    Examples are sm_90, compute_90, 90a and 9.0+PTX; gfx942 and gfx942:sramecc+:xnack-; gpu.
    """
    if name.strip().lower().startswith("gfx"):
        return f"hip-{name.strip().lower().partition(':')[0]}"
    if name.strip().lower() in ("gpu", "nvidia"):
        return "cuda"
    match = _FOREIGN.fullmatch(name.strip().lower())
    return name if match is None else f"cuda-sm_{match[1]}{match[2]}{match[3]}"


def native_targets() -> list[Target]:
    """Targets of all backends that run on this machine, by family and level."""
    by_name = {t.name: t for chain in toolchains().values() for t in chain.native()}
    return sorted(by_name.values(), key=lambda t: (t.family, t.level, t.name))


def families_of(chain: Toolchain) -> frozenset[str]:
    """Families of the devices that a toolchain compiles for."""
    return frozenset(t.family for t in chain.targets())


def generic_targets(targets: Iterable[Target], machine: str = "x86_64") -> tuple[Target, ...]:
    """What the generic variants of a library for these targets are compiled for, by family and level.

    These are the baselines that a device of some target runs, and the baseline of CPUs, which every library supports:
    that of the `machine` that the library is for.
    """
    wanted = tuple(targets)
    by_name = {t.name: t for chain in toolchains().values() for t in chain.baselines()}
    needed = [t for t in by_name.values() if (t.machine == machine if t.on_host else any(map(t.meets, wanted)))]
    return tuple(sorted(needed, key=lambda t: (t.family, t.level, t.name)))
