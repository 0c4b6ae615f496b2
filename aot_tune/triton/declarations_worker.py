"""Reads what Triton functions declare.

    python -m aot_tune.triton.declarations_worker <request> <answer>    # two files of JSON

Each target has its own process, because packages choose configs by the device and store them when they are imported.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.expr.integer_expressions import as_expr
from aot_tune.expr.trace import trace
from aot_tune.render.triton.recipe import of_data
from aot_tune.spec import AMD_OPTIONS, DTYPES, OPTIONS, Declarations, Expr, Facts, parameter, present
from aot_tune.support.errors import AotTuneError, SentError, SpecError
from aot_tune.support.installed_paths import project_files
from aot_tune.triton import triton_private
from aot_tune.triton.absent_devices import TorchDtype, device_of, stand_in
from aot_tune.triton.installed import load
from aot_tune.triton.triton_messages import Answer, FunctionRequest, Given, InspectRequest, TensorFacts

_TRIES = 48
_REMEDY = "pass it as an expression in `arguments` of TritonFunction instead"


def _read_function(request: FunctionRequest, roots: list[str]) -> Declarations:
    """What a function declares.

    Raises:
        SpecError: when it does not exist, or declares what cannot be known ahead of time.
    """
    function = triton_private.unwrap(load(request.function, roots), request.function)
    parameters = function.parameters()
    names = [p.name for p in parameters]
    with triton_private.symbolic_helpers([compute for _, compute, _ in function.heuristics()]):
        heuristics, booleans = _trace_heuristics(request, function, names)
    constexprs = {p.name for p in parameters if p.constexpr}
    configs: list[dict[str, Any]] = []
    pruned: dict[str, list[int]] = {}
    if not request.parameters:  # otherwise the kernel has its own space
        chosen = set(OPTIONS) & heuristics.keys()  # a heuristic wins over a config
        configs = [{n: v for n, v in c.items() if n not in chosen} for c in function.configs()]
        _check_configs(request, configs, names)
        pruned = _prune(request, function, names, constexprs, heuristics)
    tuner: Any = function.autotuner
    reached = triton_private.reached(function.jit)
    return Declarations(
        parameters=parameters,
        configs=tuple(configs),
        keys=tuple(tuner.keys) if tuner is not None else (),
        hooks=function.hooked(),
        reset_to_zero=tuple(tuner.reset_to_zero) if tuner is not None else (),
        restore_value=tuple(tuner.restore_value) if tuner is not None else (),
        pruned=pruned,
        heuristics={name: expr.data() for name, expr in heuristics.items()},
        booleans=tuple(booleans),
        debug=function.debug(),
        digest=reached.digest,
        files=reached.files,
    )


def _check_configs(request: FunctionRequest, configs: list[dict[str, Any]], names: list[str]) -> None:
    arguments = (*names, *OPTIONS, *AMD_OPTIONS)
    for config in configs:
        for name, value in config.items():
            if name not in arguments and name != "ir_override":
                raise SpecError(
                    f"kernel {request.name!r}: a config of {request.function} has {name!r}, which is not an argument",
                    why=f"launch options that configs may set are {', '.join((*OPTIONS, *AMD_OPTIONS))}",
                    fix="declare `parameters` of the kernel. launch_pdl and cooperative are arguments of "
                    "TritonFunction",
                )
            if name == "ir_override" or not isinstance(value, (bool, int, str)):
                raise SpecError(
                    f"kernel {request.name!r}: a config of {request.function} has {name}={str(value)[:60]!r}",
                    why="values of configs are integers, booleans or names",
                    fix="declare `parameters` of the kernel, and map them in `arguments`",
                )


def _answer(request: FunctionRequest, roots: list[str]) -> Answer:
    try:
        inspection = _read_function(request, roots)
        return Answer(name=request.name, inspection=inspection, imported=project_files())
    except AotTuneError as error:
        return Answer(name=request.name, fault=SentError.of(error))
    except Exception as error:
        traceback.print_exc()
        what = f"kernel {request.name!r}: reading {request.function} fails: {type(error).__name__}: {error}"
        return Answer(name=request.name, fault=SentError(what, fix="try to import only its module with Python"))


def _main() -> int:
    """Answer the request in one file with another file."""
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=InspectRequest)
    device = device_of(request.target)
    triton_private.fake_driver(device)
    stand_in(device)
    answers = [_answer(function, request.roots) for function in request.functions]
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(answers))
    return 0


class UnknownValueError(Exception):
    """A function read something that is unknown before a kernel runs."""


class _Unknown:
    """A scalar, or memory that the build provides. It is known to exist, but its value is not known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _unknown(self, *_others: object) -> Any:
        raise UnknownValueError(f"it reads the value of {self._name!r}")

    __bool__ = __int__ = __float__ = __index__ = __neg__ = __abs__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __eq__ = __ne__ = _unknown
    __hash__ = None  # type: ignore[assignment]


