"""Kernels: a source with its parameter space, the guards under which it is right, and the problems it is meant for."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType

from aot_tune.expr.integer_expressions import Expr, ExprLike, Facts, all_of, as_expr, parameter
from aot_tune.spec.names import check_identifier, check_several, check_template_path
from aot_tune.spec.native_function import HEADERS, NativeFunction, backend_of_suffix
from aot_tune.spec.problem import Problem
from aot_tune.spec.targets import CompileOptions, refuse_device_facts
from aot_tune.spec.triton_function import TritonFunction
from aot_tune.support.errors import SpecError, did_you_mean

_PREFIX = "parameter."

Tile = Mapping[str, ExprLike]
"""Dim to how much of it one block computes, or covers in one step: integers, or expressions over parameters."""

_TileOf = Callable[[Mapping[str, object]], Mapping[str, int] | None]
"""The same as a function of a config, for parameters that are a vendor's numbers. None: the tile is unknown."""


@dataclass(frozen=True)
class Tiling:
    """The tile of one config: extents by dim, and how many blocks share the steps of a tile.

    Blocks come in clusters of `cluster` tiles along dims. `occupancy` blocks run at a time on a multiprocessor or core.
    """

    extents: Mapping[str, int]
    split: int = 1
    cluster: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    occupancy: int = 1


ConfigValue = int | bool | float | str
Config = Mapping[str, ConfigValue]
"""One point of a parameter space: parameter name to value."""

SANITIZERS = ("address,undefined", "thread", "memcheck", "racecheck", "initcheck", "synccheck")
"""What variants that are kept may run under: the first two on CPUs, the others on NVIDIA's GPUs."""
_MOST_CONFIGS = 100_000_000
_USUAL = ("-fexceptions", "-frtti")
"""Options that functions of C++ usually assume. Templates do without them."""
_ENUM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")


@dataclass(frozen=True)
class Parameter:
    """A named axis of a parameter space. Values are numbers, booleans or identifier-like strings.

    Expressions see integers, so only sources can use a value with a fraction.
    """

    name: str
    values: tuple[ConfigValue, ...]

    def __post_init__(self) -> None:
        check_identifier(self.name, "parameter")
        check_several(self.values, f"parameter {self.name!r}: values")
        if not self.values:
            raise SpecError(f"parameter {self.name!r} has no values", fix="list at least one")
        for value in self.values:
            finite = isinstance(value, (int, float)) and math.isfinite(value)
            if not finite and not (isinstance(value, str) and _ENUM.match(value)):
                shown = repr(value)[:80]
                raise SpecError(
                    f"parameter {self.name!r}: value {shown} is not a finite number, a boolean or an identifier",
                    why="values are written into source text",
                    fix="use a name for the choice and spell out its meaning in the template",
                )
        if len({(type(v), v) for v in self.values}) != len(self.values):
            raise SpecError(f"parameter {self.name!r} lists a value twice: {self.values}", fix="remove one")

    @property
    def has_fractions(self) -> bool:
        """Whether some values are not integers. Expressions need integers."""
        return any(isinstance(v, float) for v in self.values)


