"""What a backend must offer, and how those of this folder and of other packages are found."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import msgspec

from aot_tune.spec import CompileOptions, Target
from aot_tune.support.errors import AotTuneError, ToolchainError, did_you_mean
from aot_tune.support.run_program import compiler_environment

CompileStatus = Literal["ok", "compile-failed", "timeout"]
NO_OPTIONS = CompileOptions()
_OF_CODE = ("registers", "spill_bytes", "shared", "dynamic_shared", "stack")
"""Resources that depend on the code only, not on where and when it was compiled."""
MEMORY_PER_COMPILE = 1 << 30
_GROUP = "aot_tune.backends"
_BUILT_IN = {
    "cxx": "cxx:CxxToolchain",
    "nvcc": "nvcc:NvccToolchain",
    "hipcc": "hipcc:HipccToolchain",
    "triton": "triton_toolchain:TritonToolchain",
    "cublaslt": "vendor_calls:Cublaslt",
    "cudnn": "vendor_calls:Cudnn",
    "cblas": "vendor_calls:Cblas",
}
"""Backends and their classes, in the form of entry points. A build from source has no entry points of its own."""
_FUNCTION = re.compile(r"\b(aot_tune_\w+_(?:launch|workspace))\(")
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
            `shared`, as far as the compiler knows it. Of Triton's kernels `dynamic_shared`, a part of `shared`, is what
            a launch adds. See also `Variant.resources`.
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
    """A backend: it compiles and links candidates. An entry point names it, and nothing else does.

    Other packages offer theirs in the group `aot_tune.backends`, for targets that there are. See docs/backends.md.

    Args:
        environ: variables that choose the compiler. By default, those of this process.
    """

    name: str
    """The backend that kernels name."""
    templates: Path | None = None
    """A folder of templates that kernels' templates may include, beside the library's own."""
    only_calls = False
    """Whether what it compiles calls a vendor's library, which has the code for the device."""
    debugging: tuple[str, ...] = ()
    """Flags for code without optimisation that debuggers show, behind all others; none if it has no such flags."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ

    @abstractmethod
    def targets(self) -> tuple[Target, ...]:
        """All targets, by level."""

    def baselines(self) -> tuple[Target, ...]:
        """What generic variants are compiled for: one target for all devices of a family, if that is possible.

        Code that only runs on one architecture has a baseline for each. `generic_targets` gives those of a library.
        None by default: such a backend has no generic kernels, or has them for another one's baselines.
        """
        return ()

    def native(self) -> tuple[Target, ...]:
        """Targets that run on this machine, by level. The last is the best. Empty if there is no such device."""
        return ()

    def left_out(self) -> str:
        """Why `native` is less than what this machine's devices have. Empty if it is not."""
        return ""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Version and content digests, no paths, of the programs that make objects. Raises ToolchainError."""

    def origin(self) -> str:
        """Where the compiler is and why it was chosen, for people. Empty if there was no choice."""
        return ""

    def device_identity(self, identity: Mapping[str, str]) -> dict[str, str]:
        """The part of an `identity` that decides `Object.device`, without the host's C++ compiler."""
        return {name: text for name, text in identity.items() if not name.startswith("host ")}

    def debugs(self, options: CompileOptions) -> bool:
        """Whether an author's options are followed by those for debuggers."""
        return bool(self.debugging) and set(self.debugging) <= set(options.options)

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
        self, source: str, target: Target, folder: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> dict[str, bytes]:
        """Intermediate texts between a source that compiles and its code.

        The keys are endings of file names, such as `ptx`.

        `folder` is for the compiler alone, which may leave files there. Texts that cannot be had are left out.

        Raises:
            ToolchainError: when the compiler cannot be started.
        """
        del source, target, folder, timeout, options
        return {}

    def link_shared(self, objects: Sequence[Path], out: Path, libraries: Sequence[str] = ()) -> None:
        """Link objects into a shared library for the benchmark. `libraries` are the author's, as arguments.

        Raises:
            ToolchainError: with the linker's first error line.
        """
        host = toolchain_for("cxx", self._env())
        host.link_shared([*objects, *map(Path, self.link_arguments())], out, libraries)

    def link_arguments(self) -> tuple[str, ...]:
        """What a library with these objects is linked with, after them. Raises ToolchainError if it is missing."""
        return ()

    def libraries(self, options: CompileOptions) -> tuple[str, ...]:
        """Files of the libraries that an author's options name. Raises ToolchainError when one does not exist."""
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
        """See `Toolchain.compile`; from any thread. Raises ToolchainError, which names the machine."""

    def end_compiles(self) -> None:
        """End the running compilers. Each then has a failure that is not lasting."""


