"""`aot-tune doctor`: what a build would find on this machine, what would stop it, and what its options mean."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.cli.explain_command import json_text
from aot_tune.compile import families_of, native_targets, offers, parallel_compiles, toolchain_for, toolchains
from aot_tune.compile.toolkit import find_cutlass
from aot_tune.compile.visible_gpus import CudaDevice, DeviceQuery, check_ready, installed_torch, visible_devices
from aot_tune.plan.options import OPTIONS, misspelt
from aot_tune.plan.preflight import devices
from aot_tune.plan.run_time_variables import RUN_TIME_VARIABLES
from aot_tune.spec.load_operators import bundled_templates, load_operators
from aot_tune.support.cache_tiers import open_tiers
from aot_tune.support.errors import AotTuneError, CacheError, OptionError, did_you_mean
from aot_tune.support.kernel_features import features
from aot_tune.support.limits import memory_text, usable_cores
from aot_tune.support.storage import CacheLocation, cache_location, check_folder

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")

_VERSION = re.compile(r"^#define CUTLASS_(MAJOR|MINOR|PATCH) (\d+)", re.MULTILINE)


_HEEDED = ("AOT_TUNE_CACHE", "AOT_TUNE_CACHE_DIR", "AOT_TUNE_CACHE_TIERS", "AOT_TUNE_JOBS")
"""Options that the lines on cache and compiles already describe."""
_LEAST = 40
_LINK = re.compile(r"\[[^\]]*\]\((?:\.\./)?([^)#]*)[^)]*\)")


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, why, and what to do about it. `stops`: it would stop a build, or tuning for the GPU."""

    what: str
    why: str = ""
    fix: str = ""
    stops: bool = True