class TensorView:
    """What is known of a tensor. `value` turns an expression into what the reader gets."""

    def __init__(self, facts: TensorFacts, value: Callable[[Expr], Any], block: Sequence[Any] = ()) -> None:
        self._facts, self._value, self._block = facts, value, block
        self.shape = tuple(value(Expr.of(e)) for e in facts.shape)
        self.strides = tuple(value(Expr.of(e)) for e in facts.strides)
        self.ndim = len(self.shape)
        self.is_cuda = True
        if block:
            self.base = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownValueError(f"it reads {name!r} of the tensor {self._facts.name!r}")

    def __getitem__(self, index: object) -> Any:
        raise UnknownValueError(f"it reads elements of the tensor {self._facts.name!r}")

    def _unknown(self) -> Any:
        return self[0]

    __bool__ = __len__ = __float__ = __int__ = __index__ = _unknown

    @property
    def block_shape(self) -> list[Any]:
        """Extents of a descriptor's blocks. A config may decide them."""
        if not self._block:
            raise UnknownValueError(f"it reads 'block_shape' of the tensor {self._facts.name!r}")
        return [self._value(Expr.of(e)) for e in self._block]

    @property
    def _name(self) -> str:
        """The spec's name of the element type. If a call decides it, each choice is followed."""
        for index, name in enumerate(self._facts.dtypes[:-1]):
            if bool(self._value(Expr("fact", value=self._facts.dtype_fact) == index)):
                return name
        return self._facts.dtypes[-1]

    @property
    def dtype(self) -> Any:
        """torch's dtype, if torch is loaded."""
        torch: Any = sys.modules.get("torch")
        return (
            getattr(torch, DTYPES[self._name].torch)
            if torch is not None
            else TorchDtype(DTYPES[self._name].torch, self.itemsize)
        )

    @property
    def itemsize(self) -> int:
        return DTYPES[self._name].itemsize

    def element_size(self) -> int:
        return self.itemsize

    def dim(self) -> int:
        return self.ndim

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def stride(self, axis: int | None = None) -> Any:
        return self.strides if axis is None else self.strides[axis]

    def numel(self) -> Any:
        count: Any = 1
        for extent in self.shape:
            count = count * extent
        return count

    def is_contiguous(self) -> bool:
        below: Any = 1
        for extent, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if step != below and extent != 1:
                return False
            below = below * extent
        return True


class KernelArguments(Mapping[str, Any]):
    """The arguments of a function, by name. `facts` are those of one call; None gives expressions.

    An absent optional tensor is None. With expressions, the reader is followed for both cases.
    """

    def __init__(self, given: Mapping[str, Given], facts: Facts | None, more: Mapping[str, Any] | None = None) -> None:
        self._given, self._facts = given, facts
        self._more = dict(more or {})

    def __getitem__(self, name: str) -> Any:
        if name in self._more:
            value = self._more[name]
            return self._value(value) if isinstance(value, Expr) else value
        given = self._given[name]
        return self._read(name, given)

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*self._given, *self._more))

    def __len__(self) -> int:
        return len(set(self._given) | set(self._more))

    def copy(self) -> dict[str, Any]:
        """All of them."""
        return dict(self)

    def _value(self, expr: Expr) -> Any:
        return expr if self._facts is None else expr.evaluate(self._facts)

    def _integer(self, name: str, expr: Expr) -> Any:
        try:
            return self._value(expr)
        except SpecError:  # a config or the device decides it
            return _Unknown(name)

    def _read(self, name: str, given: Given) -> Any:
        if given.kind == "integer":
            return self._integer(name, Expr.of(given.expr))
        if given.kind == "constant":
            return of_data(given.value)
        tensor = given.tensor
        if tensor is None:
            return of_data(given.value) if given.kind == "scalar" and self._facts is not None else _Unknown(name)
        if tensor.optional and not bool(self._value(present(tensor.name))):
            return None
        view = TensorView(tensor, self._value, given.block)
        return triton_private.element_type(view._name) if given.kind == "dtype" else view


