"""`aot-tune doctor`: what a build would find on this machine, and what would stand in its way."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aot_tune.compile.cuda.toolkit import find_cutlass
from aot_tune.compile.cuda.visible_gpus import DeviceQuery, check_ready, installed_torch, visible_devices
from aot_tune.plan.options import OPTIONS, misspelt
from aot_tune.support.cache_tiers import open_tiers
from aot_tune.support.errors import AotTuneError, CacheError
from aot_tune.support.storage import CacheLocation, cache_location, check_folder

if TYPE_CHECKING:
    from aot_tune.compile import Toolchain

__all__ = ["cache_problems", "cuda_problems", "examine", "option_lines"]

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")

_VERSION = re.compile(r"^#define CUTLASS_(MAJOR|MINOR|PATCH) (\d+)", re.MULTILINE)


def examine(*, verbose: bool = False) -> int:
    """Print what a build would find, and in the end what it would do; 1 when it could not work.

    Args:
        verbose: also all that identifies compilers and devices, as records hold it.
    """
    from aot_tune.bench.devices.cpu import usable_cores
    from aot_tune.compile import families_of, native_targets, parallel_compiles, toolchain_for, toolchains
    from aot_tune.plan.machines import devices
    from aot_tune.spec.load_operators import bundled_templates, load_operators
    from aot_tune.support.kernel_features import features

    problems = 0
    print(f"python     {sys.version.split()[0]} at {sys.executable}")
    query = visible_devices()
    operators = load_operators([bundled_templates()]).values()
    always = {k.backend for _, operator in operators for k in operator.generics}  # without others a build goes on
    for name in toolchains():
        chain = toolchain_for(name)
        needed = name in always and ("cpu" in families_of(chain) or bool(query.devices))
        problems += _try(f"compiler   {name}: ", lambda chain=chain: _compiler(chain, verbose), needed=needed)  # type: ignore[misc]
    problems += cuda_problems(query)
    targets = native_targets()
    print(f"targets    {', '.join(t.name for t in targets) or 'none'}")
    for left_out in filter(None, (chain.left_out() for chain in toolchains().values())):
        print(f"           {left_out}")
    best = {t.family: t.name for t in targets}  # by level: the last of a family is its best
    for device in devices(usable_cores(), sorted({t.family for t in targets})):
        print(f"device     {device.name}")
        for key, value in device.identity.items() if verbose else ():
            print(f"             {key} {value}")
    print(f"sandbox    {_sandbox(features(), verbose)}")
    print(f"compiles   {parallel_compiles(os.environ).reason}")
    problems += cache_problems(cache_location(os.environ))
    for line in option_lines(os.environ):
        print(f"options    {line}")
    print(_answer(problems, list(best.values())))
    return 1 if problems else 0


def _answer(problems: int, targets: Sequence[str]) -> str:
    """What all of it comes to."""
    if problems:
        return f"answer     {problems} thing{'s' * (problems > 1)} above would stop a build, or the tuning for the GPU"
    return f"answer     a build here tunes for {' and '.join(targets)}" if targets else "answer     nothing to tune for"


_HEEDED = ("AOT_TUNE_CACHE", "AOT_TUNE_CACHE_DIR", "AOT_TUNE_CACHE_TIERS", "AOT_TUNE_JOBS")
"""Options of which the lines on cache and compiles tell."""


def option_lines(environment: Mapping[str, str]) -> list[str]:
    """A line for the options in the environment that nothing here considers, and one for each that is misspelt."""
    others = [o.name for o in OPTIONS if environment.get(o.name) and o.name not in _HEEDED]
    said = f"{', '.join(others)}: set, but not considered: this describes a build without options" if others else ""
    return [*([said] if said else ()), *misspelt(environment)]


def _sandbox(found: dict[str, int], verbose: bool) -> str:
    """What keeps candidates from harm, or what of it this kernel lacks."""
    if verbose:
        return ", ".join(f"{feature} {state}" for feature, state in found.items())
    lacking = [feature for feature, state in found.items() if not state]
    return f"this kernel lacks {', '.join(lacking)}" if lacking else "complete"


def cuda_problems(query: DeviceQuery) -> int:
    """Print driver, GPUs, CUTLASS and torch; the number of problems, which there are only on a machine with a GPU."""
    from aot_tune.compile import toolchain_for

    if not query.devices:
        print(f"gpu        none: {query.error}; fix: {query.fix}")
    else:
        supports = f"CUDA {query.driver // 1000}.{query.driver % 1000 // 10}"
        print(f"driver     {query.driver_text or 'version unknown'}, supports {supports}")
    for gpu in query.devices:
        slice_of = f", MIG {gpu.mig}" if gpu.mig in ("enabled", "slice") else ""
        print(
            f"gpu        {gpu.ordinal} {gpu.name} {gpu.uuid}: sm_{gpu.capability}, {gpu.sm_count} SMs, "
            f"{gpu.memory_bytes / 2**30:.0f} GiB, L2 {gpu.l2_bytes / 2**20:.0f} MiB, "
            f"compute mode {gpu.compute_mode}{slice_of}"
        )
    problems = _try("cutlass    ", lambda: _cutlass(find_cutlass(os.environ)), needed=False)
    print(f"torch      {_torch(installed_torch())}")
    if not query.devices:
        return problems

    def ready() -> str:
        warning = check_ready(toolchain_for("nvcc").identity()["version"], query)
        return warning and f"warning    {warning}"

    return problems + _try("", ready)


def _torch(found: tuple[str, str | None] | None) -> str:
    if found is None:
        return "none: it is needed to tune for a GPU"
    return f"{found[0]}, built {f'for CUDA {found[1]}' if found[1] else 'without CUDA'}"


def _cutlass(include: Path | None) -> str:
    if include is None:
        return "none: `pip install nvidia-cutlass`, or set CUTLASS_PATH, for the kernels that use it"
    found = dict(_VERSION.findall((include / "cutlass" / "version.h").read_text()))
    return f"{found.get('MAJOR', '?')}.{found.get('MINOR', '?')}.{found.get('PATCH', '?')} at {include}"


def _compiler(chain: Toolchain, verbose: bool) -> str:
    """A compiler's version, and which one it is and why, where there is a choice."""
    told, origin = _listed(chain.identity(), verbose), chain.origin()
    return f"{told}, {origin}" if origin else told


