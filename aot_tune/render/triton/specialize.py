"""Which code a Triton function is compiled to for a call, and the guards of that code.

The rules are those of the JIT's own binder, of Triton 3.6 and later: an integer 1 becomes a constant, integers and
addresses that 16 divides are marked, integers are 32 bits wide where they fit. Here each is a guard of dispatch.

What a candidate assumes is in its `pins`: `name` to the value of a constexpr or of an integer, `name%16` to 0,
`name.none` to whether an optional tensor is left out, `name.bits` to 64, `option.name` to a launch option,
`name.range` to 32 where all bytes of a tensor lie within 2^31 - 1 of its address (AMD).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aot_tune.render.triton.binding import Argument, bind, inspection_of
from aot_tune.render.triton.combinations import combinations
from aot_tune.render.triton.descriptors import conditions, exceeds, unmet
from aot_tune.spec import (
    ConfigValue,
    Expr,
    Kernel,
    Operator,
    Problem,
    alignment,
    present,
    stride,
)
from aot_tune.spec.config_guards import requires_of
from aot_tune.support.errors import SpecError

__all__ = ["generic_pins", "guards", "is_pruned", "plain_pins", "specialized_pins"]

_RANGES = {f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)}
_RANGES |= {f"u{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)}
_INT32 = _RANGES["i32"]


def specialized_pins(
    operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], problem: Problem, target: str
) -> dict[str, int]:
    """What the JIT's binder would assume of a problem."""
    facts = operator.facts(problem)
    pins = _values(operator, kernel, config, facts, target)
    for a in bind(operator, kernel, target):
        p = a.parameter
        if a.kind == "pointer" and pins.get(f"{a.name}.none") != 1:
            if p.special and p.align and facts[f"alignment.{a.tensor}"] >= 16:
                pins[f"{a.name}%16"] = 0
            if target.startswith("hip-") and p.special and span(operator, a.tensor).evaluate(facts) < 2**31:
                pins[f"{a.name}.range"] = 32
        elif a.kind == "integer" and not p.constexpr and not of_device(a.expr):
            pins |= _integer_pins(a, config, facts)
    return pins


def _integer_pins(a: Argument, config: Mapping[str, ConfigValue], facts: Mapping[str, int]) -> dict[str, int]:
    p = a.parameter
    if not depends(a.expr, config):
        return {}  # the same in every call
    value = known_value(a, config, facts)
    pins: dict[str, int] = {}
    if value == 1 and p.special and not p.annotation:
        return {a.name: 1}
    if value % 16 == 0 and p.special and p.align and p.annotation[:2] not in ("u1", "fp", "bf"):
        pins[f"{a.name}%16"] = 0
    if not _INT32[0] <= value <= _INT32[1] and not p.annotation:
        pins[f"{a.name}.bits"] = 64
    return pins


def plain_pins(
    operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], problem: Problem, target: str
) -> dict[str, int]:
    """What code for a problem assumes that is right wherever its constexprs are: integers have 64 bits."""
    pins = _values(operator, kernel, config, operator.facts(problem), target)
    return pins | {f"{a.name}.bits": 64 for a in bind(operator, kernel, target) if _is_wide(kernel, a, config)}


def generic_pins(
    operator: Operator,
    kernel: Kernel,
    config: Mapping[str, ConfigValue],
    target: str,
    dtypes: Mapping[str, str] | None = None,
) -> list[dict[str, int]]:
    """What codes assume that answer every legal call together: integers have 64 bits.

    There is one for each combination of optional tensors and attributes that makes other code, see `combinations`.

    Raises:
        SpecError: when a constexpr or a launch option depends on something else of the call, or there are too many.
    """
    function, _ = inspection_of(kernel, target)
    where = f"operator {operator.name!r}: kernel {kernel.name!r} for every call"
    pins: dict[str, int] = {}
    for a in bind(operator, kernel, target):
        what = f"{where}: argument {a.name!r} of {function.function!r}"
        condition = unmet(operator, a.descriptor, target.partition("-")[0]) if a.descriptor is not None else None
        if condition is not None:
            raise SpecError(
                f"{what} is a descriptor, which needs {condition.key()}",
                why="a generic variant is one code for every legal call",
                fix="pass the tensor, let another kernel be the generic one, or add the condition to `legal`",
            )
        if _is_wide(kernel, a, config):
            pins[f"{a.name}.bits"] = 64
        elif a.name in function.narrow and a.expr is not None:
            _check_fits(operator, kernel, a, a.expr.substitute(config_facts(config)), target)
    compiled_in = _compiled_in(operator, kernel, config, target)
    return [pins | one for one in combinations(operator, compiled_in, dtypes or {}, where)]


def _check_fits(operator: Operator, kernel: Kernel, a: Argument, value: Expr, target: str) -> None:
    if exceeds(operator, value, _INT32[1], target.partition("-")[0]):
        raise SpecError(
            f"operator {operator.name!r}: kernel {kernel.name!r} for every call: argument {a.name!r} is narrow, "
            "and legal calls have larger ones",
            why="a generic variant is one code for every legal call, and this argument has 32 bits",
            fix=f"add {value.key()} < 2**31 to `legal`, or let another kernel be the generic one",
        )


