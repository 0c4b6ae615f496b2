"""What a kernel requires of calls in each of its configs. Guards may use parameters: `N % parameter("VEC") == 0`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from aot_tune.expr.integers import Expr, Facts, all_of
from aot_tune.spec.kernel import Config, Kernel
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["check_guard_parameters", "guard_sets", "may_serve", "requires_of", "with_config", "worthwhile_of"]

_PREFIX = "parameter."


def requires_of(kernel: Kernel, config: Config) -> tuple[Expr, ...]:
    """What a kernel requires of calls in one of its configs. Conditions that the config alone meets are left out."""
    return _without_config(kernel, kernel.requires, config)


def worthwhile_of(kernel: Kernel, config: Config) -> tuple[Expr, ...]:
    """The conditions of the problems on which one of a kernel's configs is tried; see `requires_of`."""
    return _without_config(kernel, kernel.worthwhile, config)


def with_config(kernel: Kernel, expr: Expr, config: Config) -> Expr:
    """An expression with a config's values in place of parameters. A text becomes its index among the values.

    Raises:
        SpecError: for a parameter that the config does not have.
    """
    wanted = {fact.removeprefix(_PREFIX) for fact in expr.facts() if fact.startswith(_PREFIX)}
    if not wanted:
        return expr
    known: dict[str, int] = {}
    for name in sorted(wanted):
        if name not in config:
            raise _unknown(kernel, expr, name, config)
        known[_PREFIX + name] = _number(kernel, name, config)
    return expr.substitute(known)


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
    found: dict[tuple[str, ...], tuple[Expr, ...]] = {}
    for config in _projected(kernel, names):
        one = tuple(with_config(kernel, e, config) for e in stated)
        found.setdefault(tuple(e.key() for e in one), one)
    # A Triton function whose configs are not read yet may have any config.
    return list(found.values()) or [tuple(e for e in stated if not _names_parameters(e))]


def may_serve(kernel: Kernel, facts: Facts, *, worthwhile: bool = False) -> bool:
    """Whether some config of a kernel serves a call; with `worthwhile`, whether it is also worth trying on it."""
    return any(all_of(guards, facts) for guards in guard_sets(kernel, worthwhile=worthwhile))


def check_guard_parameters(kernel: Kernel) -> None:
    """Raise SpecError for a parameter in `requires` or `worthwhile` that a kernel's configs do not have."""
    known = {p.name: p for p in kernel.parameters}
    for expr in (*kernel.requires, *kernel.worthwhile):
        facts = sorted(expr.facts()) if isinstance(expr, Expr) else []
        for name in (f.removeprefix(_PREFIX) for f in facts if f.startswith(_PREFIX)):
            if name not in known:
                raise _unknown(kernel, expr, name, known)
            for value in known[name].values:
                _number(kernel, name, {name: value})


def _without_config(kernel: Kernel, stated: tuple[Expr, ...], config: Config) -> tuple[Expr, ...]:
    pairs = ((e, with_config(kernel, e, config)) for e in stated)
    return tuple(one for e, one in pairs if one is e or one.op != "const" or not one.value)


def _projected(kernel: Kernel, names: set[str]) -> Iterator[Config]:
    """The combinations of values that configs have for some parameters."""
    if kernel.listed:
        yield from ({n: v for n, v in c.items() if n in names} for c in kernel.listed)
        return
    axes = [p for p in kernel.parameters if p.name in names]
    if len(axes) == len(names):
        for values in itertools.product(*(p.values for p in axes)):
            yield {p.name: v for p, v in zip(axes, values, strict=True)}


def _names_parameters(expr: Expr) -> bool:
    return any(f.startswith(_PREFIX) for f in expr.facts())


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


def _unknown(kernel: Kernel, expr: Expr, name: str, known: Mapping[str, object]) -> SpecError:
    return SpecError(
        f"kernel {kernel.name!r}: {expr.key()} uses the unknown parameter {name!r}",
        fix=did_you_mean(name, known) if known else "declare it among the kernel's parameters",
    )