def _listed(found: dict[str, str], verbose: bool) -> str:
    """The version; or all, digests by their first digits: enough to compare two machines by eye."""
    if not verbose:
        return found["version"]
    return ", ".join(f"{key} {value[:12] if _DIGEST.match(value) else value}" for key, value in found.items())


def cache_problems(location: CacheLocation) -> int:
    """Print where the cache is, and why it cannot be used; 1 where a build would end for that, as the user named it."""
    print(f"cache      {location.root or 'off'} ({location.mode}){f': {location.message}' if location.message else ''}")
    for tier in open_tiers(location.tiers, trusted=location.trusted, log=lambda told: print(f"           {told}")):
        if tier.usable:
            print(f"           cache tier {tier.path}")
    if location.root is None:
        return 0
    try:
        check_folder(location.root, trusted=location.trusted, writable=location.mode != "ro", make=False)
    except CacheError as error:
        print(f"           {error}" + ("" if location.required else "\n  (a build goes on without it)"))
        return int(location.required)
    return 0


def _try(head: str, question: Callable[[], str], *, needed: bool = True) -> int:
    """Print an answer, if there is one, or the error instead; 1 for an error about something that is needed."""
    try:
        answer = question()
    except AotTuneError as error:
        print(f"{head or 'problem    '}{error}" + ("" if needed else "\n  (not needed without a GPU)"))
        return int(needed)
    if answer:
        print(f"{head}{answer}")
    return 0