def _is_wide(kernel: Kernel, a: Argument, config: Mapping[str, ConfigValue]) -> bool:
    """Whether an argument is an integer that has 64 bits where nothing is assumed of it."""
    free = a.kind == "integer" and not a.parameter.constexpr and not a.parameter.annotation
    narrow = kernel.triton is not None and a.name in kernel.triton.narrow
    return free and not narrow and depends(a.expr, config) and not of_device(a.expr)


def is_pruned(kernel: Kernel, target: str, config: Mapping[str, ConfigValue], problem: Problem) -> bool:
    """Whether the autotuner's own pruners leave a config out on a problem."""
    _, inspection = inspection_of(kernel, target)
    if (kernel.parameters and not kernel.listed) or problem.id not in inspection.pruned:
        return False
    left = [inspection.configs[i] for i in inspection.pruned[problem.id]]
    return not any({n: v for n, v in c.items() if v is not None} == dict(config) for c in left)


def _values(
    operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], facts: Mapping[str, int], target: str
) -> dict[str, int]:
    """Constexprs and launch options that depend on the call, and which tensors are there."""
    return {name: expr.evaluate(facts) for name, expr in _compiled_in(operator, kernel, config, target).items()}


def _compiled_in(operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], target: str) -> dict[str, Expr]:
    """Pins to what they are of a call: constexprs and launch options that depend on it, and absent tensors."""
    function, _ = inspection_of(kernel, target)
    known = config_facts(config)
    found: dict[str, Expr] = {}
    for a in bind(operator, kernel, target):
        if a.kind == "pointer" and operator.tensor(a.tensor).optional:
            found[f"{a.name}.none"] = present(a.tensor) == 0
        if a.kind == "integer" and a.parameter.constexpr and depends(a.expr, config):
            _no_device(kernel, a.expr, f"constexpr {a.name!r}")
            assert a.expr is not None
            found[a.name] = a.expr.substitute(known)
    for name, option in function.options.items():
        if isinstance(option, Expr) and name not in config and depends(option, config):
            _no_device(kernel, option, f"launch option {name!r}")
            found[f"option.{name}"] = option.substitute(known)
    return found


def _no_device(kernel: Kernel, expr: Expr | None, what: str) -> None:
    if of_device(expr):
        raise SpecError(
            f'kernel {kernel.name!r}: {what} depends on the device, by device("multiprocessors")',
            why="dispatch would have to choose the value, and it knows only dims, strides and alignments",
            fix="have the function take it as an ordinary argument, use it in the grid, or make it a parameter",
        )


def guards(
    operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], pins: Mapping[str, int], target: str
) -> tuple[Expr, ...]:
    """The conditions under which a candidate with these pins is right."""
    function, _ = inspection_of(kernel, target)
    found: list[Expr] = []
    for a in bind(operator, kernel, target):
        if a.descriptor is not None:
            found += conditions(operator, a.descriptor, requires_of(kernel, config))
        found += _guards_of(operator, a, config, pins)
    for name, option in function.options.items():
        if f"option.{name}" in pins and isinstance(option, Expr):
            found.append(option.substitute(config_facts(config)) == pins[f"option.{name}"])
    return tuple(found)


def _guards_of(
    operator: Operator, a: Argument, config: Mapping[str, ConfigValue], pins: Mapping[str, int]
) -> Iterator[Expr]:
    if a.kind == "pointer":
        if f"{a.name}.none" in pins:
            yield present(a.tensor) == int(not pins[f"{a.name}.none"])
        if f"{a.name}%16" in pins:
            yield alignment(a.tensor) >= 16
        if f"{a.name}.range" in pins:
            yield span(operator, a.tensor) < 2**31
    if a.kind != "integer" or not depends(a.expr, config) or of_device(a.expr):
        return
    assert a.expr is not None
    value = a.expr.substitute(config_facts(config))
    if a.name in pins:
        yield value == pins[a.name]
        return
    if f"{a.name}%16" in pins:
        yield value % 16 == 0
    low, high = _RANGES.get(a.parameter.annotation or "i32", (0, 0))
    if high and f"{a.name}.bits" not in pins:
        yield value <= high
        if any(f.startswith("stride.") for f in value.facts()):
            yield value >= low


def span(operator: Operator, tensor: str) -> Expr:
    """Bytes from the first element of a tensor to behind its last, for strides that are not negative."""
    declared = operator.tensor(tensor)
    last = sum(((extent - 1) * stride(tensor, i) for i, extent in enumerate(declared.shape)), Expr("const", value=1))
    return last * declared.dtype.itemsize


def config_facts(config: Mapping[str, ConfigValue]) -> dict[str, int]:
    """A config's numbers as facts."""
    return {f"parameter.{n}": int(v) for n, v in config.items() if not isinstance(v, (str, float))}


def depends(expr: Expr | None, config: Mapping[str, ConfigValue]) -> bool:
    """Whether an expression has different values in different calls of one config on one target."""
    if expr is None:
        return False
    return any(not f.startswith("target.") for f in expr.substitute(config_facts(config)).facts())


def of_device(expr: Expr | None) -> bool:
    """Whether an expression asks for something that only a launch knows."""
    return expr is not None and any(f.startswith("device.") for f in expr.facts())


def known_value(a: Argument, config: Mapping[str, ConfigValue], facts: Mapping[str, int]) -> int:
    """The value of an integer argument."""
    assert a.expr is not None
    return a.expr.evaluate({**facts, **config_facts(config)})
