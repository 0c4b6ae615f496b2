"""What `aot-tune doctor` finds: plain data, as `--json` prints it and as people read it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile.cuda.visible_gpus import CudaDevice, DeviceQuery

__all__ = [
    "CacheFound",
    "CompilerFound",
    "Examination",
    "GpusFound",
    "ToolFound",
    "Trouble",
    "cache_lines",
    "examination_lines",
    "gpu_lines",
]

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


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
    """What the driver reported, and the packages that matter for GPUs.

    `cutlass` and `torch` are empty if they are missing. `torch_cuda` is the CUDA version that torch is built for.
    """

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


def examination_lines(found: Examination, *, verbose: bool) -> Iterator[str]:
    """An examination as people read it. `verbose` adds the full identity of compilers and devices."""
    yield f"python     {found.python} at {found.executable}"
    for tool in found.tools:
        missing = f"not on PATH: `pip install {tool.name}`, or let pip build in isolation"
        yield f"{tool.name:<10} {f'{tool.version} at {tool.path}' if tool.path else missing}"
    for compiler in found.compilers:
        name = f"{compiler.backend}, whose calls g++ compiles" if compiler.backend == "cublaslt" else compiler.backend
        yield f"compiler   {name}: {_compiler(compiler, verbose)}"
    yield from gpu_lines(found.gpus)
    yield f"targets    {', '.join(found.targets) or 'none'}"
    yield from (f"           {line}" for line in found.left_out)
    for device in found.devices:
        yield f"device     {device.name}"
        yield from (f"             {key} {value}" for key, value in (device.identity.items() if verbose else ()))
    yield f"sandbox    {_sandbox(found.sandbox, verbose)}"
    yield f"memory     {found.memory}"
    yield f"compiles   {found.jobs_reason}"
    yield from cache_lines(found.cache)
    yield from (f"options    {line}" for line in found.options)
    yield _answer(found)


def _answer(found: Examination) -> str:
    """The answer that all the findings give together."""
    if found.problems:
        several = "s" * (found.problems > 1)
        return f"answer     {found.problems} thing{several} above would stop a build, or the tuning for the GPU"
    if not found.best:
        return "answer     nothing to tune for"
    return f"answer     a build here tunes for {' and '.join(found.best)}"


def _compiler(one: CompilerFound, verbose: bool) -> str:
    """A compiler's version, or its whole identity. Of a digest only the first digits: enough to compare by eye."""
    if one.trouble is not None:
        return _told(one.trouble)
    told = one.version
    if verbose:
        told = ", ".join(f"{k} {v[:12] if _DIGEST.match(v) else v}" for k, v in one.identity.items())
    return f"{told}, {one.origin}" if one.origin else told


def gpu_lines(found: GpusFound) -> Iterator[str]:
    """Driver, GPUs, CUTLASS and torch."""
    query = found.query
    if not query.devices:
        yield f"gpu        none: {query.error}; fix: {query.fix}"
    else:
        supports = f"CUDA {query.driver // 1000}.{query.driver % 1000 // 10}"
        yield f"driver     {query.driver_text or 'version unknown'}, supports {supports}"
    yield from map(_gpu, query.devices)
    absent = "none: `pip install nvidia-cutlass`, or set CUTLASS_PATH, for the kernels that use it"
    troubles = list(found.troubles)
    if found.cutlass:
        yield f"cutlass    {found.cutlass} at {found.cutlass_folder}"
    elif troubles and not troubles[0].stops:
        yield f"cutlass    {_told(troubles.pop(0))}"
    else:
        yield f"cutlass    {absent}"
    built = f"for CUDA {found.torch_cuda}" if found.torch_cuda else "without CUDA"
    yield f"torch      {f'{found.torch}, built {built}' if found.torch else 'none: it is needed to tune for a GPU'}"
    if found.warning:
        yield f"warning    {found.warning}"
    yield from (f"problem    {_told(one)}" for one in troubles)


def _gpu(gpu: CudaDevice) -> str:
    slice_of = f", MIG {gpu.mig}" if gpu.mig in ("enabled", "slice") else ""
    return (
        f"gpu        {gpu.ordinal} {gpu.name} {gpu.uuid}: sm_{gpu.capability}, {gpu.sm_count} SMs, "
        f"{gpu.memory_bytes / 2**30:.0f} GiB, L2 {gpu.l2_bytes / 2**20:.0f} MiB, "
        f"compute mode {gpu.compute_mode}{slice_of}"
    )


def cache_lines(found: CacheFound) -> Iterator[str]:
    """Where the cache is, and why it cannot be used."""
    yield f"cache      {found.folder or 'off'} ({found.mode}){f': {found.message}' if found.message else ''}"
    yield from (f"           {line}" for line in found.tier_troubles)
    yield from (f"           cache tier {path}" for path in found.tiers)
    if found.trouble is not None:
        yield f"           {_told(found.trouble, beside='a build goes on without it')}"


def _told(one: Trouble, *, beside: str = "not needed without a GPU") -> str:
    """A trouble in lines. A remark follows if it stops nothing."""
    lines = [one.what, *(f"  why: {one.why}",) * bool(one.why), *(f"  fix: {one.fix}",) * bool(one.fix)]
    return "\n".join([*lines, *((f"  ({beside})",) if not one.stops else ())])


def _sandbox(found: Mapping[str, int], verbose: bool) -> str:
    """Whether the sandbox is complete, or which features this kernel lacks."""
    if verbose:
        return ", ".join(f"{feature} {state}" for feature, state in found.items())
    lacking = [feature for feature, state in found.items() if not state]
    return f"this kernel lacks {', '.join(lacking)}" if lacking else "complete"