def offers() -> list[EntryPoint]:
    """All backends, as the built-in ones and the installed packages offer them. None is imported."""
    built_in = [EntryPoint(n, f"{__package__}.{place}", _GROUP) for n, place in _BUILT_IN.items()]
    return [*built_in, *sorted(entry_points(group=_GROUP), key=lambda e: (e.name, _who(e)))]


@cache
def toolchains() -> Mapping[str, Toolchain]:
    """The built-in backends by name. Those of other packages compile for the same targets."""
    return {name: factory_of(name)(None) for name in _BUILT_IN}


def toolchain_for(backend: str, environ: Mapping[str, str] | None = None) -> Toolchain:
    """The toolchain of a backend, as the environment chooses it (for C++: by CXX).

    Raises:
        ToolchainError: for an unknown backend, with the nearest names; for one of another package, what is wrong with
            it.
    """
    return factory_of(backend)(dict(os.environ if environ is None else environ))


@cache
def factory_of(backend: str) -> Callable[[Mapping[str, str] | None], Toolchain]:
    """What makes the toolchain of a backend for an environment. Errors are those of `toolchain_for`."""
    offered = [entry for entry in offers() if entry.name == backend]
    if not offered:
        raise ToolchainError(
            f"there is no backend {backend!r}",
            why=f"it is not built in, and no installed package has it as an entry point of {_GROUP}",
            fix=f"{did_you_mean(backend, {e.name for e in offers()})}; or install its package (for a package's build: "
            f"name it among the build requirements), or do without its kernels by AOT_TUNE_EXCLUDE_BACKENDS={backend}",
        )
    if len(offered) > 1:
        raise ToolchainError(
            f"the backend {backend!r} is offered by {' and by '.join(map(_who, offered))}",
            why="a name stands for one backend: it is part of keys and records",
            fix="uninstall all but one of these packages, or rename the entry point of one",
        )
    if backend in _BUILT_IN:
        return cast(Callable[..., Toolchain], offered[0].load())
    return lambda environ: cast(Toolchain, _Plugin(offered[0], environ))


