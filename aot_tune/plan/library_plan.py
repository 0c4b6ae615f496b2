"""The plan of a library: what CMake asked for, checked before any compile, and written down for the build step.

If `plan.json` changes, the build step runs again. So it holds contents, but no path that may differ between two
isolated builds on this machine. These paths are in `paths.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.compile import families_of, generic_targets, template_folders, toolchain_for
from aot_tune.compile.device_targets import host_flags
from aot_tune.database import OperatorDatabase, deciding, load_databases
from aot_tune.plan.compile_settings import CompileSettings, check_settings, linked_libraries, of_target
from aot_tune.plan.kept_glue import GLUE, fetch_glue
from aot_tune.plan.options import Options, misspelt, resolve
from aot_tune.plan.preflight import (
    Machines,
    ThisMachine,
    caution_of,
    caution_of_temporaries,
    check_answers,
    check_backends,
    check_devices,
    check_epoch,
    check_filter,
    check_kernels,
    check_memory,
    idle_kernels,
    machine_of,
    unchecked,
    with_compiler,
)
from aot_tune.plan.stated_workloads import WorkloadPlan, read_workload
from aot_tune.plan.wanted_targets import apart, check_instructions, eight_bit_baselines, generic_dtypes, in_order
from aot_tune.render import Candidate, Renderer, candidate_for, candidates_for, generic_candidates, resolved
from aot_tune.spec import ConfigValue, Kernel, Operator, Problem, Target
from aot_tune.spec.load_operators import load_operators, operator_folders, template_paths
from aot_tune.spec.names import check_identifier
from aot_tune.support.digests import digest_of_files
from aot_tune.support.errors import AotTuneError, BuildError, Mistakes, SpecError, tell_all
from aot_tune.support.installed_paths import PACKAGE, package_code, project_files
from aot_tune.support.limits import usable_cores
from aot_tune.support.storage import (
    CacheLocation,
    CorruptError,
    OtherSchemaError,
    cache_location,
    check_folder,
    seal,
    unseal,
    write_changed,
)
from aot_tune.triton.ask_declarations import Inspections, read_functions, with_declarations

_UNMEASURED = ("generic", "compile")
"""Modes that choose nothing by measurements, neither new nor recorded."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}\Z")

_SCHEMA = 1
"""Of `paths.json`, which also has the digest of `plan.json`."""

_NO_INPUTS = ("__pycache__", ".git")
"""Folders that change by themselves. CMake's build folders do too, if a project's own folder is a root."""

