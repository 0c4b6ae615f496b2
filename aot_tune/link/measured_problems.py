"""Generated tables of measured problems. A call like one of them gets what was fastest there.

A library treats two problems with equal facts as one. `is_tuned` compares a call by them.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.link.check_tables import MAX_RANK
from aot_tune.link.library_records import OperatorTable, TargetTable
from aot_tune.spec import Operator, Problem
from aot_tune.spec.tensors import canonical_strides

__all__ = ["TunedFacts", "number_of", "place_of", "render_measured", "same_choices", "stride_class", "tuned_facts"]

TunedFacts = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Dims, classes of strides (-1 for an absent tensor), choices of attributes and of dtypes."""
_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
_MASK = 2**64 - 1


def render_measured(table: OperatorTable) -> str:
    """The rows of each target's table, and `measured_<index>`, which finds the row of a call."""
    op = table.operator
    rows = [_rows(op, i, target) for i, target in enumerate(table.tables) if target.tuned]
    return "\n\n".join([_row_type(op), _place(op), _same(op), *rows]) if rows else ""


def _row_type(op: Operator) -> str:
    lines = [
        "struct Tuned {",
        f"  int64_t dims[{max(len(op.dims), 1)}];",
        f"  int64_t classes[{len(op.tensors)}];  // of strides; -1 where the tensor is absent",
        f"  int32_t attributes[{max(len(op.attributes), 1)}];",
        *([f"  int32_t dtypes[{len(op.dtypes)}];"] if op.dtypes else []),
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


def _same(op: Operator) -> str:
    """Whether a call is like a row's problem. Strides come last, because they take longest to compare."""
    tests = [f"row.dims[{i}] == c.d_{d}" for i, d in enumerate(op.dims)]
    tests += same_choices(op)
    for i, t in enumerate(op.tensors):
        layout = f"stride_class(*c.t_{t.name})"
        tests.append(f"row.classes[{i}] == {f'(c.t_{t.name} != nullptr ? {layout} : -1)' if t.optional else layout}")
    return "\n".join(["bool is_same(const Tuned& row, const Call& c) {", f"  return {' && '.join(tests)};", "}"])


def same_choices(op: Operator) -> list[str]:
    """Tests that a call has the attributes and dtypes of a row's problem."""
    tests = [f"row.attributes[{i}] == c.v_{a.name}" for i, a in enumerate(op.attributes)]
    return tests + [f"row.dtypes[{i}] == c.y_{v}" for i, v in enumerate(op.dtypes)]


def number_of(values: Sequence[str]) -> str:
    """An expression of C++: a sum of multiples of values, which is hardly ever equal for two small lists of them."""
    return " + ".join(f"static_cast<uint64_t>({v}) * UINT64_C({_odd(i):#x})" for i, v in enumerate(values)) or "0"


def _rows(op: Operator, index: int, target: TargetTable) -> str:
    exact = target.exact or ((),) * len(target.tuned)
    rows = dict(reversed([(_row(op, p), (p, leaf)) for p, leaf in zip(target.tuned, exact, strict=True)]))
    ranked: list[int] = []
    starts: dict[tuple[int, ...], int] = {}
    for _, leaf in rows.values():
        if leaf not in starts:
            starts[leaf] = len(ranked)
            ranked += leaf
    text = sorted(f"    {{{row}, {starts[leaf]}, {len(leaf)}}}," for row, (_, leaf) in rows.items())
    order = sorted(rows, key=lambda row: f"    {{{row}, {starts[rows[row][1]]}, {len(rows[row][1])}}},")
    slots = _slots([place_of(op, rows[row][0]) for row in order])
    name = f"kTuned_{index}"
    return "\n".join(
        [
            f"constexpr Tuned {name}[] = {{",
            *text,
            "};",
            f"constexpr int16_t kRanked_{index}[] = {{{', '.join(map(str, ranked)) or '-1'}}};",
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


def _slots(places: Sequence[int]) -> list[int]:
    """A table with open addressing, at most half full. Each place holds the number of its row, or -1."""
    size = 2
    while size < 2 * len(places):
        size *= 2
    slots = [-1] * size
    for number, place in enumerate(places):
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
    dims, classes, attributes, dtypes = tuned_facts(op, problem)
    row = [", ".join(map(str, part)) or "0" for part in (dims, classes, attributes)]
    if dtypes:
        row.append(", ".join(map(str, dtypes)))
    return ", ".join(f"{{{part}}}" for part in row)


def tuned_facts(op: Operator, problem: Problem) -> TunedFacts:
    """The facts of a problem."""
    facts = op.facts(problem)
    classes = []
    for tensor in op.tensors:
        shape = op.shape(problem, tensor)
        present = op.is_present(problem, tensor)
        classes.append(stride_class(canonical_strides(shape, op.strides(problem, tensor))) if present else -1)
    return (
        tuple(problem.dims[d] for d in op.dims),
        tuple(classes),
        tuple(facts[f"attribute.{a.name}"] for a in op.attributes),
        tuple(facts[f"dtype.{v}"] for v in op.dtypes),
    )


def stride_class(strides: Sequence[int]) -> int:
    """Equal numbers mean the same order of axes, and a fastest stride of 1 in both tensors or in neither."""
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    code = int(bool(order) and strides[order[-1]] == 1)
    for axis in order:
        code = code * MAX_RANK + axis
    return code