@dataclass(frozen=True)
class Kernel:
    """How an operator is computed.

    Args:
        name: unique within the operator.
        template: path below a template root; empty for a function.
        backend: the toolchain that compiles it: `cxx`, `nvcc`, `hipcc`, `triton`, a vendor's (`cublaslt`, `cudnn`,
            `cblas`), or that of another package. By default, the suffix of the file decides.
        dtypes: choices of the operator's dtype variables that it serves, one candidate each. By default, all.
        parameters: the parameter space. Without parameters there is one config.
        constraints: conditions over `parameter(..)` and `target(..)`. They say which configs exist for a target.
        requires: conditions over dims, strides, alignments, presence and attributes, under which the result is right.
            Dispatch checks them. `fact == constant` also makes the renderer print the constant. A `parameter(..)` has
            its value in each config: `N % parameter("VEC") == 0`.
        worthwhile: conditions over the same facts. Problems that do not meet them are not tried.
        pins: boolean parameter to dims. When the parameter is true, these dims are compiled in as constants.
        generic: it accepts every legal call in its dtypes, on its backend's devices. It has one config and is built for
            the baseline target of its backend. A Triton function may become several codes, see docs/triton-variants.md.
        order: configs to try first, the best guess first. Each gives some or all of the parameters.
        follows: dtype to the dtype that it resembles, `{"f16": "bf16"}`. A config is tried in the first dtype only if
            it was among the best in the second on some problem. It is tried on a problem only if it was not far from
            the best on the same problem in the second dtype. This is for kernels that take long to compile. For a
            vendor's library, only the second rule holds.
        algorithms: for a vendor's library: a function that turns a problem into the form that the library's module in
            `aot_tune.vendor` takes, or None to leave it out. The library's algorithms for it are tried beside the
            declared configs.
        triton: for the backend `triton`, a `TritonFunction`, or several that run one after the other. They share a
            `Buffer` if the same one is passed to them. If no parameters are given here, an autotuner's configs are the
            space.
        listed: configs that are listed one by one, instead of the product of parameters. `parameters` is then optional.
        tile: dim to how much of it one block computes; for a dim that no output has, how much of it one step covers.
            Values are integers or expressions over parameters; a function of the config may return all of them. With
            `split`, they give the blocks, waves and steps from which a variant's time on unmeasured shapes is expected.
        split: how many blocks share the steps of one tile.
        cluster: dim to how many tiles along it make a cluster. Clusters are always launched whole.
        occupancy: how many blocks run on a multiprocessor at the same time.
        compile_seconds: about how long one config compiles. Where compiling overlaps measuring, long ones start first.
        stages: for a composed kernel, its launches in order: a vendor's library by its backend, such as `cublaslt`;
            `epilogue` for the operator's epilogue as `common/epilogue.cuh.j2` makes it; or a name of its own. A build
            without one of the backends does without the kernel.
        scratch: bytes between the stages, over dims and parameters, such as `parameter("SPLIT") * M * N * 4`. In the
            template, `scratch()` gives the bytes of its config, which it adds to its workspace.
        function: a `CudaFunction` or a `Launcher`, or several that run one after the other. They share a `Buffer` if
            the same one is passed to them.
        compile: how its source is compiled and linked, beyond the options that every candidate gets.
        fills_in: it serves calls that no measured variant takes, before the generic one. Its first config is kept
            whether it was measured or not.
        false_reports: a sanitizer that reports what is no fault, to the reason: `{"racecheck": "bulk copies ..."}`. See
            docs/sandbox.md, "Sanitizers".
    """

    name: str
    template: str = ""
    backend: str = ""
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Expr, ...] = ()
    requires: tuple[Expr, ...] = ()
    worthwhile: tuple[Expr, ...] = ()
    pins: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    generic: bool = False
    order: tuple[Config, ...] = ()
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    follows: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    compile_seconds: float = 5.0
    algorithms: Callable[[Problem], Mapping[str, object] | None] | None = None
    triton: TritonFunction | tuple[TritonFunction, ...] | None = None
    listed: tuple[Config, ...] = ()
    tile: Tile | _TileOf = field(default_factory=lambda: MappingProxyType({}))
    split: ExprLike = 1
    cluster: Tile = field(default_factory=lambda: MappingProxyType({}))
    occupancy: ExprLike = 1
    stages: tuple[str, ...] = ()
    scratch: Expr | None = None
    fills_in: bool = False
    false_reports: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    function: NativeFunction | tuple[NativeFunction, ...] = ()
    compile: CompileOptions = field(default_factory=CompileOptions)
    _guards: dict[bool, list[tuple[Expr, ...]]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.function, NativeFunction):
            object.__setattr__(self, "function", (self.function,))
        if not self.backend:
            object.__setattr__(self, "backend", self._backend_of_file())
        for several in ("parameters", "constraints", "requires", "worthwhile", "order", "listed", "stages"):
            check_several(getattr(self, several), f"kernel {self.name!r}: {several}")
        if self.listed and not self.parameters:
            object.__setattr__(self, "parameters", _axes(self.listed))
        check_identifier(self.name, "kernel")
        check_identifier(self.backend, f"kernel {self.name!r}: backend")
        self._check_source()
        self._check_suffix()
        self._check_stages()
        for name in self.false_reports:
            if name not in SANITIZERS:
                fix = did_you_mean(name, SANITIZERS)
                raise SpecError(f"kernel {self.name!r}: false_reports name the unknown sanitizer {name!r}", fix=fix)
        names = [p.name for p in self.parameters]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"kernel {self.name!r} declares parameter {name!r} twice", fix="rename one")
        most = 1 if self.triton is None else len(self.listed)  # of Triton's, a build takes the first that fits
        if self.generic and (self.requires or len(self.listed) > most or (self.parameters and not self.listed)):
            raise SpecError(
                f"generic kernel {self.name!r} has parameters or requirements",
                why="a generic variant serves every legal call",
                fix="move them to another kernel",
            )
        if self.fills_in and (self.generic or self.pins or self.triton is not None or self.algorithms is not None):
            raise SpecError(
                f"kernel {self.name!r} fills in, but it is generic, pins dims, or gets its configs from elsewhere",
                why="its first config is kept for calls that nobody measured",
                fix="leave fills_in out, or move it to a kernel of a template with configs of its own",
            )
        self._check_tiles(names)
        self._check_space(names)

    def _check_space(self, names: list[str]) -> None:
        size = 1 if self.listed else math.prod(len(p.values) for p in self.parameters)
        if size > _MOST_CONFIGS:
            raise SpecError(
                f"kernel {self.name!r}: its parameters have {size} combinations",
                why=f"each is checked before anything is compiled, which takes minutes for {_MOST_CONFIGS}",
                fix="give fewer values, or list the configs that are worth a try in `listed`",
            )
        whole = [p.name for p in self.parameters if not p.has_fractions]
        for constraint in self.constraints:
            facts = [f for f in sorted(constraint.facts()) if not f.startswith("target.")]
            why = "constraints range over parameters and the target; `requires` ranges over the call"
            _check_parameters(facts, whole, f"kernel {self.name!r}: constraint {constraint.key()} uses", why)
        for pin in self.pins:
            if pin not in names:
                raise SpecError(f"kernel {self.name!r}: pins name the unknown parameter {pin!r}")
        for config in self.order:
            for name, value in config.items():
                axis = next((p for p in self.parameters if p.name == name), None)
                if axis is None or value not in axis.values:
                    raise SpecError(
                        f"kernel {self.name!r}: order has {name}={value!r}, which is not in the space",
                        fix=did_you_mean(name, names) if axis is None else f"{name} is one of {list(axis.values)}",
                    )

    @property
    def source(self) -> str:
        """The place of its source, for messages."""
        if self.functions:
            return ", ".join(f.function for f in self.functions)
        return ", ".join(f.function for f in self.triton_functions) or f"templates/{self.template}"

    @property
    def functions(self) -> tuple[NativeFunction, ...]:
        """The functions of C++ or CUDA that it runs, in order."""
        return self.function if isinstance(self.function, tuple) else (self.function,)

    @property
    def triton_functions(self) -> tuple[TritonFunction, ...]:
        """The Triton functions that it runs, in order."""
        return self.triton if isinstance(self.triton, tuple) else (self.triton,) if self.triton is not None else ()

    def was_read(self, target: str) -> bool:
        """Whether its Triton functions, if any, were read for a target. Constraints may exclude the target."""
        return all(target in f.inspections for f in self.triton_functions)

    def _backend_of_file(self) -> str:
        if self.triton is not None:
            return "triton"
        backends = [f.backend for f in self.functions if isinstance(f, NativeFunction)]
        backends = backends or [backend_of_suffix(str(self.template))]
        return next((name for name in ("nvcc", "hipcc") if name in backends), "cxx")

    def _check_source(self) -> None:
        check_several(self.function, f"kernel {self.name!r}: function")
        if not all(isinstance(f, NativeFunction) for f in self.functions):
            raise SpecError(
                f"kernel {self.name!r}: function {str(self.function)[:80]!r} is not a CudaFunction or Launcher",
                fix='write function=CudaFunction("folder/file.cu:name", {...}, grid=..., block=...)',
            )
        if self.triton == () or not all(isinstance(f, TritonFunction) for f in self.triton_functions):
            raise SpecError(
                f"kernel {self.name!r}: triton {str(self.triton)[:80]!r} is not a TritonFunction",
                fix='write triton=TritonFunction("file.py:name", {...}, grid=...), or a tuple of such',
            )
        given = ["a template"] if self.template else []
        given += ["a Triton function"] if self.triton is not None else []
        given += ["a function of C++ or CUDA"] if self.functions else []
        if not given:
            check_template_path(self.template, f"kernel {self.name!r}")
        if len(given) > 1:
            raise SpecError(f"kernel {self.name!r} has {' and '.join(given)}", fix="leave one of them out")
        if self.template:
            check_template_path(self.template, f"kernel {self.name!r}")
        if self.compile and self.backend not in ("cxx", "nvcc", "hipcc"):
            raise SpecError(
                f"kernel {self.name!r} has compile options, but its backend is {self.backend!r}",
                why="no C++ of the author's is compiled for it",
                fix="leave `compile` out",
            )

    def _check_suffix(self) -> None:
        """Raise if a file does not suit the compiler that the backend names."""
        for path in [f.path for f in self.functions] or [self.template]:
            suffix = backend_of_suffix(path)
            if (
                suffix != self.backend
                and {suffix, self.backend} <= {"cxx", "nvcc", "hipcc"}
                and not (self.functions and suffix == "cxx" and path.endswith(HEADERS))
            ):
                raise SpecError(
                    f"kernel {self.name!r}: {path!r} is not for the backend {self.backend!r}",
                    why=f"the suffix says {suffix!r}: it decides which compiler sees the file",
                    fix="leave `backend` out, or rename the file",
                )

    def _check_stages(self) -> None:
        for stage in self.stages:
            check_identifier(stage, f"kernel {self.name!r}: stage")
        if len(self.stages) == 1:
            raise SpecError(
                f"kernel {self.name!r} has one stage, {self.stages[0]!r}",
                why="stages are the launches of a composed kernel",
                fix="list all of them, or leave `stages` out",
            )
        if self.scratch is not None and not isinstance(self.scratch, Expr):
            raise SpecError(
                f"kernel {self.name!r}: scratch {str(self.scratch)[:80]!r} is not an expression",
                fix="give the bytes as an expression of dims and parameters, such as M * N * 4",
            )
        if self.scratch is not None and not self.stages:
            raise SpecError(
                f"kernel {self.name!r} has scratch memory but no stages",
                why="scratch memory is used between the launches of a composed kernel",
                fix='list them: stages=("cublaslt", "epilogue")',
            )

    def options(self, shared: CompileOptions) -> CompileOptions:
        """How its source is compiled: folders of its functions' files, its own options, and the library's."""
        folders = tuple(dict.fromkeys(f.folder for f in self.functions if f.folder))
        own, usual = self.compile, _USUAL if self.functions and self.backend == "cxx" else ()
        return CompileOptions(
            include_directories=(*folders, *own.include_directories, *shared.include_directories),
            definitions={**shared.definitions, **own.definitions},
            options=(*usual, *shared.options, *own.options),
            libraries=(*own.libraries, *shared.libraries),
        )

    def uses(self, backends: Collection[str]) -> bool:
        """Whether it, or one of its stages, needs one of these backends."""
        return self.backend in backends or not set(backends).isdisjoint(self.stages)

    def tiling(self, config: Config) -> Tiling | None:
        """The tile of one of its configs, if it declares tiles.

        Raises:
            SpecError: for an extent, a split, a cluster or an occupancy below 1.
        """
        declared = self.tile(config) if callable(self.tile) else self.tile
        if not declared:
            return None
        facts = {f"parameter.{n}": v for n, v in _integers(self, config).items()}
        extents = {d: as_expr(e, f"the tile of {d!r}").evaluate(facts) for d, e in declared.items()}
        cluster = {d: as_expr(e, f"the cluster along {d!r}").evaluate(facts) for d, e in self.cluster.items()}
        split = as_expr(self.split, "the split").evaluate(facts)
        occupancy = as_expr(self.occupancy, "the occupancy").evaluate(facts)
        along = ((f"a cluster along {d}", n) for d, n in cluster.items())
        for what, value in (*extents.items(), ("split", split), *along, ("occupancy", occupancy)):
            if value < 1:
                raise SpecError(f"the tile of config {dict(config)} has {what} = {value}", fix="give 1 or more")
        return Tiling(extents, split, {d: n for d, n in cluster.items() if n > 1}, occupancy)

    def _check_tiles(self, names: list[str]) -> None:
        """Refuse a tile that uses anything but parameters."""
        where = f"kernel {self.name!r}: its tile, split, cluster or occupancy"
        declared = [] if callable(self.tile) else list(self.tile.values())
        for extent in (*declared, self.split, *self.cluster.values(), self.occupancy):
            facts = sorted(extent.facts()) if isinstance(extent, Expr) else []
            _check_parameters(facts, names, f"{where} uses", "they range over the kernel's parameters")

    def configs(self, target_facts: Mapping[str, int]) -> Iterator[dict[str, ConfigValue]]:
        """All configs that the constraints allow for a target, in the order of declaration.

        There are none if a constraint that depends only on the target excludes the kernel.

        Raises:
            SpecError: when the kernel is for the target but no config satisfies the constraints.
        """
        named = {f"target.{n}": v for n, v in target_facts.items()}
        if not all(c.evaluate(named) for c in self.constraints if c.facts() and c.facts() <= named.keys()):
            return
        has_config = False
        constraints = [_Constraint(self, c, named) for c in self.constraints]
        for config in _space(self):
            if all(c.holds(config) for c in constraints):
                has_config = True
                yield config
        if not has_config:
            raise SpecError(
                "its constraints leave no config",
                why="; ".join(c.key() for c in self.constraints) + f" under target facts {dict(target_facts)}",
                fix="loosen a constraint or add parameter values",
            )

    def has(self, config: Mapping[str, ConfigValue], target_facts: Mapping[str, int]) -> bool:
        """Whether a config is one of those that `configs` gives for a target."""
        axes = {p.name: p.values for p in self.parameters}
        if config.keys() != axes.keys() or not all(v in axes[n] for n, v in config.items()):
            return False
        if self.listed and dict(config) not in map(dict, self.listed):
            return False
        named = {f"target.{n}": v for n, v in target_facts.items()}
        return all(_Constraint(self, c, named).holds(config) for c in self.constraints)


