"""Which code a Triton function is compiled to for a call, and the guards of that code.

The rules are those of the JIT's own binder, of Triton 3.6 and later: an integer 1 becomes a constant, integers and
addresses that 16 divides are marked, integers are 32 bits wide where they fit. Here each is a guard of dispatch.

What a candidate assumes is in its `pins`: `name` to the value of a constexpr or of an integer, `name%16` to 0,
`name.none` to whether an optional tensor is left out, `name.bits` to 64, `option.name` to a launch option,
`name.range` to 32 where all bytes of a tensor lie within 2^31 - 1 of its address (AMD). Of several functions, names of
the second begin with `2:`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from aot_tune.render.triton.binding import Argument, bind, inspections_of, pin_of, tuned
from aot_tune.render.triton.grid import grid_values, trace_grid
from aot_tune.spec import ConfigValue, Descriptor, Expr, Kernel, Operator, Problem, alignment, all_of, present, stride
from aot_tune.spec.calls import is_of_combination, legal_combinations, values_of_fact
from aot_tune.spec.kernel import requires_of
from aot_tune.support.errors import AotTuneError, SpecError

_MOST_CODES = 64
"""Codes of one generic kernel for one target and one set of dtypes."""
_LOOKED_AT = 1 << 14
_MOST_BLOCKS = 65535
"""Blocks along the second and third axis of a grid; along the first there can be more than a call ever has."""
_STEPS = (1, 2, 4, 8, 16, 32, 64)
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
        if a.kind == "pointer" and pins.get(f"{a.pin}.none") != 1:
            if p.special and p.align and facts[f"alignment.{a.tensor}"] >= 16:
                pins[f"{a.pin}%16"] = 0
            if target.startswith("hip-") and p.special and _span(operator, a.tensor).evaluate(facts) < 2**31:
                pins[f"{a.pin}.range"] = 32
        elif a.kind == "integer" and not p.constexpr and not _of_device(a.expr):
            pins |= _integer_pins(a, config, facts)
    return pins


def _integer_pins(a: Argument, config: Mapping[str, ConfigValue], facts: Mapping[str, int]) -> dict[str, int]:
    p = a.parameter
    if not _depends(a.expr, config):
        return {}  # the same in every call
    value = known_value(a, config, facts)
    pins: dict[str, int] = {}
    if value == 1 and p.special and not p.annotation:
        return {a.pin: 1}
    if value % 16 == 0 and p.special and p.align and p.annotation[:2] not in ("u1", "fp", "bf"):
        pins[f"{a.pin}%16"] = 0
    if not _INT32[0] <= value <= _INT32[1] and not p.annotation:
        pins[f"{a.pin}.bits"] = 64
    return pins


def plain_pins(
    operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], problem: Problem, target: str
) -> dict[str, int]:
    """What code for a problem assumes that is right wherever its constexprs are: integers have 64 bits."""
    pins = _values(operator, kernel, config, operator.facts(problem), target)
    return pins | {f"{a.pin}.bits": 64 for a in bind(operator, kernel, target) if _is_wide(kernel, a, config)}


def generic_pins(
    operator: Operator,
    kernel: Kernel,
    config: Mapping[str, ConfigValue],
    target: str,
    dtypes: Mapping[str, str] | None = None,
) -> list[dict[str, int]]:
    """What codes assume that answer every legal call together: integers have 64 bits.

    There is one for each combination of optional tensors and attributes that makes other code, see `_combinations`.

    Raises:
        SpecError: when a constexpr or a launch option depends on something else of the call, or there are too many.
    """
    where = f"operator {operator.name!r}: kernel {kernel.name!r} for every call"
    pins: dict[str, int] = {}
    for a in bind(operator, kernel, target):
        function = kernel.triton_functions[a.launch]
        what = f"{where}: argument {a.name!r} of {function.function!r}"
        condition = _unmet(operator, a.descriptor, target.partition("-")[0]) if a.descriptor is not None else None
        if condition is not None:
            raise SpecError(
                f"{what} is a descriptor, which needs {condition.key()}",
                why="a generic variant is one code for every legal call",
                fix="pass the tensor, let another kernel be the generic one, or add the condition to `legal`",
            )
        if _is_wide(kernel, a, config):
            pins[f"{a.pin}.bits"] = 64
        elif a.name in function.narrow and a.expr is not None:
            _check_fits(operator, kernel, a, a.expr.substitute(config_facts(config)), target)
    compiled_in = _compiled_in(operator, kernel, config, target)
    return [pins | combination for combination in _combinations(operator, compiled_in, dtypes or {}, where)]


def _check_fits(operator: Operator, kernel: Kernel, a: Argument, value: Expr, target: str) -> None:
    if _exceeds(operator, value, _INT32[1], target.partition("-")[0]):
        raise SpecError(
            f"operator {operator.name!r}: kernel {kernel.name!r} for every call: argument {a.name!r} is narrow, "
            "and legal calls have larger ones",
            why="a generic variant is one code for every legal call, and this argument has 32 bits",
            fix=f"add {value.key()} < 2**31 to `legal`, or let another kernel be the generic one",
        )


def _is_wide(kernel: Kernel, a: Argument, config: Mapping[str, ConfigValue]) -> bool:
    """Whether an argument is an integer that has 64 bits where nothing is assumed of it."""
    free = a.kind == "integer" and not a.parameter.constexpr and not a.parameter.annotation
    narrow = a.name in kernel.triton_functions[a.launch].narrow
    return free and not narrow and _depends(a.expr, config) and not _of_device(a.expr)


def is_pruned(kernel: Kernel, target: str, config: Mapping[str, ConfigValue], problem: Problem) -> bool:
    """Whether the autotuner's own pruners leave a config out on a problem."""
    inspection = tuned(kernel, target)
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
    facts = config_facts(config)
    exprs: dict[str, Expr] = {}
    for a in bind(operator, kernel, target):
        if a.kind == "pointer" and operator.tensor(a.tensor).optional:
            exprs[f"{a.pin}.none"] = present(a.tensor) == 0
        if a.kind == "integer" and a.parameter.constexpr and _depends(a.expr, config):
            _no_device(kernel, a.expr, f"constexpr {a.name!r}")
            assert a.expr is not None
            exprs[a.pin] = a.expr.substitute(facts)
    for pin, option in _options(kernel, config, target):
        _no_device(kernel, option, f"launch option {pin.rpartition('.')[2]!r}")
        exprs[pin] = option.substitute(facts)
    return exprs


