"""The plan of a library: what CMake asked for, checked before any compile, and written down for the build step.

If `plan.json` changes, the build step runs again. So it holds contents, but no path that may differ between two
isolated builds on this machine. These paths are in `paths.json`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.bench.devices.cpu import usable_cores
from aot_tune.bench.devices.family import caution_of
from aot_tune.compile import families_of, generic_targets, toolchain_for
from aot_tune.database import OperatorDatabase, deciding, load_databases
from aot_tune.plan.check_templates import Sources, read_and_render
from aot_tune.plan.compile_settings import CompileSettings, check_settings, linked_libraries, of_target
from aot_tune.plan.eight_bit_targets import eight_bit_baselines
from aot_tune.plan.input_files import digest_of_inputs, input_files
from aot_tune.plan.machines import Machines, ThisMachine
from aot_tune.plan.options import Options, misspelt, resolve
from aot_tune.plan.preflight import (
    check_answers,
    check_backends,
    check_devices,
    check_epoch,
    check_filter,
    check_kernels,
    check_machine,
    check_memory,
    idle_kernels,
    unchecked,
)
from aot_tune.plan.wanted_targets import apart, in_order
from aot_tune.plan.workload_files import WorkloadPlan, read_workload
from aot_tune.plan.xla_headers import xla_include_folder
from aot_tune.spec import Operator, Problem
from aot_tune.spec.load_operators import bundled_templates, load_operators, operator_folders
from aot_tune.spec.names import check_identifier
from aot_tune.support.errors import BuildError, Mistakes
from aot_tune.support.own_modules import project_files
from aot_tune.support.storage import cache_location, check_folder
from aot_tune.triton.read_declarations import Inspections

__all__ = ["Paths", "Plan", "Request", "make_plan", "read_plan", "write_plan"]

_UNMEASURED = ("generic", "compile")
"""Modes that choose nothing by measurements, neither new nor recorded."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}\Z")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `aot_tune_add_library`."""

    name: str
    prefix: str
    header: str
    output: str = ""
    module: str = ""
    operators: tuple[str, ...] = ()
    templates: tuple[str, ...] = ("bundled",)
    database: str = ""
    options: dict[str, str] = {}
    defaults: dict[str, str] = {}
    compile: CompileSettings = CompileSettings()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A checked library.

    `targets` are tuned or replayed. Generic variants are compiled for `baselines`. `older` is the target for older
    CPUs, if any, which is tuned in a short turn. `inputs` is a digest of everything that is read. `workload` is what
    AOT_TUNE_WORKLOAD names. Its paths are not part of `options`, nor is the path of XLA's headers. `compile` has no
    folders and libraries here: those are in `Paths`.
    """

    name: str
    prefix: str
    header: str
    output: str
    module: str
    operators: tuple[str, ...]
    targets: tuple[str, ...]
    baselines: tuple[str, ...]
    families: tuple[str, ...]
    options: Options
    may_measure: bool
    toolchains: dict[str, dict[str, str]]
    devices: tuple[str, ...]
    machine: str
    inputs: str
    notes: tuple[str, ...] = ()
    inspections: Inspections = {}
    workload: WorkloadPlan = WorkloadPlan()
    older: str = ""
    compile: CompileSettings = CompileSettings()

    def summary(self) -> list[str]:
        """What the build will use, one line for each fact."""
        options, count = self.options, len(self.operators)
        budget = "no limit" if options.budget is None else f"{options.budget:g} s"
        return [
            f"library {self.name}: {count} operator{'s' * (count != 1)}: {', '.join(self.operators)}",
            f"mode {options.mode}" + ("" if self.may_measure else ", without measuring in an editable install"),
            f"targets {', '.join(self.targets) or 'only the generic variants'}",
            *([f"{self.older} is for older CPUs, {self._of_older()}"] if self.older else []),
            f"devices {'; '.join(self.devices)}",
            *(f"workload {line}" for line in self.workload.told()),
            f"budget {budget}, effort {options.effort}",
            *([f"executor {options.executor}"] if options.executor != "local" else []),
            *(["handlers for XLA's FFI"] if options.xla_ffi else []),
            *([f"without kernels of {', '.join(options.exclude_backends)}"] if options.exclude_backends else []),
            *(f"note: {note}" for note in self.notes),
        ]

    def _of_older(self) -> str:
        if self.options.replays or not self.may_measure:
            return "as far as records know it"
        return f"tuned last, for {self.options.older_cpus} s at most (AOT_TUNE_OLDER_CPUS)"


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plan's inputs are on this machine. `compilers` has a line for each compiler that was chosen.

    `cxx` is the variable CXX as CMake sets it.
    """

    templates: tuple[str, ...]
    database: str
    compilers: tuple[str, ...] = ()
    link_arguments: tuple[str, ...] = ()
    include_folders: tuple[str, ...] = ()
    xla_include: str = ""
    compile: CompileSettings = CompileSettings()
    cxx: str = ""


def make_plan(
    request: Request, environment: Mapping[str, str], cluster: Callable[[], Machines] | None = None
) -> tuple[Plan, Paths, list[Path]]:
    """Check a whole request. Returns the plan, its paths, and the files that it depends on.

    `cluster` connects to the cluster of AOT_TUNE_EXECUTOR. Without it, only this machine is used.

    Raises:
        AotTuneError: before any candidate is compiled. One error names all mistakes in declarations and templates; any
            other mistake is reported by itself.
    """
    _check_request(request)
    stated = {name: value for name, value in environment.items() if value}  # an empty variable counts as not set
    options = resolve(request.options, {**request.defaults, **stated})
    _check_environment(options, environment)
    check_backends(options.exclude_backends)
    roots = [bundled_templates() if t == "bundled" else Path(t) for t in request.templates]
    mistakes = Mistakes()
    loaded = load_operators(roots, request.operators, options.exclude_backends, mistakes)
    operators = {name: operator for name, (_, operator) in loaded.items()}
    if not operators:
        mistakes.tell()
        raise BuildError(
            f"library {request.name!r} has no operators",
            why=f"no <operator>/operator.py below {', '.join(map(str, roots))}",
            fix="add a folder with an operator.py, or name `bundled` among TEMPLATES",
        )
    check_kernels(operators)
    if not mistakes:
        check_filter(options.filter, operators)
    databases = _databases(request.database)
    workload = read_workload(
        options.workload,
        (request.name, request.prefix),
        operators,
        {f.name for f in operator_folders(roots)},
        _recorded(databases),
        mistakes,
    )
    check_devices(options.device if options.mode not in _UNMEASURED else (), databases)
    machines = ThisMachine() if cluster is None or options.executor == "local" else cluster()
    may_measure = not (environment.get("SKBUILD_STATE") == "editable" and options.mode == "auto")
    deciders = deciding(databases, options.device)
    wanted, older = apart(options, deciders, may_measure=may_measure, best=machines.best())
    targets = wanted if options.mode != "generic" else []
    baselines = (*generic_targets(wanted), *eight_bit_baselines(operators.values(), wanted))
    families = sorted({t.family for t in (*baselines, *wanted)})
    check_answers(operators, families)
    operators = {name: workload.plan.stated_for(op, families) for name, op in operators.items()}
    imported = set(project_files())
    sources = Sources(tuple(r.resolve() for r in roots), environment, imported)
    operators, inspections, left_out = read_and_render(operators, options.mode, wanted, baselines, sources, mistakes)
    mistakes.tell()
    files = sorted({*input_files(roots, operators, request.database, imported), *workload.paths})
    toolchains = {b: toolchain_for(b, environment).identity() for b in _backends(operators.values(), families)}
    xla = xla_include_folder(options.xla_ffi)
    linked = linked_libraries(operators, request.compile, toolchains, environment)
    check_machine(toolchains.get("cxx", {}).get("machine", ""))
    notes = [text for text in (left_out, *misspelt(environment), *(caution_of(f) for f in families)) if text]
    found = machines.devices(options.threads or usable_cores(), families)
    if may_measure and options.mode in ("auto", "tune"):
        notes += machines.check_measuring(targets, toolchains.get("nvcc", {}).get("version", "0.0"), environment)
        check_memory(operators.values(), options.filter, targets, found, workload.places)
    notes += [*workload.notes, *workload.plan.notes(operators, families)]
    notes += idle_kernels(operators.values(), targets)
    notes += unchecked(operators.values(), targets) if options.mode not in _UNMEASURED else []
    plan = Plan(
        name=request.name,
        prefix=request.prefix,
        header=request.header,
        output=request.output,
        module=request.module,
        operators=tuple(operators),
        targets=tuple(t.name for t in in_order([*targets, *([older] if older else [])])),
        older=older.name if older else "",
        baselines=tuple(t.name for t in baselines),
        families=tuple(families),
        options=msgspec.structs.replace(options, workload=(), xla_ffi="1" if xla else ""),
        may_measure=may_measure,
        toolchains=toolchains,
        devices=tuple(d.name for d in found),
        machine=hashlib.sha256("".join(d.digest for d in found).encode()).hexdigest(),
        inputs=digest_of_inputs(files, roots),
        notes=tuple(notes),
        inspections=inspections,
        workload=workload.plan,
        compile=msgspec.structs.replace(request.compile, include_directories=(), libraries=()),
    )
    chains = [toolchain_for(b, environment) for b in plan.toolchains]
    paths = Paths(
        templates=tuple(str(r.resolve()) for r in roots),
        database=request.database,
        compilers=tuple(
            f"compiler {c.name} {plan.toolchains[c.name]['version']}: {c.origin()}" for c in chains if c.origin()
        ),
        link_arguments=(*linked, *dict.fromkeys(a for c in chains for a in c.link_arguments())),
        include_folders=tuple(dict.fromkeys(f for c in chains for f in c.include_folders())),
        compile=msgspec.structs.replace(request.compile, definitions=(), options=()),
        xla_include=xla,
        cxx=environment.get("CXX", ""),
    )
    return plan, paths, files


def _check_request(request: Request) -> None:
    """Raise for names that are not allowed, for files outside of the build folder, and for bad options."""
    for what, name in (("library name", request.name), ("prefix", request.prefix), ("module", request.module or "m")):
        check_identifier(name, what)
    check_settings(request.compile, request.name)
    parts = request.header.split("/")
    for what, name, good in (
        ("OUTPUT_NAME", request.output, not request.output or _FILE.match(request.output)),
        ("HEADER", request.header, all(_FILE.match(part) for part in parts)),
    ):
        if not good:
            raise BuildError(
                f"library {request.name!r}: {what} {name[:100]!r} is not allowed",
                why="it names a file below the folder of the build",
                fix="use letters, digits and _ . + -"
                + (", with / between folders, such as mine/ops.h" if what == "HEADER" else ", without a folder"),
            )


def _databases(folder: str) -> list[OperatorDatabase]:
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise BuildError(
            f"database {folder!r} is not a folder",
            why="DATABASE names the folder of recorded measurements",
            fix="leave DATABASE out, write the folder with `aot-tune tune` or `aot-tune record`, then name it",
        )
    return load_databases(Path(folder))


def _recorded(databases: Iterable[OperatorDatabase]) -> dict[str, list[Problem]]:
    """The problems of databases by operator."""
    found: dict[str, list[Problem]] = {}
    for database in databases:
        found.setdefault(database.operator, []).extend(database.problems)
    return found


def _check_environment(options: Options, environment: Mapping[str, str]) -> None:
    """Raise for a bad date, or for an unusable cache that the user named. A build can do without the default cache."""
    check_epoch(environment)
    tiers = ";".join(options.cache_tiers)
    named = {
        "AOT_TUNE_CACHE": options.cache, "AOT_TUNE_CACHE_DIR": options.cache_dir, "AOT_TUNE_CACHE_TIERS": tiers,
    }  # fmt: skip
    location = cache_location({**environment, **{k: v for k, v in named.items() if v}})
    if location.root is not None and location.required:
        check_folder(location.root, trusted=location.trusted, writable=location.mode != "ro")


def _backends(operators: Iterable[Operator], families: Sequence[str]) -> list[str]:
    found = {k.backend for op in operators for k in op.kernels}
    return sorted(b for b in found if families_of(toolchain_for(b)) & set(families))


def write_plan(directory: Path, plan: Plan, paths: Paths, files: Sequence[Path]) -> None:
    """Write plan, paths and the list of input files below `directory`. An unchanged plan keeps its time stamp."""
    directory.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    path = directory / "plan.json"
    if not path.is_file() or path.read_bytes() != text:
        path.write_bytes(text)
    (directory / "paths.json").write_bytes(msgspec.json.encode(paths))
    listed = "\n".join(f"  [==[{f}]==]" for f in files)
    (directory / "plan.cmake").write_text(
        f"set(_aot_tune_inputs\n{listed}\n)\n"
        + _cmake_list("families", plan.families)
        + _cmake_list("backends", plan.toolchains)
        + _cmake_list("link_arguments", paths.link_arguments)
        + _cmake_list("include_folders", paths.include_folders)
        + _cmake_list("xla_include", filter(None, [paths.xla_include])),
        encoding="utf-8",
    )


def _cmake_list(name: str, values: Iterable[str]) -> str:
    return f"set(_aot_tune_{name}{''.join(f' [==[{v}]==]' for v in values)})\n"


def read_plan(directory: Path) -> tuple[Plan, Paths]:
    """Read what `write_plan` wrote. `Paths.compile` is complete: it includes the CMake target's settings.

    Raises:
        BuildError: when `directory` has no plan, or a plan of another version.
    """
    try:
        plan = msgspec.json.decode((directory / "plan.json").read_bytes(), type=Plan)
        paths = msgspec.json.decode((directory / "paths.json").read_bytes(), type=Paths)
    except (OSError, msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BuildError(
            f"{directory} holds no plan of this version", why=str(error), fix="configure the build again with CMake"
        ) from error
    target = of_target(directory / "target.txt", (str(directory), *paths.include_folders))
    whole = plan.compile.with_more(paths.compile).with_more(target)
    check_settings(whole, plan.name)
    return plan, msgspec.structs.replace(paths, compile=whole)