class _Constraint:
    """A kernel's constraint for a target. It is evaluated once for configs with equal values of its parameters."""

    def __init__(self, kernel: Kernel, constraint: Expr, named: Mapping[str, int]) -> None:
        self._kernel, self._constraint, self._named = kernel, constraint, named
        parts = (name.partition(".") for name in sorted(constraint.facts()))
        self._parameters = tuple(name for kind, _, name in parts if kind == "parameter")
        self._known: dict[tuple[ConfigValue | None, ...], bool] = {}

    def holds(self, config: Mapping[str, ConfigValue]) -> bool:
        """Whether it holds for a config."""
        values = tuple(map(config.get, self._parameters))
        holds = self._known.get(values)
        if holds is None:
            facts = {f"parameter.{n}": v for n, v in _integers(self._kernel, config).items()}
            holds = self._known[values] = bool(self._constraint.evaluate({**facts, **self._named}))
        return holds


def table(names: str, *rows: tuple[ConfigValue, ...]) -> tuple[Config, ...]:
    """Configs as rows of a table, whose head names the parameters: `table("ROWS WIDTH", (1, 128), (2, 64))`."""
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


def among(parameters: tuple[Parameter, ...], rows: tuple[Config, ...]) -> Expr:
    """A constraint that allows only configs in `rows`, for a kernel that has few: `among(PARAMETERS, table(...))`."""
    values = {p.name: p.values for p in parameters}

    def is_row(row: Config) -> Expr:
        indexed = ((n, values[n].index(v) if isinstance(v, str) else v) for n, v in row.items())
        return reduce(operator.and_, (parameter(name) == int(value) for name, value in indexed))

    return reduce(operator.or_, map(is_row, rows))


