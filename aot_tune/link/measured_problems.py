"""Generated tables of measured problems. A call like one of them gets what was fastest there.

A library treats two problems with equal facts as one. `is_tuned` compares a call by them.
"""

from __future__ import annotations

from collections.abc import Mapping

from aot_tune.link.library_records import TargetTable
from aot_tune.link.signature import braced
from aot_tune.select import form_of
from aot_tune.spec import Operator, Problem

TunedFacts = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Dims, classes of strides (-1 for an absent tensor), choices of attributes and of dtypes."""
_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
_MASK = 2**64 - 1


def render_rows(op: Operator, index: int, target: TargetTable) -> str:
    """The problems that were measured, in the order of their forms, and where a call like a tuned one finds its row."""
    rows = _rows(op, target)
    if not rows:
        return ""
    starts: dict[tuple[int, ...], int] = {}
    every: list[int] = []
    for _, ranked in rows:
        if ranked not in starts:
            starts[ranked] = len(every)
            every += ranked
    lines = [
        f"constexpr Row<Own> kRows_{index}[] = {{",
        *(f"    {{{_row(op, p)}, {starts[ranked]}, {len(ranked)}}}," for p, ranked in rows),
        "};",
        f"constexpr int16_t kRanked_{index}[] = {braced(every, '-1')};",
    ]
    slots = _slots_of(op, target)
    return "\n".join([*lines, *([f"constexpr int16_t kSlots_{index}[] = {braced(slots)};"] if slots else [])])


def measured_fields(op: Operator, index: int, target: TargetTable) -> list[str]:
    """What the row of a target's table has of measured problems."""
    rows, slots = _rows(op, target), _slots_of(op, target)
    fields = [f"kRows_{index}", str(len(rows)), f"kRanked_{index}"] if rows else ["nullptr", "0", "nullptr"]
    return fields + ([f"kSlots_{index}", str(len(slots) - 1)] if slots else ["nullptr", "0"])


def alone_rows(op: Operator, target: TargetTable) -> list[tuple[int, int]]:
    """The rows and variants for which a call gets one thread."""
    alone = {form_of(op.facts(p)): variants for p, variants in zip(target.tuned, target.alone, strict=False)}
    return [(n, v) for n, (p, _) in enumerate(_rows(op, target)) for v in alone.get(form_of(op.facts(p)), ())]


def _rows(op: Operator, target: TargetTable) -> list[tuple[Problem, tuple[int, ...]]]:
    """The measured problems of different forms, with the variants of each."""
    exact = target.exact or ((),) * len(target.tuned)
    problems = [*zip(target.tuned, exact, strict=True), *target.surveyed]
    by_form = dict(reversed([(form_of(op.facts(p)), (p, ranked)) for p, ranked in problems]))
    return [by_form[form] for form in sorted(by_form)]


def _slots_of(op: Operator, target: TargetTable) -> list[int]:
    """The rows of tuned problems. Empty if there are none."""
    tuned = {form_of(op.facts(p)) for p in target.tuned}
    places = {n: place_of(op, p) for n, (p, _) in enumerate(_rows(op, target)) if form_of(op.facts(p)) in tuned}
    return _slots(places) if places else []


def _slots(places: Mapping[int, int]) -> list[int]:
    """A table with open addressing, at most half full, of each row's place. It holds a row's number, or -1."""
    size = 2
    while size < 2 * len(places):
        size *= 2
    slots = [-1] * size
    for number, place in places.items():
        at = place % size
        while slots[at] >= 0:
            at = (at + 1) % size
        slots[at] = number
    return slots


def place_of(op: Operator, problem: Problem) -> int:
    """What the runtime's `place_of_row` gives for a call like the problem."""
    dims, _, attributes, dtypes = tuned_facts(op, problem)
    total = sum(value * int(pow(_ODD, i + 1, 2**64)) for i, value in enumerate((*dims, *attributes, *dtypes))) & _MASK
    return total ^ (total >> 32)


def _row(op: Operator, problem: Problem) -> str:
    return ", ".join(f"{{{', '.join(map(str, part)) or '0'}}}" for part in tuned_facts(op, problem))


def tuned_facts(op: Operator, problem: Problem) -> TunedFacts:
    """The facts of a problem."""
    facts = op.facts(problem)
    return (
        tuple(problem.dims[d] for d in op.dims),
        form_of(facts).classes,
        tuple(facts[f"attribute.{a.name}"] for a in op.attributes),
        tuple(facts[f"dtype.{v}"] for v in op.dtypes),
    )
