"""Generated tables of what the runtime knows of an operator's calls (runtime/facts.h), and code that reads facts."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.link.library_records import LibrarySpec, OperatorTable
from aot_tune.spec import Operator

__all__ = ["own_facts", "render_facts", "render_library_info"]


def own_facts(op: Operator) -> tuple[str, ...]:
    """The facts of an operator's calls, without those of tensors, in the runtime's order.

    The names are those of decisions.
    """
    dtypes = (f"dtype.{v}" for v in sorted(op.dtypes))
    return (*op.dims, *dtypes, *(f"attribute.{name}" for name in sorted(a.name for a in op.attributes)))


def render_facts(table: OperatorTable) -> str:
    """`kFacts`, the names of an operator's facts, and `read_facts`, which reads the facts of a call."""
    op = table.operator
    dtypes, attributes = sorted(op.dtypes), sorted(a.name for a in op.attributes)
    names = [t.name for t in op.tensors]
    lines = [_array("const char*", "kDimNames", [f'"{d}"' for d in op.dims])]
    for variable in dtypes:
        lines.append(_array("const char*", f"kDTypeNames_{variable}", [f'"{d}"' for d in op.dtypes[variable]]))
    rows = [f'{{"{v}", kDTypeNames_{v}, {len(op.dtypes[v])}}}' for v in dtypes]
    lines.append(_array("AttributeInfo", "kDTypeFacts", rows))
    lines.append(_array("AttributeInfo", "kAttributeFacts", [f"kAttribute_{a}" for a in attributes]))
    lines.append(_array("int32_t", "kTensorsByName", [str(names.index(name)) for name in sorted(names)]))
    counts = [(op.dims, "kDimNames"), (dtypes, "kDTypeFacts"), (attributes, "kAttributeFacts")]
    listed = ", ".join(f"{array if items else 'nullptr'}, {len(items)}" for items, array in counts)
    values = [f"c.d_{d}" for d in op.dims] + [f"c.y_{v}" for v in dtypes] + [f"c.v_{a}" for a in attributes]
    values += [f"c.t_{t.name} != nullptr" if t.optional else "1" for t in op.tensors]
    return "\n".join(
        [
            *filter(None, lines),
            f"constexpr FactsInfo kFacts = {{&kOperator, {listed}, kTensorsByName, kInfo, {len(table.variants)}}};",
            "",
            "void read_facts(const Call& c, int64_t* facts) {",
            f"  const int64_t values[] = {{{', '.join(values)}}};",
            "  std::memcpy(facts, values, sizeof values);",
            "}",
        ]
    )


def render_library_info(spec: LibrarySpec) -> str:
    """What the runtime knows of a library."""
    rows = ", ".join(f"&operator_{table.operator.name}::kFacts" for table in spec.operators)
    return f"""\
namespace {{
const FactsInfo* const kOperators[] = {{{rows}}};
}}  // namespace

namespace aot_tune {{
const LibraryInfo library_info = {{"{spec.name}", kLibrary, kOperators, {len(spec.operators)}}};
}}  // namespace aot_tune
"""


def _array(kind: str, name: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    pointer = "constexpr const char* const" if kind == "const char*" else f"constexpr {kind}"
    return f"{pointer} {name}[] = {{{', '.join(items)}}};"