_XLA_HEADER = "xla/ffi/api/c_api.h"
_NEWEST_USED = "XLA_FFI_DeviceOrdinal_Get"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `aot_tune_add_library`."""

    name: str
    prefix: str
    header: str
    output: str = ""
    module: str = ""
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
            f"devices {'; '.join(self.devices) or 'none of this machine'}",
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
    """Where a plan's inputs are here. `compilers` has a line for each that was chosen. `cxx` is CMake's CXX."""

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
    roots, mistakes = template_paths(request.templates), Mistakes()
    check_backends(options.exclude_backends, roots, options.operators)
    loaded = load_operators(roots, options.operators, options.exclude_backends, mistakes)
    operators = {name: operator for name, (_, operator) in loaded.items()}
    if not operators:
        mistakes.tell()
        raise BuildError(
            f"library {request.name!r} has no operators",
            why=f"no <operator>/operator.py below {', '.join(map(str, roots))}",
            fix="add a folder with an operator.py, or name `bundled` among TEMPLATES",
        )
    check_kernels(operators)
    roots += template_folders(k.backend for op in operators.values() for k in op.kernels)
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
    environment = with_compiler(environment, wanted)
    machine = machine_of(wanted, _compiler_machine(operators.values(), environment))
    targets = wanted if options.mode != "generic" else []
    baselines = (*generic_targets(wanted, machine), *eight_bit_baselines(operators.values(), wanted))
    families = sorted({t.family for t in (*baselines, *wanted)})
    check_answers(operators, families)
    operators = {name: workload.plan.stated_for(op, families) for name, op in operators.items()}
    imported = set(project_files())
    operators, inspections, left_out = _read_and_render(
        operators, options.mode, wanted, baselines, [r.resolve() for r in roots], environment, imported, mistakes
    )
    mistakes.tell()
    files = sorted({*input_files(roots, operators, request.database, imported), *workload.paths})
    toolchains = {b: toolchain_for(b, environment).identity() for b in _backends(operators.values(), families)}
    xla, no_handlers = _xla_include_folder(options.xla_ffi)
    linked = linked_libraries(operators, request.compile, toolchains, environment)
    caution = caution_of(machine, options.mode)
    devices = [] if caution else machines.devices(options.threads or usable_cores(), families)
    cautions = (caution, caution_of_temporaries(environment), *(family(f).caution for f in families))
    notes = [text for text in (left_out, no_handlers, *misspelt(environment), *cautions) if text]
    if may_measure and options.mode in ("auto", "tune"):
        notes += machines.check_measuring(targets, toolchains.get("nvcc", {}).get("version", "0.0"), environment)
        check_memory(operators.values(), options.filter, targets, devices, workload.places)
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
        options=replace(options, workload=(), xla_ffi="1" if xla else ""),
        may_measure=may_measure,
        toolchains=toolchains,
        devices=tuple(d.name for d in devices),
        machine=hashlib.sha256("".join(d.digest for d in devices).encode()).hexdigest(),
        inputs=_digest_of_inputs(files, roots),
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
            fix="leave DATABASE out, write the folder with `aot-tune tune` or `aot-tune records export`, then name it",
        )
    return load_databases(Path(folder))


def _recorded(databases: Iterable[OperatorDatabase]) -> dict[str, list[Problem]]:
    """The problems of databases by operator."""
    problems: dict[str, list[Problem]] = {}
    for database in databases:
        problems.setdefault(database.operator, []).extend(database.problems)
    return problems


def cache_of(options: Options, environment: Mapping[str, str]) -> CacheLocation:
    """Where a build keeps objects and measurements."""
    tiers = ";".join(options.cache_tiers)
    named = {
        "AOT_TUNE_CACHE": options.cache, "AOT_TUNE_CACHE_DIR": options.cache_dir, "AOT_TUNE_CACHE_TIERS": tiers,
    }  # fmt: skip
    return cache_location({**environment, **{k: v for k, v in named.items() if v}})


def _check_environment(options: Options, environment: Mapping[str, str]) -> None:
    """Raise for a bad date, or for an unusable cache that the user named. A build can do without the default cache."""
    check_epoch(environment)
    location = cache_of(options, environment)
    if location.root is not None and location.required:
        check_folder(location.root, trusted=location.trusted, writable=location.mode != "ro")


def _compiler_machine(operators: Iterable[Operator], environment: Mapping[str, str]) -> str:
    """What the C++ compiler is for; empty if no kernel needs it."""
    if all(k.backend != "cxx" for op in operators for k in op.kernels):
        return ""
    return toolchain_for("cxx", environment).identity()["machine"]


def _backends(operators: Iterable[Operator], families: Sequence[str]) -> list[str]:
    backends = {k.backend for op in operators for k in op.kernels}
    return sorted(b for b in backends if families_of(toolchain_for(b)) & set(families))


def write_plan(directory: Path, plan: Plan, paths: Paths, files: Sequence[Path], compiled_as: str = "") -> None:
    """Write plan, paths and the list of input files below `directory`. An unchanged plan keeps its time stamp.

    `compiled_as` says how CMake would compile what `fetch_glue` takes from the cache; nothing is taken if it is empty.
    """
    text = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    write_changed(directory / "plan.json", text)
    write_changed(directory / "paths.json", seal((hashlib.sha256(text).hexdigest(), paths), _SCHEMA))
    listed = "\n".join(f"  [==[{f}]==]" for f in files)
    decides = (*plan.families, *host_flags(plan.baselines), *paths.include_folders)
    location = cache_of(plan.options, os.environ)
    glue = fetch_glue(directory, location, compiled_as, decides, paths.xla_include)
    variables = (
        f"set(_aot_tune_inputs\n{listed}\n)\n"
        + _cmake_list("families", plan.families)
        + _cmake_list("host_flags", host_flags(plan.baselines))
        + _cmake_list("backends", plan.toolchains)
        + _cmake_list("link_arguments", paths.link_arguments)
        + _cmake_list("include_folders", paths.include_folders)
        + _cmake_list("xla_include", filter(None, [paths.xla_include]))
        + "".join(_cmake_list(kind, map(str, filter(None, [glue.get(kind)]))) for kind in GLUE)
    )
    write_changed(directory / "plan.cmake", os.fsencode(variables))


def _cmake_list(name: str, values: Iterable[str]) -> str:
    return f"set(_aot_tune_{name}{''.join(f' [==[{v}]==]' for v in values)})\n"


def read_plan(directory: Path) -> tuple[Plan, Paths]:
    """Read what `write_plan` wrote. `Paths.compile` is complete: it includes the CMake target's settings.

    Raises:
        BuildError: when `directory` has no plan, a damaged one, or one of another version. The next build makes it.
    """
    try:
        text = (directory / "plan.json").read_bytes()
        digest, paths = unseal((directory / "paths.json").read_bytes(), tuple[str, Paths], _SCHEMA)
        if hashlib.sha256(text).hexdigest() != digest:
            raise CorruptError("plan.json is not as it was written")
        plan = msgspec.json.decode(text, type=Plan)
    except (OSError, ValueError, CorruptError, OtherSchemaError) as error:
        with contextlib.suppress(OSError):
            (directory / "plan.cmake").unlink(missing_ok=True)  # CMake reads it, so it configures again
        raise BuildError(
            f"{directory} holds no plan of this version",
            why=str(error),
            fix="build again: CMake configures again before it",
        ) from error
    target = of_target(directory / "target.txt", (str(directory), *paths.include_folders))
    whole = plan.compile.with_more(paths.compile).with_more(target)
    check_settings(whole, plan.name)
    return plan, msgspec.structs.replace(paths, compile=whole)


def _read_and_render(
    operators: Mapping[str, Operator],
    mode: str,
    wanted: Sequence[Target],
    baselines: Sequence[Target],
    roots: Sequence[Path],
    environment: Mapping[str, str],
    imported: set[str],
    mistakes: Mistakes,
) -> tuple[dict[str, Operator], Inspections, str]:
    """The operators with the declarations of their Triton functions, these declarations, and why any are missing.

    One config of every kernel is rendered, also in the mode `generic`, which does not use most of them. Otherwise
    somebody else would meet an error in their templates. The mode `compile` renders all of them later. `imported` gets
    the files of modules that are imported.
    """
    families = sorted({t.family for t in (*baselines, *wanted)})
    inspections: Inspections = {}
    left_out, whole = "", dict(operators)  # if functions cannot be read, operators are checked as they are
    with mistakes.gather():
        inspections, left_out = read_functions(operators, wanted, baselines, roots, environment, imported)
        whole = {name: with_declarations(op, inspections, families) for name, op in operators.items()}
    with mistakes.gather():
        if mode != "compile":
            _check_spaces(whole, wanted, baselines, roots)
    with mistakes.gather():
        check_instructions(whole, wanted if mode != "generic" else (), wanted)
    if mode != "generic" or mistakes:
        return whole, inspections, left_out
    shipped = {t.name for t in baselines}
    kept = {name: {t: d for t, d in by_target.items() if t in shipped} for name, by_target in inspections.items()}
    kept = {name: by_target for name, by_target in kept.items() if by_target}
    return {name: with_declarations(op, kept, families) for name, op in operators.items()}, kept, ""


def _check_spaces(
    operators: Mapping[str, Operator], targets: Sequence[Target], baselines: Sequence[Target], roots: Sequence[Path]
) -> None:
    """Render one config of every kernel and target, so that mistakes in templates show before anything is compiled.

    A mistake that several kernels meet at the same line is told once.
    """
    renderer, mistakes = Renderer(roots), dict[str, AotTuneError]()
    for operator in operators.values():
        for kernel in operator.kernels:
            served = families_of(toolchain_for(kernel.backend))
            for target in (t for t in (baselines if kernel.generic else targets) if t.family in served):
                if not kernel.was_read(target.name):
                    continue  # its constraints exclude the target
                if kernel.generic and not generic_dtypes(operator, kernel, target):
                    continue  # it belongs to another baseline
                try:
                    _render_one(renderer, operator, resolved(kernel, target.name), target)
                except AotTuneError as error:
                    mistakes.setdefault(error.what.partition(" (kernel ")[0], error)
    tell_all(mistakes.values())


def _render_one(renderer: Renderer, operator: Operator, kernel: Kernel, target: Target) -> None:
    try:
        config = next(kernel.configs(target.facts), None)
    except SpecError as error:  # of a constraint
        what = f"operator {operator.name!r}: kernel {kernel.name!r}: {error.what}"
        raise SpecError(what, why=error.why, fix=error.fix) from error
    candidate = _any_candidate(operator, kernel, config, target) if config is not None else None
    if candidate is not None:
        renderer.render(operator, candidate, target)


def _any_candidate(
    operator: Operator, kernel: Kernel, config: dict[str, ConfigValue], target: Target
) -> Candidate | None:
    """A candidate of a config; None if a Triton function serves no problem of the target's devices."""
    if kernel.triton is None:
        problem = next(iter(operator.workload_for(target.family)), None)
        return candidate_for(operator, kernel, config, target, problem)
    if kernel.generic:
        dtypes = generic_dtypes(operator, kernel, target)[0]
        return generic_candidates(operator, kernel, config, target, dtypes)[0]
    return next(candidates_for(operator, kernel, config, target), None)