def _who(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "aot_tune itself"


class _Plugin:
    """A toolchain of another package, which is not taken at its word. All that is wrong with it names the package."""

    def __init__(self, entry: EntryPoint, environ: Mapping[str, str] | None) -> None:
        self._package, self._who = _who(entry), f"backend {entry.name!r} of the package {_who(entry)}"
        made = self._ask("", lambda: entry.load()(environ))
        if not isinstance(made, Toolchain) or made.name != entry.name:
            name = f" of the name {made.name!r}" if isinstance(made, Toolchain) else ", which is no Toolchain"
            raise self._lies(f"{entry.value} gives {type(made).__name__}{name}")
        self._chain = made

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._chain, name)
        if name == "templates" and value is not None and not Path(value).is_dir():
            raise self._lies(f"its folder of templates {str(value)!r} does not exist")
        return partial(self._ask, name, value) if callable(value) else value

    def targets(self) -> tuple[Target, ...]:
        made = self._ask("targets", self._chain.targets)
        for target in made if isinstance(made, tuple) and made else (made,):
            if not isinstance(target, Target) or _targets().get(target.name) != target:
                raise self._lies(f"targets() has {target!r:.200}, which is no target; take them from target_by_name")
        return cast(tuple[Target, ...], made)

    def identity(self) -> dict[str, str]:
        made = self._ask("identity", self._chain.identity)
        texts = isinstance(made, dict) and all(isinstance(t, str) for pair in made.items() for t in pair)
        if not texts or not made.get("version"):
            raise self._lies(f"identity() is {made!r:.200}, not texts with a version")
        return {**made, "plug-in": self._package}

    def recipe(self, target: Target) -> dict[str, object]:
        made = self._ask("recipe", self._chain.recipe, target)
        try:
            msgspec.json.encode(made)
        except TypeError as error:
            raise self._lies(f"recipe() is no plain data: {error}") from error
        return cast(dict[str, object], made)

    def compile(
        self, source: str, target: Target, out: Path, timeout: float, options: CompileOptions = NO_OPTIONS
    ) -> Object:
        """A candidate on which it fails fails alone."""
        try:
            made = self._ask("compile", self._chain.compile, source, target, out, timeout, options)
            if not isinstance(made, Object) or made.status not in get_args(CompileStatus):
                raise self._lies(f"compile() gives {made!r:.200}")
            if made.status == "ok":
                self._check_object(source, target, out)
        except ToolchainError as error:
            return Object(status="compile-failed", log=f"error: {error.what}", lasting=False)
        return made

    def _check_object(self, source: str, target: Target, out: Path) -> None:
        host = cast(Any, toolchain_for("cxx"))
        if not out.is_file():
            raise self._lies("compile() says that it made an object, but there is no file")
        if above := host.instructions_above(out, target):
            raise self._lies(f"its object for {target.name} has the instruction `{above}`, which is above that")
        try:
            functions = host.public_functions(out)
        except Exception as error:
            raise self._lies(f"its object cannot be read: {error}") from error
        if lacking := set(_FUNCTION.findall(source)) - functions:
            raise self._lies(f"its object lacks the function {min(lacking)!r}")

    def link_shared(self, objects: Sequence[Path], out: Path, libraries: Sequence[str] = ()) -> None:
        self._ask("link_shared", self._chain.link_shared, objects, out, libraries)
        if not out.is_file():
            raise self._lies("link_shared() made no file")

    def _ask(self, name: str, method: Callable[..., Any], *args: object) -> Any:
        try:
            return method(*args)
        except AotTuneError as error:
            raise ToolchainError(f"{self._who}: {error.what}", why=error.why, fix=error.fix) from error
        except (Exception, SystemExit) as error:
            does = f"{name}() raises" if name else "it cannot be loaded:"
            raise self._lies(f"{does} {type(error).__name__}: {error}") from error

    def _lies(self, what: str) -> ToolchainError:
        fix = "install another version of the package, or do without its kernels by AOT_TUNE_EXCLUDE_BACKENDS"
        return ToolchainError(f"{self._who}: {what}", fix=fix)


def target_by_name(name: str) -> Target:
    """The target of that name. Raises ToolchainError when no backend has it, with the nearest names."""
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


def template_folders(backends: Iterable[str]) -> list[Path]:
    """The folders of templates that backends bring along."""
    chains = map(toolchain_for, sorted(set(backends)))
    return [Path(chain.templates) for chain in chains if chain.templates is not None]


def generic_targets(targets: Iterable[Target], machine: str = "x86_64") -> tuple[Target, ...]:
    """What the generic variants of a library for these targets are compiled for, by family and level.

    These are the baselines that a device of some target runs, and the baseline of CPUs, which every library supports:
    that of the `machine` that the library is for.
    """
    wanted = tuple(targets)
    by_name = {t.name: t for chain in toolchains().values() for t in chain.baselines()}
    needed = [t for t in by_name.values() if (t.machine == machine if t.on_host else any(map(t.meets, wanted)))]
    return tuple(sorted(needed, key=lambda t: (t.family, t.level, t.name)))
