"""A kernel author's project for GPUs, built where there is none; records of measurements that were never made."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from environments import ROOT, environment, run
from forked import command

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.compile import ObjectCache, Variant, compile_all, target_by_name, toolchain_for
from aot_tune.compile.toolchain import Toolchain
from aot_tune.database import CandidateRecord, OperatorDatabase, operator_digest, save_database
from aot_tune.link.elf import SharedLibrary
from aot_tune.render import Candidate, Rendered, Renderer, candidate_for, requirements
from aot_tune.report.report_records import Report
from aot_tune.spec import ConfigValue, Operator, Target, all_of
from aot_tune.spec.load_operators import bundled_templates, load_operator

TWICE = ROOT / "tests" / "gpu" / "templates" / "twice"
TARGETS = ("cuda-sm_80", "cuda-sm_90a")

_LISTS = """
cmake_minimum_required(VERSION 3.25)
project(my_gpu_kernels LANGUAGES CXX)
include("{root}/cmake/aot_tune_add_library.cmake")
aot_tune_add_library(my_ops PREFIX mine MODULE ops TEMPLATES {templates} OPERATORS {operators} {database})
"""

FAKE = f"""
import ctypes, sys
import numpy as np
import ops
sys.path.append({str(ROOT / "tests" / "unit" / "shared")!r})
from dltensors import OnDevice

def fails(call):
    try:
        call()
    except ops.Error as error:
        print(type(error).__name__, error)
    else:
        raise SystemExit("it did not fail")

x = np.linspace(-2, 3, 256, dtype="f4").reshape(4, 64)
"""


@dataclass(frozen=True)
class Made:
    """A built project: its build folder, and what the build printed."""

    folder: Path
    log: str

    @property
    def library(self) -> Path:
        return self.folder / "libmy_ops.so"

    @property
    def module(self) -> Path:
        return self.folder / "ops.abi3.so"

    @cached_property
    def manifest(self) -> Any:
        return json.loads((self.folder / "aot_tune" / "my_ops" / "manifest.json").read_bytes())

    @cached_property
    def report(self) -> Report:
        text = (self.folder / "aot_tune" / "my_ops" / "report.json").read_bytes()
        return msgspec.json.decode(text, type=Report)

    def variants(self, operator: str, target: str = "cuda") -> dict[str, dict[str, Any]]:
        """Variants of an operator for targets whose names begin so, by name."""
        (found,) = (o for o in self.manifest["operators"] if o["name"] == operator)
        return {v["name"]: v for v in found["variants"] if v["target"].startswith(target)}

    def needed(self) -> list[str]:
        """The libraries that library and module ask for when they are loaded."""
        return [n for p in (self.library, self.module) for n in SharedLibrary(p.read_bytes()).dynamic("DT_NEEDED")]

    def run(self, code: str) -> str:
        """Run Python beside the module, in a fresh process that sees no driver."""
        return run([sys.executable, "-c", code], env=environment(PYTHONPATH=str(self.folder)))


def build(
    folder: Path,
    *,
    templates: Sequence[object],
    operators: Sequence[str],
    database: Path | None = None,
    status: int | None = 0,
    first: str = "",
    link: bool = True,
    **options: str,
) -> Made:
    """Configure and build a project in `folder` with the source tree's CMake functions; options are AOT_TUNE_*.

    What is in the folder `first` is imported from there, such as another version of Triton. Without `link`, the two
    commands that CMake would run are all there is: no library and no module.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CMakeLists.txt").write_text(
        _LISTS.format(
            root=ROOT,
            templates=" ".join(f'"{t}"' for t in templates),
            operators=" ".join(operators),
            database="" if database is None else f'DATABASE "{database}"',
        )
    )
    settings = {f"AOT_TUNE_{name}": text for name, text in options.items() if name.isupper() and name != "CXX"}
    settings |= {"CXX": options["CXX"]} if "CXX" in options else {}
    path = os.pathsep.join(filter(None, (first, *sys.path)))  # so that a build finds its requirements
    env = environment(**{"AOT_TUNE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": path, **settings})
    if not link:
        return _without_cmake(folder, templates, operators, database, status, env)
    argv = ["cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", f"-DPython_EXECUTABLE={sys.executable}"]
    log = run(argv, env=env, status=status)
    if (folder / "build" / "build.ninja").is_file():
        log += run(["cmake", "--build", folder / "build"], env=env, status=status)
    return Made(folder / "build", log)


