"""What a device asks of a grid, as guards of dispatch: a call beyond it goes to another variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aot_tune.render.triton.binding import bind, inspection_of
from aot_tune.render.triton.grid import grid_values, trace_grid
from aot_tune.render.triton.specialize import config_facts
from aot_tune.spec import ConfigValue, Expr, Kernel, Operator
from aot_tune.support.errors import AotTuneError

__all__ = ["grid_limits"]

_MOST = 65535
"""Blocks along the second and third axis of a grid; along the first there can be more than a call ever has."""


def grid_limits(
    operator: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], pins: Mapping[str, int], target: str
) -> Iterator[Expr]:
    """The guards of a candidate's grid."""
    function, _ = inspection_of(kernel, target)
    arguments, facts = bind(operator, kernel, target), config_facts(config)
    try:
        values = grid_values(arguments, config, pins, facts)
        extents = trace_grid(operator, function, arguments, values, kernel.name)
    except AotTuneError:
        return  # the renderer says what is wrong
    for extent in extents[1:]:
        known = extent.substitute(facts)
        if known.facts() and _at_a_call(known, operator):
            yield known <= _MOST


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