def _options(kernel: Kernel, config: Mapping[str, ConfigValue], target: str) -> Iterator[tuple[str, Expr]]:
    """Launch options that depend on the call, by pin. A config's value goes before that of a kernel's only function."""
    every = inspections_of(kernel, target)
    for launch, (function, _) in enumerate(every):
        for name, option in function.options.items():
            own = len(every) > 1 or name not in config
            if isinstance(option, Expr) and own and _depends(option, config):
                yield f"option.{pin_of(launch, name)}", option


def _no_device(kernel: Kernel, expr: Expr | None, what: str) -> None:
    if _of_device(expr):
        raise SpecError(
            f'kernel {kernel.name!r}: {what} depends on the device, by device("multiprocessors")',
            why="dispatch would have to choose the value, and it knows only dims, strides and alignments",
            fix="have the function take it as an ordinary argument, use it in the grid, or make it a parameter",
        )


def guards(
    operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], pins: Mapping[str, int], target: str
) -> tuple[Expr, ...]:
    """The conditions under which a candidate with these pins is right."""
    conditions: list[Expr] = []
    for a in bind(operator, kernel, target):
        if a.descriptor is not None:
            conditions += _conditions(operator, a.descriptor, requires_of(kernel, config))
        conditions += _guards_of(operator, a, config, pins)
    for pin, option in _options(kernel, config, target):
        if pin in pins:
            conditions.append(option.substitute(config_facts(config)) == pins[pin])
    different = {c.key(): c for c in conditions}.values()
    return tuple(different if len(kernel.triton_functions) > 1 else conditions)


def _guards_of(
    operator: Operator, a: Argument, config: Mapping[str, ConfigValue], pins: Mapping[str, int]
) -> Iterator[Expr]:
    if a.kind == "pointer":
        if f"{a.pin}.none" in pins:
            yield present(a.tensor) == int(not pins[f"{a.pin}.none"])
        if f"{a.pin}%16" in pins:
            yield alignment(a.tensor) >= 16
        if f"{a.pin}.range" in pins:
            yield _span(operator, a.tensor) < 2**31
    if a.kind != "integer" or not _depends(a.expr, config) or _of_device(a.expr):
        return
    assert a.expr is not None
    value = a.expr.substitute(config_facts(config))
    if a.pin in pins:
        yield value == pins[a.pin]
        return
    if f"{a.pin}%16" in pins:
        yield value % 16 == 0
    low, high = _RANGES.get(a.parameter.annotation or "i32", (0, 0))
    if high and f"{a.pin}.bits" not in pins:
        yield value <= high
        if any(f.startswith("stride.") for f in value.facts()):
            yield value >= low