def _axes(listed: tuple[Config, ...]) -> tuple[Parameter, ...]:
    """The parameters of listed configs, with all their values."""
    names = dict.fromkeys(name for config in listed for name in config)
    return tuple(Parameter(n, tuple(dict.fromkeys(c[n] for c in listed if n in c))) for n in names)


def _check_parameters(facts: Sequence[str], names: Sequence[str], uses: str, why: str) -> None:
    """Refuse facts other than parameters with these names. `uses` begins the message."""
    refuse_device_facts(facts, uses.removesuffix(" uses"))
    for fact in facts:
        if not fact.startswith(_PREFIX) or fact.removeprefix(_PREFIX) not in names:
            raise SpecError(f"{uses} {fact!r}", why=why, fix=did_you_mean(fact.removeprefix(_PREFIX), names))


def _integers(kernel: Kernel, config: Config) -> dict[str, int]:
    """A config as expressions see it: a text is its index, and a number with a fraction is left out."""
    axes = {p.name: p.values for p in kernel.parameters}
    return {
        n: axes[n].index(v) if isinstance(v, str) else int(v) for n, v in config.items() if not isinstance(v, float)
    }


def requires_of(kernel: Kernel, config: Config) -> tuple[Expr, ...]:
    """What a kernel requires of calls in one of its configs. Conditions that the config alone meets are left out."""
    return _without_config(kernel, kernel.requires, config)


