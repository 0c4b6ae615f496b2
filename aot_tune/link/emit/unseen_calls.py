"""Generated tables of the calls whose times are known. AOT_TUNE_WARN reports others (runtime/warn.h)."""

from __future__ import annotations

from aot_tune.link.emit.call_facts import own_facts
from aot_tune.link.library_records import OperatorTable, SeenCalls, TargetTable
from aot_tune.spec import Operator

__all__ = ["render_unseen"]


def render_unseen(table: OperatorTable) -> str:
    """`warn`, which reports a call unless times of such calls are known."""
    op = table.operator
    lines = [_spans(op, index, target) for index, target in enumerate(table.tables) if target.seen]
    if table.tables:
        rows = ", ".join(_row(index, target) for index, target in enumerate(table.tables))
        lines.append(f"constexpr Seen kSeen[] = {{{rows}}};")
    found = "table >= 0 ? &kSeen[table] : nullptr" if table.tables else "nullptr"
    return "\n".join(
        [
            *lines,
            "",
            "// Tells of a call for AOT_TUNE_WARN.",
            "__attribute__((noinline, cold)) void warn(const Call& c) {",
            "  static std::atomic<bool> told{false};",
            "  if (c.hollow) return;",
            "  int64_t facts[kFacts.count()];",
            "  read_facts(c, facts);",
            *(["  const int table = table_for(c.backend, c.level);"] if table.tables else []),
            f"  warn_of_unseen(kFacts, facts, *c.backend, {found}, &told);",
            "}",
        ]
    ).lstrip("\n")


def _row(index: int, target: TargetTable) -> str:
    spans = f"kSpans_{index}" if target.seen else "nullptr"
    return f'{{"{target.target}", {spans}, {len(target.seen)}, {str(bool(target.expected)).lower()}}}'


def _spans(op: Operator, index: int, target: TargetTable) -> str:
    rows = (f"    {', '.join(_span(op, fact, seen) for fact in own_facts(op))}," for seen in target.seen)
    return "\n".join([f"constexpr Span kSpans_{index}[] = {{", *rows, "};"])


def _span(op: Operator, fact: str, seen: SeenCalls) -> str:
    """The values that a fact had in what was seen, or all its possible values if the fact does not matter."""
    kind, _, name = fact.partition(".")
    if not name:
        low, high = seen.dims[fact]
    elif fact in dict(seen.facts):
        low = high = dict(seen.facts)[fact]
    else:
        choices = op.dtypes[name] if kind == "dtype" else next(a.choices for a in op.attributes if a.name == name)
        low, high = 0, len(choices) - 1
    return f"{{{low}, {high}}}"
