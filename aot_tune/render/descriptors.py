"""What calls must meet where a kernel takes a tensor as a descriptor, and whether all legal ones do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aot_tune.spec import Descriptor, Expr, Operator, alignment, all_of, stride

__all__ = ["conditions", "exceeds", "unmet"]


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
    if declared.output and not any((extent % n == 0).key() in said for n in (unit, 2 * unit, 4 * unit, 8 * unit)):
        yield extent % unit == 0


def unmet(operator: Operator, given: Descriptor, family: str) -> Expr | None:
    """A condition that legal calls need not meet.

    One with another address, stride or extent than the workload's does not.
    """
    facts = next(map(operator.facts, operator.workload_for(family)), {})
    for condition in conditions(operator, given) if facts else ():
        for fact in condition.facts():
            other = operator.tensor(given.tensor).dtype.itemsize if fact.startswith("alignment.") else facts[fact] + 1
            call = {**facts, fact: other}
            if not condition.evaluate(call) and all_of(operator.legal, call):
                return condition
    return None


def exceeds(operator: Operator, value: Expr, most: int, family: str) -> bool:
    """Whether a legal call can have a larger value: a call of the workload with one extent or stride that is huge."""
    facts = next(map(operator.facts, operator.workload_for(family)), {})
    calls = [{**facts, fact: most + 1} for fact in value.facts() if fact in facts]
    return any(value.evaluate(call) > most and all_of(operator.legal, call) for call in calls)