def worthwhile_of(kernel: Kernel, config: Config) -> tuple[Expr, ...]:
    """The conditions of the problems on which one of a kernel's configs is tried; see `requires_of`."""
    return _without_config(kernel, kernel.worthwhile, config)


def with_config(kernel: Kernel, expr: Expr, config: Config) -> Expr:
    """An expression with a config's values for parameters, texts as indices. Raises SpecError for a missing one."""
    wanted = {fact.removeprefix(_PREFIX) for fact in expr.facts() if fact.startswith(_PREFIX)}
    if not wanted:
        return expr
    values: dict[str, int] = {}
    for name in sorted(wanted):
        if name not in config:
            raise _unknown(kernel, expr, name, config)
        values[_PREFIX + name] = _number(kernel, name, config)
    return expr.substitute(values)


def guard_sets(kernel: Kernel, *, worthwhile: bool = False) -> list[tuple[Expr, ...]]:
    """The different sets of what a kernel's configs require of calls; with `worthwhile`, also of problems.

    They are kept with the kernel, because they are asked for on every problem.
    """
    if worthwhile not in kernel._guards:
        stated = (*kernel.requires, *kernel.worthwhile) if worthwhile else kernel.requires
        kernel._guards[worthwhile] = _guard_sets(kernel, stated)
    return kernel._guards[worthwhile]