def _span(operator: Operator, tensor: str) -> Expr:
    """Bytes from the first element of a tensor to behind its last, for strides that are not negative."""
    declared = operator.tensor(tensor)
    last = sum(((extent - 1) * stride(tensor, i) for i, extent in enumerate(declared.shape)), Expr("const", value=1))
    return last * declared.dtype.itemsize


def config_facts(config: Mapping[str, ConfigValue]) -> dict[str, int]:
    """A config's numbers as facts."""
    return {f"parameter.{n}": int(v) for n, v in config.items() if not isinstance(v, (str, float))}


def _depends(expr: Expr | None, config: Mapping[str, ConfigValue]) -> bool:
    """Whether an expression has different values in different calls of one config on one target."""
    if expr is None:
        return False
    return any(not f.startswith("target.") for f in expr.substitute(config_facts(config)).facts())


def _of_device(expr: Expr | None) -> bool:
    """Whether an expression asks for something that only a launch knows."""
    return expr is not None and any(f.startswith("device.") for f in expr.facts())


def known_value(a: Argument, config: Mapping[str, ConfigValue], facts: Mapping[str, int]) -> int:
    """The value of an integer argument."""
    assert a.expr is not None
    return a.expr.evaluate({**facts, **config_facts(config)})


def _combinations(
    operator: Operator, compiled_in: Mapping[str, Expr], dtypes: Mapping[str, str], where: str
) -> list[dict[str, int]]:
    """The values that pins have together in legal calls; all of a call's are those of one of them.

    Raises:
        SpecError: for a pin that depends on dims, strides or alignments, and for too many combinations.
    """
    for name, expr in compiled_in.items():
        if not is_of_combination(expr):
            raise SpecError(
                f"{where}: {_what(name)} is {expr.key()}, a constant that depends on the call",
                why="a generic variant is a code for every legal call, or one for each combination of optional tensors "
                "and attributes",
                fix="pass a constant, or let another kernel be the generic one",
            )
    facts = sorted({fact for expr in compiled_in.values() for fact in expr.facts()})
    chosen = {f"dtype.{v}": [choices.index(dtypes.get(v, choices[0]))] for v, choices in operator.dtypes.items()}
    values = [chosen.get(fact) or values_of_fact(operator, fact) for fact in facts]
    count, codes = math.prod(map(len, values)), dict[tuple[int, ...], dict[str, int]]()
    for call in legal_combinations(operator, facts, values) if count <= _LOOKED_AT else ():
        pins = {name: expr.evaluate(call) for name, expr in compiled_in.items()}
        codes.setdefault(tuple(pins.values()), pins)
    if count > _LOOKED_AT or len(codes) > _MOST_CODES:
        raise SpecError(
            f"{where}: there are {len(codes) or count} combinations of {', '.join(map(_shown, facts))}, each a code of "
            "its own",
            why=f"at most {_MOST_CODES} are compiled for a target and its dtypes",
            fix="pass some as ordinary arguments, exclude some by `legal`, or let another kernel be the generic one",
        )
    return list(codes.values())


def _what(pin: str) -> str:
    option = pin.removeprefix("option.")
    return f"launch option {option!r}" if option != pin else f"argument {pin.removesuffix('.none')!r}"


def _shown(fact: str) -> str:
    kind, _, name = fact.partition(".")
    return f"{kind}({name!r})"


def pinned_form(operator: Operator, guard: Expr) -> Expr:
    """A guard of a generic candidate as `fact == value`, where that is the same."""
    facts = sorted(guard.facts())
    if len(facts) != 1 or not is_of_combination(guard) or facts[0].startswith("dtype."):
        return guard
    holding = [v for v in values_of_fact(operator, facts[0]) if guard.evaluate({facts[0]: v})]
    return Expr("fact", value=facts[0]) == holding[0] if len(holding) == 1 else guard


