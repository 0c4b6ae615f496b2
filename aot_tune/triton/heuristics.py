"""Turns a function's heuristics into expressions, and its pruners into the configs that they leave."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from aot_tune.expr.integers import as_expr
from aot_tune.expr.trace import trace
from aot_tune.spec import OPTIONS, Expr, Facts, parameter
from aot_tune.support.errors import SpecError
from aot_tune.triton.arguments import KernelArguments, UnknownValueError
from aot_tune.triton.triton_messages import FunctionRequest, Given

__all__ = ["Decorated", "prune", "trace_heuristics"]

_TRIES = 48
_REMEDY = "pass it as an expression in `arguments` of TritonFunction instead"


class Decorated(Protocol):
    """What is needed of `triton_private.Function`."""

    @property
    def autotuner(self) -> Any | None:
        """The @triton.autotune of the function."""
        ...

    def heuristics(self) -> Any:
        """Parameters with the functions that compute them, and whether these see configs."""
        ...

    def configs(self) -> list[dict[str, Any]]:
        """The configs of the autotuner."""
        ...


def passed(request: FunctionRequest, names: list[str]) -> dict[str, Given]:
    """What a call passes for parameters of these names, without defaults."""
    both = {**request.operands, **request.arguments}
    return {n: both[n] for n in names if n in both}


def trace_heuristics(
    request: FunctionRequest, function: Decorated, names: list[str], element_type: Callable[[str], Any]
) -> tuple[dict[str, Expr], list[str]]:
    """Each heuristic as an expression of the call and of parameters; and the names of those that give booleans.

    The results of a heuristic are compared with the value of its expression, on the problems and on random calls.

    Raises:
        SpecError: when one cannot be followed. It names the heuristic.
    """
    given = passed(request, names)
    own: dict[str, Any] = {n: parameter(n) for n in request.parameters}
    configured = {} if own else {k: parameter(k) for config in function.configs() for k in config}
    for name in request.arguments:  # what the author passes wins over both
        own.pop(name, None), configured.pop(name, None)
    found: dict[str, Expr] = {}
    booleans = []
    for name, compute, inner in function.heuristics():
        if name in request.arguments:
            continue
        more = {**own, **(configured if inner else {}), **found}
        what = f"kernel {request.name!r}: the heuristic for {name!r} of {request.function}"
        if name not in names and name not in OPTIONS:
            raise SpecError(
                f"{what} is not for an argument",
                why=f"launch options that heuristics may give are {', '.join(OPTIONS)}",
                fix="name a function without it",
            )
        expr = _traced(compute, KernelArguments(given, None, element_type, more), what)
        known = [problem.facts for problem in request.problems]
        if _check(expr, compute, partial(KernelArguments, given, element_type=element_type, more=more), known, what):
            booleans.append(name)
        found[name] = expr
    return found, booleans


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
    known: Sequence[Facts],
    what: str,
) -> bool:
    """Compare with the heuristic itself. This finds operators that mean something else for expressions, such as `~`.

    Returns whether all of its results are booleans.
    """
    names = sorted(expr.facts())
    draw = random.Random(0)
    calls = [*known, *({n: _drawn(n, draw) for n in names} for _ in range(_TRIES if names else 1))]
    kinds = set()
    for call in calls:
        facts = _AnyFacts(call, draw)
        try:
            truth = compute(arguments(facts))
        except Exception:  # noqa: S112 - such a call cannot be made
            continue
        kinds.add(type(truth))
        said = expr.evaluate(facts)
        if int(truth) != said:
            raise SpecError(
                f"{what} gives {truth!r}, but its expression {expr.key()} gives {said}, for {dict(facts)}",
                why="it uses an operator that means something else for expressions, or it reads more than the call",
                fix=_REMEDY,
            )
    return kinds == {bool}


class _AnyFacts(dict[str, int]):
    """Facts of a random call. A fact is drawn when it is first asked for."""

    def __init__(self, known: Mapping[str, int], draw: random.Random) -> None:
        super().__init__(known)
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


def prune(
    request: FunctionRequest,
    function: Decorated,
    names: list[str],
    constexprs: set[str],
    heuristics: Mapping[str, Expr],
    element_type: Callable[[str], Any],
) -> dict[str, list[int]]:
    """For each problem, the configs that the autotuner's own pruners leave; empty if it has no pruners.

    Raises:
        SpecError: when a pruner fails, or gives configs of its own.
    """
    tuner = function.autotuner
    if tuner is None or not request.pruners or (tuner.early_config_prune is None and tuner.perf_model is None):
        return {}
    outer = {name for name, _, inner in function.heuristics() if not inner}
    found, before = {}, function.configs()
    for problem in request.problems:
        more = {n: e for n, e in heuristics.items() if n in outer}
        values = KernelArguments(passed(request, names), problem.facts, element_type, more).copy()
        what = f"kernel {request.name!r}: pruning the configs of {request.function} for {problem.id}"
        kept = _pruned(tuner, values, constexprs, what)
        found[problem.id] = sorted({_index(tuner.configs, config, what) for config in kept})
        if function.configs() != before:
            raise SpecError(
                f"{what} changes them",
                why="configs are those of @triton.autotune, the same on every problem",
                fix="declare `parameters` and `constraints` of the kernel instead",
            )
    return found


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
        for index, one in enumerate(configs):
            if test(one):
                return index
    raise SpecError(
        f"{what} gives a config that is not listed: {config}",
        why="a config is one of those of @triton.autotune",
        fix="declare `parameters` and `constraints` of the kernel instead",
    )