def input_files(
    roots: Sequence[Path], operators: Mapping[str, Operator], database: str, imported: Iterable[str]
) -> list[Path]:
    """The files that a plan is made of: below roots, records, this package's code, sources, imported modules."""
    files = set(package_code())
    for root in roots:
        others = {p.name for p in root.iterdir() if (p / "operator.py").is_file() and p.name not in operators}
        for folder, folders, names in os.walk(root):
            path = Path(folder)
            if path == root:
                folders[:] = [f for f in folders if f not in others]
            folders[:] = [f for f in folders if f not in _NO_INPUTS and not (path / f / "CMakeFiles").is_dir()]
            files |= {path / name for name in names if (path / name).is_file()}
    if database:
        files |= {p for p in Path(database).rglob("*.jsonl") if p.is_file()}
    files |= {Path(f.folder, Path(f.path).name) for op in operators.values() for k in op.kernels for f in k.functions}
    below = [root.resolve() for root in roots]
    files |= {p for p in map(Path, imported) if not any(p.resolve().is_relative_to(b) for b in below)}
    return sorted(files)


def _digest_of_inputs(files: Sequence[Path], roots: Sequence[Path]) -> str:
    """Digest of names and contents. A file's name is relative to the root that has it."""
    bases = [*(r.resolve() for r in roots), PACKAGE]

    def name(file: Path) -> str:
        return str(file.relative_to(next((b for b in bases if file.is_relative_to(b)), file.parent)))

    return digest_of_files((name(p.resolve()), p) for p in files)