def _guard_sets(kernel: Kernel, stated: tuple[Expr, ...]) -> list[tuple[Expr, ...]]:
    names = {f.removeprefix(_PREFIX) for e in stated for f in e.facts() if f.startswith(_PREFIX)}
    if not names:
        return [stated]
    sets: dict[tuple[str, ...], tuple[Expr, ...]] = {}
    for config in _space(kernel, names):
        guards = tuple(with_config(kernel, e, config) for e in stated)
        sets.setdefault(tuple(e.key() for e in guards), guards)
    # A Triton function whose configs are not read yet may have any config.
    return list(sets.values()) or [tuple(e for e in stated if not any(f.startswith(_PREFIX) for f in e.facts()))]


def may_serve(kernel: Kernel, facts: Facts, *, worthwhile: bool = False) -> bool:
    """Whether some config of a kernel serves a call; with `worthwhile`, whether it is also worth trying on it."""
    return any(all_of(guards, facts) for guards in guard_sets(kernel, worthwhile=worthwhile))


def check_guard_parameters(kernel: Kernel) -> None:
    """Raise SpecError for a parameter in `requires` or `worthwhile` that a kernel's configs do not have."""
    parameters = {p.name: p for p in kernel.parameters}
    for expr in (*kernel.requires, *kernel.worthwhile):
        facts = sorted(expr.facts()) if isinstance(expr, Expr) else []
        for name in (f.removeprefix(_PREFIX) for f in facts if f.startswith(_PREFIX)):
            if name not in parameters:
                raise _unknown(kernel, expr, name, parameters)
            for value in parameters[name].values:
                _number(kernel, name, {name: value})


def _without_config(kernel: Kernel, stated: tuple[Expr, ...], config: Config) -> tuple[Expr, ...]:
    pairs = ((e, with_config(kernel, e, config)) for e in stated)
    return tuple(guard for e, guard in pairs if guard is e or guard.op != "const" or not guard.value)


def _space(kernel: Kernel, names: Collection[str] | None = None) -> Iterator[dict[str, ConfigValue]]:
    """All configs before constraints; with `names`, the combinations of values of these parameters alone."""
    if kernel.listed:
        yield from ({n: v for n, v in c.items() if names is None or n in names} for c in kernel.listed)
        return
    axes = [p for p in kernel.parameters if names is None or p.name in names]
    if names is None or len(axes) == len(names):
        axis_names = [p.name for p in axes]
        for values in itertools.product(*(p.values for p in axes)):
            yield dict(zip(axis_names, values, strict=True))


def _number(kernel: Kernel, name: str, config: Config) -> int:
    value = config[name]
    if isinstance(value, float) and not value.is_integer():
        raise SpecError(
            f"kernel {kernel.name!r}: a guard or size uses the parameter {name!r}, which is {value}",
            why="guards and sizes are computed in whole numbers",
            fix="use another parameter there, or give whole values",
        )
    if not isinstance(value, str):
        return int(value)
    values = next((p.values for p in kernel.parameters if p.name == name), ())
    if value not in values:
        raise SpecError(
            f"kernel {kernel.name!r}: a guard compares the parameter {name!r}, which is the text {value!r}",
            fix=f"declare Parameter({name!r}, ...) in the kernel. A guard sees a text as its index in that list",
        )
    return values.index(value)


def _unknown(kernel: Kernel, expr: Expr, name: str, choices: Mapping[str, object]) -> SpecError:
    return SpecError(
        f"kernel {kernel.name!r}: {expr.key()} uses the unknown parameter {name!r}",
        fix=did_you_mean(name, choices) if choices else "declare it among the kernel's parameters",
    )
