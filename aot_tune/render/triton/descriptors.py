"""What calls must meet where a kernel takes a tensor as a descriptor, and whether all legal ones do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from aot_tune.spec import Descriptor, Expr, Operator, Problem, alignment, all_of, stride

__all__ = ["conditions", "exceeds", "unmet"]

_STEPS = (1, 2, 4, 8, 16, 32, 64)


def conditions(operator: Operator, given: Descriptor, promised: Sequence[Expr] = ()) -> Iterator[Expr]:
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
    said = {condition.key() for condition in promised}
    if declared.written and not any((extent % n == 0).key() in said for n in (unit, 2 * unit, 4 * unit, 8 * unit)):
        yield extent % unit == 0


def unmet(operator: Operator, given: Descriptor, family: str) -> Expr | None:
    """A condition that legal calls need not meet.

    One with other addresses, strides or extents than the workload's does not.
    """
    problem = next(iter(operator.workload_for(family)), None)
    if problem is None:
        return None
    for condition in conditions(operator, given):
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


def exceeds(operator: Operator, value: Expr, most: int, family: str) -> bool:
    """Whether a legal call can have a larger value: a call of the workload with one extent or stride that is huge."""
    facts = next(map(operator.facts, operator.workload_for(family)), {})
    calls = [{**facts, fact: most + 1} for fact in value.facts() if fact in facts]
    return any(value.evaluate(call) > most and all_of(operator.legal, call) for call in calls)
