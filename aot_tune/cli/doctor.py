"""`aot-tune doctor`: what a build would find on this machine, and what would stop it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aot_tune.cli.examination import CacheFound, CompilerFound, Examination, GpusFound, ToolFound, Trouble
from aot_tune.compile.cuda.toolkit import find_cutlass
from aot_tune.compile.cuda.visible_gpus import DeviceQuery, check_ready, installed_torch, visible_devices
from aot_tune.plan.options import OPTIONS, misspelt
from aot_tune.support.cache_tiers import open_tiers
from aot_tune.support.errors import AotTuneError, CacheError
from aot_tune.support.memory_limits import memory_text
from aot_tune.support.storage import CacheLocation, cache_location, check_folder

if TYPE_CHECKING:
    from aot_tune.compile import Toolchain

__all__ = ["examine", "examine_cache", "examine_gpus", "examine_tool", "option_lines"]

_VERSION = re.compile(r"^#define CUTLASS_(MAJOR|MINOR|PATCH) (\d+)", re.MULTILINE)


def examine() -> Examination:
    """What a build without options would find here."""
    from aot_tune.bench.devices.cpu import usable_cores
    from aot_tune.compile import families_of, native_targets, parallel_compiles, toolchain_for, toolchains
    from aot_tune.plan.machines import devices
    from aot_tune.spec.load_operators import bundled_templates, load_operators
    from aot_tune.support.kernel_features import features

    query = visible_devices()
    operators = load_operators([bundled_templates()]).values()
    always = {k.backend for _, operator in operators for k in operator.generics}  # a build can do without the others
    compilers = []
    for name in toolchains():
        chain = toolchain_for(name)
        needed = name in always and ("cpu" in families_of(chain) or bool(query.devices))
        compilers.append(_compiler(name, chain, needed))
    gpus, cache, targets = examine_gpus(query), examine_cache(cache_location(os.environ)), native_targets()
    troubles = [*(c.trouble for c in compilers), *gpus.troubles, cache.trouble]
    jobs = parallel_compiles(os.environ)
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
        options=tuple(option_lines(os.environ)),
        problems=sum(one is not None and one.stops for one in troubles),
        tools=tuple(examine_tool(name) for name in ("cmake", "ninja")),
    )


def examine_tool(name: str) -> ToolFound:
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


_HEEDED = ("AOT_TUNE_CACHE", "AOT_TUNE_CACHE_DIR", "AOT_TUNE_CACHE_TIERS", "AOT_TUNE_JOBS")
"""Options that the lines on cache and compiles already describe."""


def option_lines(environment: Mapping[str, str]) -> list[str]:
    """One line for the options in the environment that doctor ignores, and one for each misspelt option."""
    others = [o.name for o in OPTIONS if environment.get(o.name) and o.name not in _HEEDED]
    said = f"{', '.join(others)}: set, but not considered: this describes a build without options" if others else ""
    return [*([said] if said else ()), *misspelt(environment)]


def examine_gpus(query: DeviceQuery) -> GpusFound:
    """Driver, GPUs, CUTLASS and torch. They can be a problem only on a machine with a GPU."""
    from aot_tune.compile import toolchain_for

    troubles, cutlass, folder, warning = list[Trouble](), "", "", ""
    try:
        include = find_cutlass(os.environ)
        if include is not None:
            known = dict(_VERSION.findall((include / "cutlass" / "version.h").read_text()))
            cutlass, folder = (
                f"{known.get('MAJOR', '?')}.{known.get('MINOR', '?')}.{known.get('PATCH', '?')}",
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


def _compiler(name: str, chain: Toolchain, needed: bool) -> CompilerFound:
    """A compiler: its identity and why this one was chosen, or what is wrong with it."""
    try:
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