def _conditions(operator: Operator, given: Descriptor, promised: Sequence[Expr] = ()) -> Iterator[Expr]:
    """What the driver asks of a tensor map, and what keeps stores in its rows.

    [CUDA driver API, cuTensorMapEncodeTiled] Loads end where the tensor does, but stores write whole 16 bytes: measured
    on an H200, with elements of 1, 2 and 4 bytes. That is not said where conditions that are `promised` say it.
    """
    declared = operator.tensor(given.tensor)
    order = given.order or tuple(range(declared.rank))
    if sorted(order) != list(range(declared.rank)):
        return  # the renderer refuses it
    yield alignment(given.tensor) >= 16
    yield stride(given.tensor, order[-1]) == 1
    for axis in order[:-1]:
        yield (stride(given.tensor, axis) * declared.dtype.itemsize) % 16 == 0
        yield stride(given.tensor, axis) > 0
    for axis in order:
        yield declared.shape[axis] <= 2**31 - 1
    extent, unit = declared.shape[order[-1]], 16 // declared.dtype.itemsize
    keys = {condition.key() for condition in promised}
    if declared.written and not any((extent % n == 0).key() in keys for n in (unit, 2 * unit, 4 * unit, 8 * unit)):
        yield extent % unit == 0


def _unmet(operator: Operator, given: Descriptor, family: str) -> Expr | None:
    """A condition that a legal call may fail: one with other addresses, strides or extents than the workload's."""
    problem = next(iter(operator.workload_for(family)), None)
    if problem is None:
        return None
    for condition in _conditions(operator, given):
        for fact in sorted(condition.facts()):
            for call in _others(operator, problem, fact):
                if not condition.evaluate(call) and all_of(operator.legal, call):
                    return condition
    return None


def _others(operator: Operator, problem: Problem, fact: str) -> Iterator[dict[str, int]]:
    """Calls that differ from a problem in one fact, and in strides where what is legal may have them follow it.

    By several powers of two: legal extents may be even ones alone, say.
    """
    facts = operator.facts(problem)
    if fact.startswith("alignment."):
        yield from ({**facts, fact: aligned} for aligned in (1, 2, 4, 8))
        return
    if fact.startswith("stride."):
        yield {**facts, fact: -facts[fact]}
    wide = {f: 2 * value for f, value in facts.items() if f.startswith("stride.") and value > 1}
    for step in _STEPS:
        other = {fact: facts[fact] + step}
        yield {**facts, **other}
        yield {**facts, **wide, **other}
        if fact in operator.dims:
            yield operator.facts(msgspec.structs.replace(problem, dims={**problem.dims, **other}, strides={}))


def _exceeds(operator: Operator, value: Expr, most: int, family: str) -> bool:
    """Whether a legal call can have a larger value: a call of the workload with one extent or stride that is huge."""
    facts = next(map(operator.facts, operator.workload_for(family)), {})
    calls = [{**facts, fact: most + 1} for fact in value.facts() if fact in facts]
    return any(value.evaluate(call) > most and all_of(operator.legal, call) for call in calls)


def grid_limits(
    operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], pins: Mapping[str, int], target: str
) -> Iterator[Expr]:
    """The guards of a candidate's grid."""
    bound, facts = bind(operator, kernel, target), config_facts(config)
    extents: list[Expr] = []
    for launch, (function, _) in enumerate(inspections_of(kernel, target)):
        arguments = [a for a in bound if a.launch == launch]
        try:
            values = grid_values(arguments, config, pins, facts)
            extents += trace_grid(operator, function, arguments, values, kernel.name)[1:]
        except AotTuneError:
            return  # the renderer says what is wrong
    for extent in extents:
        blocks = extent.substitute(facts)
        if blocks.facts() and _at_a_call(blocks, operator):
            yield blocks <= _MOST_BLOCKS


def _at_a_call(expr: Expr, operator: Operator) -> bool:
    """Whether dispatch can evaluate an expression in every call."""
    if any(f.startswith(("device.", "target.", "parameter.")) for f in expr.facts()):
        return False
    if expr.op in ("//", "%"):
        divisor = expr.args[1]
        above = int(divisor.value) > 0 if divisor.op == "const" else str(divisor.value) in operator.dims
        if divisor.op not in ("const", "fact") or not above:
            return False
    return all(_at_a_call(a, operator) for a in expr.args)