def _passed(request: FunctionRequest, names: list[str]) -> dict[str, Given]:
    """What a call passes for parameters of these names, without defaults."""
    both = {**request.operands, **request.arguments}
    return {n: both[n] for n in names if n in both}


def _trace_heuristics(
    request: FunctionRequest, function: triton_private.Function, names: list[str]
) -> tuple[dict[str, Expr], list[str]]:
    """Each heuristic as an expression of the call and of parameters; and the names of those that give booleans.

    The results of a heuristic are compared with the value of its expression, on the problems and on random calls.

    Raises:
        SpecError: when one cannot be followed. It names the heuristic.
    """
    given = _passed(request, names)
    own: dict[str, Any] = {n: parameter(n) for n in request.parameters}
    configured = {} if own else {k: parameter(k) for config in function.configs() for k in config}
    for name in request.arguments:  # what the author passes wins over both
        own.pop(name, None), configured.pop(name, None)
    traced: dict[str, Expr] = {}
    booleans = []
    for name, compute, inner in function.heuristics():
        if name in request.arguments:
            continue
        more = {**own, **(configured if inner else {}), **traced}
        what = f"kernel {request.name!r}: the heuristic for {name!r} of {request.function}"
        if name not in names and name not in OPTIONS:
            raise SpecError(
                f"{what} is not for an argument",
                why=f"launch options that heuristics may give are {', '.join(OPTIONS)}",
                fix="name a function without it",
            )
        expr = _traced(compute, KernelArguments(given, None, more), what)
        calls = [problem.facts for problem in request.problems]
        if _check(expr, compute, partial(KernelArguments, given, more=more), calls, what):
            booleans.append(name)
        traced[name] = expr
    return traced, booleans


def _traced(compute: Callable[[Any], Any], arguments: KernelArguments, what: str) -> Expr:
    try:
        value = trace(lambda: compute(arguments), what)
    except UnknownValueError as error:
        raise SpecError(f"{what}: {error}", why="it is not known before the kernel runs", fix=_REMEDY) from error
    except KeyError as error:
        raise SpecError(
            f"{what} reads the argument {error}, which is not passed",
            why="a heuristic sees what a call passes, but no defaults. It sees values of configs only below "
            "@triton.autotune",
            fix=f"name {error} in `arguments` of TritonFunction",
        ) from error
    except SpecError as error:
        placed = error.what if error.what.startswith(what) else f"{what}: {error.what}"
        # the function may be from a package that the author does not change
        raise SpecError(placed, why=error.why, fix=f"{error.fix}; or {_REMEDY}" if error.fix else _REMEDY) from error
    except Exception as error:
        raise SpecError(
            f"{what} cannot be followed: {type(error).__name__}: {error}",
            why="integers of a call are expressions: comparisons, + - * / // % << >> and min, max, math.ceil, cdiv, "
            "next_power_of_2, bit_length",
            fix=_REMEDY,
        ) from error
    if not isinstance(value, (Expr, int)):
        raise SpecError(
            f"{what} gives {str(value)[:60]!r}", why="only integers and booleans can be chosen", fix=_REMEDY
        )
    return as_expr(value)


def _check(
    expr: Expr,
    compute: Callable[[Any], Any],
    arguments: Callable[[Facts], KernelArguments],
    problems: Sequence[Facts],
    what: str,
) -> bool:
    """Compare with the heuristic itself. This finds operators that mean something else for expressions, such as `~`.

    Returns whether all of its results are booleans.
    """
    names = sorted(expr.facts())
    draw = random.Random(0)
    calls = [*problems, *({n: _drawn(n, draw) for n in names} for _ in range(_TRIES if names else 1))]
    kinds = set()
    for call in calls:
        facts = _AnyFacts(call, draw)
        try:
            truth = compute(arguments(facts))
        except Exception:  # noqa: S112 - such a call cannot be made
            continue
        kinds.add(type(truth))
        value = expr.evaluate(facts)
        if int(truth) != value:
            raise SpecError(
                f"{what} gives {truth!r}, but its expression {expr.key()} gives {value}, for {dict(facts)}",
                why="it uses an operator that means something else for expressions, or it reads more than the call",
                fix=_REMEDY,
            )
    return kinds == {bool}