def _without_cmake(
    folder: Path,
    templates: Sequence[object],
    operators: Sequence[str],
    database: Path | None,
    status: int | None,
    env: Mapping[str, str],
) -> Made:
    made = folder / "build" / "aot_tune" / "my_ops"
    program = [sys.executable, "-m", "aot_tune.cli.main"]
    configure = ["configure", "--name", "my_ops", "--prefix", "mine", "--header", "my_ops.h", "--directory", made]
    for root in templates:
        configure += ["--templates", bundled_templates() if root == "bundled" else root]
    configure += ["--default", f"AOT_TUNE_OPERATORS={';'.join(operators)}"]
    configure += [] if database is None else ["--database", database]
    log = command([*program, *configure], env=env, status=status)
    if (made / "plan.json").is_file():
        log += command([*program, "build", "--directory", made], env=env, status=status)
    return Made(folder / "build", log)


def author_templates(folder: Path) -> Path:
    """A template root with the operator `twice`, of which only the good kernels are left."""
    shutil.copytree(TWICE, folder / "twice", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "twice" / "operator.py"
    path.write_text(
        path.read_text()
        + "\nimport dataclasses\n\noperator = dataclasses.replace(\n"
        + '    operator, kernels=tuple(k for k in operator.kernels if k.name != "bad")\n)\n'
    )
    return folder


def device_of(target: Target) -> Device:
    """A device that nobody has, of a target's architecture."""
    identity: dict[str, str | int] = {"name": f"Card for {target.name}", "capability": target.level}
    slug = f"{target.family}-{target.name}"
    return Device(family=target.family, name=str(identity["name"]), slug=slug, identity=identity)


def record(
    templates: Path,
    folder: Path,
    targets: Sequence[str] = TARGETS,
    *,
    name: str = "twice",
    dtype: str = "f32",
    fastest: Mapping[str, ConfigValue] = MappingProxyType({"THREADS": 256}),
    cache: Path | None = None,
) -> list[Candidate]:
    """Write a database of an operator with a device for each target; returns the candidates that win.

    Objects are compiled, and kept in a `cache`; times are made up: those of the config `fastest` win.
    """
    operator = load_operator(templates / name)
    renderer = Renderer([templates])
    winners = []
    for target in map(target_by_name, targets):
        rendered = _rendered(operator, renderer, target, dtype)
        chain = toolchain_for("nvcc")
        save_record(folder, operator, rendered, target, chain, lambda r: 1000.0 if _is(r, fastest) else 2000.0, cache)
        winners += [r.candidate for r in rendered if _is(r, fastest)]
    return winners


def save_record(
    folder: Path,
    operator: Operator,
    rendered: Sequence[Rendered],
    target: Target,
    chain: Toolchain,
    takes: Callable[[Rendered], float],
    root: Path | None = None,
) -> None:
    """Write a database of candidates that were compiled here, with made up times, on a device of a target."""
    device, policy = device_of(target), family(target.family).policy(Policy())
    cache = ObjectCache(root, chain)
    compiled = compile_all(cache, rendered, 2)
    measurements = [
        Measurement(
            candidate=r.candidate.id,
            code=compiled[r.candidate.id].code,
            problem=p,
            device=device.digest,
            policy=policy.digest,
            status="ok",
            screen=(takes(r),) * 4,
            error=0.1,
            bitwise=True,
        )
        for r in rendered
        for p in operator.workload_for(target.family)
        if all_of(requirements(operator, r.candidate), operator.facts(p))
    ]
    variants = [Variant(rendered=r, object=compiled[r.candidate.id]) for r in rendered]
    database = OperatorDatabase(
        operator=operator.name,
        contract=operator_digest(operator),
        device=device,
        policy=msgspec.to_builtins(policy),
        policy_digest=policy.digest,
        toolchains={rendered[0].candidate.backend: chain.identity()},
        baselines={},
        candidates=tuple(map(CandidateRecord.of, variants)),
        problems=(),
        measurements=tuple(measurements),
    )
    save_database(folder, database)
    cache.close()


def _rendered(operator: Operator, renderer: Renderer, target: Target, dtype: str) -> list[Rendered]:
    found = []
    for kernel in operator.kernels:
        if kernel.backend == "nvcc" and not kernel.generic:
            for config in kernel.configs(target.facts):
                candidate = candidate_for(operator, kernel, config, target, dtypes={"T": dtype})
                found.append(renderer.render(operator, candidate, target))
    return found


def _is(rendered: Rendered, config: Mapping[str, ConfigValue]) -> bool:
    return config.items() <= rendered.candidate.config.items()