class CompilerFound(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's compiler: its version, its identity, where it is and why it was chosen; or what is wrong."""

    backend: str
    version: str = ""
    identity: dict[str, str] = {}
    origin: str = ""
    trouble: Trouble | None = None


class ToolFound(msgspec.Struct, frozen=True, kw_only=True):
    """A program that a build without isolation needs on PATH: version and path, both empty if it is missing."""

    name: str
    version: str = ""
    path: str = ""


class GpusFound(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver reported, and packages for GPUs, empty if missing. `torch_cuda` is what torch is built for."""

    query: DeviceQuery
    cutlass: str = ""
    cutlass_folder: str = ""
    torch: str = ""
    torch_cuda: str = ""
    warning: str = ""
    troubles: tuple[Trouble, ...] = ()


class CacheFound(msgspec.Struct, frozen=True, kw_only=True):
    """The cache's folder (None: the cache is off), its mode, and what is wrong with it.

    `tiers` are the further folders that can be used. `tier_troubles` say what is wrong with the others.
    """

    folder: str | None
    mode: str
    message: str = ""
    tiers: tuple[str, ...] = ()
    tier_troubles: tuple[str, ...] = ()
    trouble: Trouble | None = None


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What a build without options would find on this machine.

    `targets` are what this machine can run. `best` is the best target of each family: a build tunes for those.
    `left_out` names targets that the compilers cannot build. `sandbox` has features of the kernel, 0 for a missing one.
    `problems` counts what would stop a build, or tuning for the GPU.
    """

    python: str
    executable: str
    compilers: tuple[CompilerFound, ...]
    gpus: GpusFound
    targets: tuple[str, ...]
    best: tuple[str, ...]
    left_out: tuple[str, ...]
    devices: tuple[Device, ...]
    sandbox: dict[str, int]
    jobs: int
    jobs_reason: str
    memory: str
    cache: CacheFound
    options: tuple[str, ...]
    problems: int
    tools: tuple[ToolFound, ...] = ()
    schema: int = 1


class OptionFound(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a build, or a variable that a library reads, which has no default. `value` is the environment's."""

    name: str
    meaning: str
    default: str | None = None
    value: str = ""


class OptionsFound(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a build, and variables that a library reads."""

    options: tuple[OptionFound, ...]
    schema: int = 1


def add_doctor(commands: Any) -> None:
    """Add the command to the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="what this machine offers, and what options mean",
        description="Show what a build without options would find here.",
    )
    doctor.add_argument(
        "--options",
        nargs="*",
        metavar="NAME",
        help="instead, say what these options mean, such as BUDGET, and what is set here; default: all, with the "
        "variables that a library reads",
    )
    doctor.add_argument(
        "--verbose", action="store_true", help="also print the full identity of compilers and devices, as in records"
    )
    doctor.add_argument("--json", action="store_true", help="print it as JSON, see docs/report.md")
    doctor.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> int:
    if given.options is not None:
        options = find_options(given.options, os.environ)
        print(
            json_text(options) if given.json else "\n".join(option_lines(options, shutil.get_terminal_size().columns))
        )
        return 0
    examination = examine()
    print(json_text(examination) if given.json else "\n".join(examination_lines(examination, verbose=given.verbose)))
    return 1 if examination.problems else 0


def find_options(names: Sequence[str], environment: Mapping[str, str]) -> OptionsFound:
    """What options mean, and what the environment sets. No names means all options.

    Args:
        names: with or without `AOT_TUNE_` in front, in upper or lower case.

    Raises:
        OptionError: for an unknown name.
    """
    wanted = [f"AOT_TUNE_{name.upper().removeprefix('AOT_TUNE_')}" for name in names]
    texts: list[tuple[str, str, str | None]] = [(o.name, o.help, o.default) for o in OPTIONS]
    texts += [(v.name, v.help, None) for v in RUN_TIME_VARIABLES]
    known = [name for name, *_ in texts]
    for name in wanted:
        if name not in known:
            raise OptionError(f"there is no option {name!r}", fix=did_you_mean(name, known))
    return OptionsFound(
        options=tuple(
            OptionFound(name=name, meaning=meaning, default=default, value=environment.get(name, ""))
            for name, meaning, default in texts
            if not wanted or name in wanted
        )
    )


def option_lines(found: OptionsFound, width: int) -> Iterator[str]:
    """Options as people read them, in so many columns of a terminal."""
    for o in found.options:
        yield o.name if o.default is None else f"{o.name}  (default: {o.default or 'empty'})"
        if o.value:
            yield f"  now {o.value!r}, from the environment"
        meaning = _LINK.sub(r"docs/\1", o.meaning)
        yield from textwrap.wrap(
            meaning,
            max(width, _LEAST),
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        yield ""


def examination_lines(examination: Examination, *, verbose: bool) -> Iterator[str]:
    """An examination as people read it. `verbose` adds the full identity of compilers and devices."""
    yield f"python     {examination.python} at {examination.executable}"
    for tool in examination.tools:
        missing = f"not on PATH: `pip install {tool.name}`, or let pip build in isolation"
        yield f"{tool.name:<10} {f'{tool.version} at {tool.path}' if tool.path else missing}"
    for compiler in examination.compilers:
        calls = compiler.backend in toolchains() and toolchains()[compiler.backend].only_calls
        name = f"{compiler.backend}, whose calls g++ compiles" if calls else compiler.backend
        yield f"compiler   {name}: {_compiler(compiler, verbose)}"
    yield from _gpu_lines(examination.gpus)
    yield f"targets    {', '.join(examination.targets) or 'none'}"
    yield from (f"           {line}" for line in examination.left_out)
    for device in examination.devices:
        yield f"device     {device.name}"
        yield from (f"             {key} {value}" for key, value in (device.identity.items() if verbose else ()))
    yield f"sandbox    {_sandbox(examination.sandbox, verbose)}"
    yield f"memory     {examination.memory}"
    yield f"compiles   {examination.jobs_reason}"
    yield from cache_lines(examination.cache)
    yield from (f"options    {line}" for line in examination.options)
    yield _answer(examination)


def _answer(examination: Examination) -> str:
    """The answer that all the findings give together."""
    if examination.problems:
        several = "s" * (examination.problems > 1)
        return f"answer     {examination.problems} thing{several} above would stop a build, or the tuning for the GPU"
    if not examination.best:
        return "answer     nothing to tune for"
    return f"answer     a build here tunes for {' and '.join(examination.best)}"


def _compiler(compiler: CompilerFound, verbose: bool) -> str:
    """A compiler's version, or its whole identity. Of a digest only the first digits: enough to compare by eye."""
    if compiler.trouble is not None:
        return _told(compiler.trouble)
    told = compiler.version
    if verbose:
        told = ", ".join(f"{k} {v[:12] if _DIGEST.match(v) else v}" for k, v in compiler.identity.items())
    return f"{told}, {compiler.origin}" if compiler.origin else told


def _gpu_lines(gpus: GpusFound) -> Iterator[str]:
    """Driver, GPUs, CUTLASS and torch."""
    query = gpus.query
    if not query.devices:
        yield f"gpu        none: {query.error}; fix: {query.fix}"
    else:
        supports = f"CUDA {query.driver // 1000}.{query.driver % 1000 // 10}"
        yield f"driver     {query.driver_text or 'version unknown'}, supports {supports}"
    yield from map(_gpu, query.devices)
    absent = "none: `pip install nvidia-cutlass`, or set CUTLASS_PATH, for the kernels that use it"
    troubles = list(gpus.troubles)
    if gpus.cutlass:
        yield f"cutlass    {gpus.cutlass} at {gpus.cutlass_folder}"
    elif troubles and not troubles[0].stops:
        yield f"cutlass    {_told(troubles.pop(0))}"
    else:
        yield f"cutlass    {absent}"
    built = f"for CUDA {gpus.torch_cuda}" if gpus.torch_cuda else "without CUDA"
    yield f"torch      {f'{gpus.torch}, built {built}' if gpus.torch else 'none: it is needed to tune for a GPU'}"
    if gpus.warning:
        yield f"warning    {gpus.warning}"
    yield from (f"problem    {_told(trouble)}" for trouble in troubles)


def _gpu(gpu: CudaDevice) -> str:
    slice_of = f", MIG {gpu.mig}" if gpu.mig in ("enabled", "slice") else ""
    unusual = "".join(f", {name} set to {value}" for name, value in gpu.settings.items())
    return (
        f"gpu        {gpu.ordinal} {gpu.name} {gpu.uuid}: sm_{gpu.capability}, {gpu.sm_count} SMs, "
        f"{gpu.memory_bytes / 2**30:.0f} GiB, L2 {gpu.l2_bytes / 2**20:.0f} MiB, "
        f"compute mode {gpu.compute_mode}{slice_of}{unusual}"
    )


def cache_lines(cache: CacheFound) -> Iterator[str]:
    """Where the cache is, and why it cannot be used."""
    yield f"cache      {cache.folder or 'off'} ({cache.mode}){f': {cache.message}' if cache.message else ''}"
    yield from (f"           {line}" for line in cache.tier_troubles)
    yield from (f"           cache tier {path}" for path in cache.tiers)
    if cache.trouble is not None:
        yield f"           {_told(cache.trouble, beside='a build goes on without it')}"


def _told(trouble: Trouble, *, beside: str = "not needed without a GPU") -> str:
    """A trouble in lines. A remark follows if it stops nothing."""
    told = str(AotTuneError(trouble.what, why=trouble.why, fix=trouble.fix))
    return told if trouble.stops else f"{told}\n  ({beside})"


def _sandbox(states: Mapping[str, int], verbose: bool) -> str:
    """Whether the sandbox is complete, or which features this kernel lacks."""
    if verbose:
        return ", ".join(f"{feature} {state}" for feature, state in states.items())
    lacking = [feature for feature, state in states.items() if not state]
    return f"this kernel lacks {', '.join(lacking)}" if lacking else "complete"


def examine() -> Examination:
    """What a build without options would find here."""
    query = visible_devices()
    operators = load_operators([bundled_templates()]).values()
    always = {k.backend for _, operator in operators for k in operator.generics}  # a build can do without the others
    needed = [n for n in always if "cpu" in families_of(toolchain_for(n)) or query.devices]
    compilers = [_examine_compiler(name, name in needed) for name in dict.fromkeys(e.name for e in offers())]
    gpus, cache, targets = _examine_gpus(query), examine_cache(cache_location(os.environ)), native_targets()
    troubles = [*(c.trouble for c in compilers), *gpus.troubles, cache.trouble]
    jobs = parallel_compiles(os.environ)
    others = [o.name for o in OPTIONS if os.environ.get(o.name) and o.name not in _HEEDED]
    said = f"{', '.join(others)}: set, but not considered: this describes a build without options" if others else ""
    return Examination(
        python=sys.version.split()[0],
        executable=sys.executable,
        compilers=tuple(compilers),
        gpus=gpus,
        targets=tuple(t.name for t in targets),
        best=tuple({t.family: t.name for t in targets}.values()),  # the last of a family is its best
        left_out=tuple(filter(None, (chain.left_out() for chain in toolchains().values()))),
        devices=tuple(devices(usable_cores(), sorted({t.family for t in targets}))),
        sandbox=features(),
        jobs=jobs.count,
        jobs_reason=jobs.reason,
        memory=memory_text(),
        cache=cache,
        options=(*([said] if said else ()), *misspelt(os.environ)),
        problems=sum(trouble is not None and trouble.stops for trouble in troubles),
        tools=tuple(_examine_tool(name) for name in ("cmake", "ninja")),
    )


def _examine_tool(name: str) -> ToolFound:
    """A program on PATH, with the version that it prints for `--version`."""
    path = shutil.which(name)
    if path is None:
        return ToolFound(name=name)
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    version = re.search(r"\d+(\.\d+)+", told)
    return ToolFound(name=name, version=version[0] if version else "of unknown version", path=path)


def _examine_gpus(query: DeviceQuery) -> GpusFound:
    """Driver, GPUs, CUTLASS and torch. They can be a problem only on a machine with a GPU."""
    troubles, cutlass, folder, warning = list[Trouble](), "", "", ""
    try:
        include = find_cutlass(os.environ)
        if include is not None:
            numbers = dict(_VERSION.findall((include / "cutlass" / "version.h").read_text()))
            cutlass, folder = (
                f"{numbers.get('MAJOR', '?')}.{numbers.get('MINOR', '?')}.{numbers.get('PATCH', '?')}",
                str(include),
            )
    except AotTuneError as error:
        troubles.append(_trouble(error, stops=False))
    try:
        if query.devices:
            warning = check_ready(toolchain_for("nvcc").identity()["version"], query)
    except AotTuneError as error:
        troubles.append(_trouble(error))
    torch, built_for = installed_torch() or ("", None)
    return GpusFound(
        query=query,
        cutlass=cutlass,
        cutlass_folder=folder,
        torch=torch,
        torch_cuda=built_for or "",
        warning=warning,
        troubles=tuple(troubles),
    )


def _examine_compiler(name: str, needed: bool) -> CompilerFound:
    """A compiler: its identity and why this one was chosen, or what is wrong with it."""
    try:
        chain = toolchain_for(name)
        identity = chain.identity()
        return CompilerFound(backend=name, version=identity["version"], identity=identity, origin=chain.origin())
    except AotTuneError as error:
        return CompilerFound(backend=name, trouble=_trouble(error, stops=needed))


def examine_cache(location: CacheLocation) -> CacheFound:
    """Where the cache is, and why it cannot be used. If the user named it, that would end a build."""
    trouble, told = None, list[str]()
    tiers = open_tiers(location.tiers, trusted=location.trusted, log=told.append)
    if location.root is not None:
        try:
            check_folder(location.root, trusted=location.trusted, writable=location.mode != "ro", make=False)
        except CacheError as error:
            trouble = _trouble(error, stops=location.required)
    folder = None if location.root is None else str(location.root)
    return CacheFound(
        folder=folder,
        mode=location.mode,
        message=location.message,
        tiers=tuple(str(tier.path) for tier in tiers if tier.usable),
        tier_troubles=tuple(told),
        trouble=trouble,
    )


def _trouble(error: AotTuneError, *, stops: bool = True) -> Trouble:
    return Trouble(what=error.what, why=error.why, fix=error.fix, stops=stops)