class _AnyFacts(dict[str, int]):
    """Facts of a random call. A fact is drawn when it is first asked for."""

    def __init__(self, facts: Mapping[str, int], draw: random.Random) -> None:
        super().__init__(facts)
        self._draw = draw

    def __missing__(self, name: str) -> int:
        self[name] = _drawn(name, self._draw)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Like `[]`, because every fact is known."""
        del default
        return self[name]


def _drawn(name: str, draw: random.Random) -> int:
    kind = name.partition(".")[0]
    if kind in ("present", "dtype", "attribute"):
        return draw.randint(0, 1)
    if kind == "alignment":
        return 1 << draw.randint(0, 6)
    return draw.choice((1, 1 << draw.randint(0, 16), draw.randint(1, 200), draw.randint(1, 100_000)))


class _Named(dict[str, Any]):
    """Arguments that were passed by position. Those that were passed by name are found too."""

    def __init__(self, first: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        super().__init__(first)
        self._rest = rest

    def __missing__(self, name: str) -> Any:
        return self._rest[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Like `get` of all arguments."""
        return self[name] if name in self else self._rest.get(name, default)


def _prune(
    request: FunctionRequest,
    function: triton_private.Function,
    names: list[str],
    constexprs: set[str],
    heuristics: Mapping[str, Expr],
) -> dict[str, list[int]]:
    """For each problem, the configs that the autotuner's own pruners leave; empty if it has no pruners.

    Raises:
        SpecError: when a pruner fails, or gives configs of its own.
    """
    tuner = function.autotuner
    if tuner is None or not request.pruners or (tuner.early_config_prune is None and tuner.perf_model is None):
        return {}
    outer = {name for name, _, inner in function.heuristics() if not inner}
    left, before = {}, function.configs()
    for problem in request.problems:
        more = {n: e for n, e in heuristics.items() if n in outer}
        values = KernelArguments(_passed(request, names), problem.facts, more).copy()
        what = f"kernel {request.name!r}: pruning the configs of {request.function} for {problem.id}"
        kept = _pruned(tuner, values, constexprs, what)
        left[problem.id] = sorted({_index(tuner.configs, config, what) for config in kept})
        if function.configs() != before:
            raise SpecError(
                f"{what} changes them",
                why="configs are those of @triton.autotune, the same on every problem",
                fix="declare `parameters` and `constraints` of the kernel instead",
            )
    return left


def _pruned(tuner: Any, values: dict[str, Any], constexprs: set[str], what: str) -> list[Any]:
    """The autotuner's answer. Callers may pass arguments by position or by name, so both are tried."""
    by_name = {n: v for n, v in values.items() if n in constexprs}
    attempts = (
        (_Named({n: v for n, v in values.items() if n not in by_name}, values), by_name),
        (_Named({}, values), values),
    )
    problem: Exception | None = None
    for first, named in attempts:
        tuner.nargs = first
        try:
            return list(tuner.prune_configs(dict(named)))
        except Exception as error:
            problem = problem or error
        finally:
            tuner.nargs = None
    raise SpecError(
        f"{what} fails: {type(problem).__name__}: {problem}",
        why="pruners are called with shapes, strides, dtypes and integers of the workload's problems",
        fix="set pruners=False in TritonFunction to try all configs, or declare `parameters` and `constraints`",
    ) from problem


def _index(configs: list[Any], config: Any, what: str) -> int:
    for test in (lambda c: c is config, lambda c: c == config):
        for index, listed in enumerate(configs):
            if test(listed):
                return index
    raise SpecError(
        f"{what} gives a config that is not listed: {config}",
        why="a config is one of those of @triton.autotune",
        fix="declare `parameters` and `constraints` of the kernel instead",
    )


if __name__ == "__main__":
    raise SystemExit(_main())
