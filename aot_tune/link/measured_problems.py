"""Generated tables of measured problems. A call like one of them gets what was fastest there.

A library treats two problems with equal facts as one. `is_tuned` compares a call by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot_tune.link.library_records import OperatorTable, TargetTable
from aot_tune.select import form_of
from aot_tune.spec import Operator, Problem

__all__ = ["TunedFacts", "number_of", "place_of", "render_measured", "tuned_facts"]

TunedFacts = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Dims, classes of strides (-1 for an absent tensor), choices of attributes and of dtypes."""
_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
_MASK = 2**64 - 1


def render_measured(table: OperatorTable) -> str:
    """The rows of each target's table, and `measured_<index>`, which finds the row of a call."""
    op = table.operator
    rows = [_rows(op, i, target) for i, target in enumerate(table.tables) if target.tuned or target.surveyed]
    return "\n\n".join([_row_type(op), _place(op), _same(op), _row_of_call(op), *rows]) if rows else ""


def _row_type(op: Operator) -> str:
    lines = [
        "struct Tuned {",
        f"  int64_t dims[{max(len(op.dims), 1)}];",
        f"  int64_t classes[{len(op.tensors)}];  // of strides; -1 where the tensor is absent",
        f"  int32_t attributes[{max(len(op.attributes), 1)}];",
        f"  int32_t dtypes[{max(len(op.dtypes), 1)}];",
        "  int32_t first;  // of its variants, and how many",
        "  int32_t count;",
        "};",
    ]
    return "\n".join(lines)


def _place(op: Operator) -> str:
    """Where to look first for a call's row."""
    read = [f"c.d_{d}" for d in op.dims] + [f"c.v_{a.name}" for a in op.attributes] + [f"c.y_{v}" for v in op.dtypes]
    return "\n".join(
        [
            "uint64_t place_of_row(const Call& c) {",
            "  (void)c;",
            f"  const uint64_t sum = {number_of(read)};",
            "  return sum ^ (sum >> 32);",
            "}",
        ]
    )


def _classes(op: Operator) -> list[str]:
    """The classes of a call's strides; -1 for an absent tensor."""
    layouts = ((f"stride_class(*c.t_{t.name})", t) for t in op.tensors)
    return [f"(c.t_{t.name} != nullptr ? {layout} : -1)" if t.optional else layout for layout, t in layouts]


def _same(op: Operator) -> str:
    """Whether a call is like a row's problem. Strides come last, because they take longest to compare."""
    tests = [f"row.dims[{i}] == c.d_{d}" for i, d in enumerate(op.dims)]
    tests += [f"row.attributes[{i}] == c.v_{a.name}" for i, a in enumerate(op.attributes)]
    tests += [f"row.dtypes[{i}] == c.y_{v}" for i, v in enumerate(op.dtypes)]
    tests += [f"row.classes[{i}] == {value}" for i, value in enumerate(_classes(op))]
    return "\n".join(["bool is_same(const Tuned& row, const Call& c) {", f"  return {' && '.join(tests)};", "}"])


def _row_of_call(op: Operator) -> str:
    """A call as a row, to compare it with others."""
    parts = [
        [f"c.d_{d}" for d in op.dims],
        _classes(op),
        [f"c.v_{a.name}" for a in op.attributes],
        [f"c.y_{v}" for v in op.dtypes],
    ]
    values = ", ".join(f"{{{', '.join(part) or '0'}}}" for part in parts)
    return "\n".join(["Tuned row_of(const Call& c) {", f"  return {{{values}, 0, 0}};", "}"])


def number_of(values: Sequence[str]) -> str:
    """An expression of C++: a sum of multiples of values, which is hardly ever equal for two small lists of them."""
    return " + ".join(f"static_cast<uint64_t>({v}) * UINT64_C({_odd(i):#x})" for i, v in enumerate(values)) or "0"


def _rows(op: Operator, index: int, target: TargetTable) -> str:
    """The problems that were measured, in the order of their forms, and where a call like a tuned one finds its row."""
    exact = target.exact or ((),) * len(target.tuned)
    problems = [*zip(target.tuned, exact, strict=True), *target.surveyed]
    forms = {p.id: form_of(op.facts(p)) for p, _ in problems}
    by_form = dict(reversed([(forms[p.id], (p, ranked)) for p, ranked in problems]))
    rows = [by_form[form] for form in sorted(by_form)]
    starts: dict[tuple[int, ...], int] = {}
    every: list[int] = []
    for _, ranked in rows:
        if ranked not in starts:
            starts[ranked] = len(every)
            every += ranked
    tuned = {forms[p.id] for p in target.tuned}
    slots = _slots({n: place_of(op, p) for n, (p, _) in enumerate(rows) if forms[p.id] in tuned})
    name = f"kTuned_{index}"
    return "\n".join(
        [
            f"constexpr Tuned {name}[] = {{",
            *(f"    {{{_row(op, p)}, {starts[ranked]}, {len(ranked)}}}," for p, ranked in rows),
            "};",
            f"constexpr int16_t kRanked_{index}[] = {{{', '.join(map(str, every)) or '-1'}}};",
            f"constexpr int16_t kSlots_{index}[] = {{{', '.join(map(str, slots))}}};  // a row's number, or -1",
            "",
            "// The row of the problem that a call is like, or null.",
            f"const Tuned* measured_{index}(const Call& c) {{",
            "  for (uint64_t at = place_of_row(c);; ++at) {",
            f"    const int row = kSlots_{index}[at & {len(slots) - 1}];",
            "    if (row < 0) return nullptr;",
            f"    if (is_same({name}[row], c)) return &{name}[row];",
            "  }",
            "}",
        ]
    )


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
    """What the generated `place_of_row` gives for a call like the problem."""
    dims, _, attributes, dtypes = tuned_facts(op, problem)
    total = sum(value * _odd(i) for i, value in enumerate((*dims, *attributes, *dtypes))) & _MASK
    return total ^ (total >> 32)


def _odd(index: int) -> int:
    return int(pow(_ODD, index + 1, 2**64))


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