def _xla_include_folder(option: str) -> tuple[str, str]:
    """The include folder for XLA's headers, empty for no handlers, and a note if a jaxlib cannot serve.

    Args:
        option: empty, a folder, 1 for the jaxlib in the build's Python, or auto for 1 if there is one.

    Raises:
        BuildError: when there are no headers, or they are too old, and the option demands them.
    """
    if option == "auto":
        try:
            return (_xla_headers("1"), "") if importlib.util.find_spec("jaxlib") else ("", "")
        except BuildError as error:
            return "", f"no handlers for XLA's FFI: {error.what.partition(': ')[2]}"
    return (_xla_headers(option) if option else ""), ""


def _xla_headers(option: str) -> str:
    folder = _of_jax() if option == "1" else Path(option)
    if not (folder / _XLA_HEADER).is_file():
        raise BuildError(
            f"AOT_TUNE_XLA_FFI={option}: there is no {folder / _XLA_HEADER}",
            why="handlers of XLA's FFI are compiled against its header",
            fix="name the folder that jax.ffi.include_dir() returns, or 1 for the headers of the build's Python",
        )
    if _NEWEST_USED not in (folder / _XLA_HEADER).read_text(encoding="utf-8", errors="replace"):
        raise BuildError(
            f"AOT_TUNE_XLA_FFI={option}: {folder / _XLA_HEADER} is too old",
            why=f"it lacks {_NEWEST_USED}",
            fix="use the headers of a newer jaxlib",
        )
    return str(folder)


def _of_jax() -> Path:
    """The folder that jax.ffi.include_dir() returns. jax is not imported."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(
            "AOT_TUNE_XLA_FFI=1: the Python of the build has no jaxlib",
            why="handlers of XLA's FFI are compiled against its headers",
            fix="install jaxlib for that Python, with --no-build-isolation or among the build's requirements, or name "
            "the folder that jax.ffi.include_dir() returns",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "include"
