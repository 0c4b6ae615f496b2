"""Generated decisions: each target's tree as nested conditions, the choice among targets, the problems measured."""

from __future__ import annotations

from collections.abc import Callable

from aot_tune.link.records import DecisionNode, LinkedVariant, OperatorTable, TargetTable, family_of
from aot_tune.link.signature import c_string
from aot_tune.link.strides import canonical_strides, stride_class
from aot_tune.spec import Operator, Problem

__all__ = ["fact_printer", "render_choice", "render_tuned"]


def fact_printer(op: Operator) -> Callable[[str], str]:
    """How a fact is read from a call `c`; only the facts that a decision asks for are ever computed."""
    optional = {t.name for t in op.tensors if t.optional}

    def print_fact(fact: str) -> str:
        kind, _, rest = fact.partition(".")
        if not rest:
            return f"c.d_{fact}"
        if kind == "present":
            return f"int64_t{{c.t_{rest} != nullptr}}" if rest in optional else "INT64_C(1)"
        if kind == "attribute":
            return f"int64_t{{c.v_{rest}}}"
        if kind == "alignment":
            data = f"c.t_{rest} != nullptr ? c.t_{rest}->data : nullptr" if rest in optional else f"c.t_{rest}->data"
            return f"alignment_of({data})"
        tensor, _, axis = rest.partition(".")
        read = f"c.t_{tensor}->strides[{axis}]"
        if tensor not in optional:
            return read
        later = [e.cpp(lambda name: f"c.d_{name}") for e in op.tensor(tensor).shape[int(axis) + 1 :]]
        dense = " * ".join(later) or "INT64_C(1)"  # as Operator.facts: an absent tensor counts as row-major
        return f"(c.t_{tensor} != nullptr ? {read} : {dense})"

    return print_fact


def render_choice(table: OperatorTable) -> str:
    """`choose` and `explain` of an operator, and one function per target's tree."""
    parts = [_tree(table, i, target) for i, target in enumerate(table.tables)]
    parts += [_select_table(table), _choose(table), _explain(table)]
    return "\n\n".join(parts)


def _tree(table: OperatorTable, index: int, target: TargetTable) -> str:
    lines = [f"// {target.target}", "template <typename Trace>", f"int choose_{index}(const Call& c, Trace& trace) {{"]
    lines += ["  (void)c;", "  (void)trace;"]
    if target.nodes:
        lines += _node(table, target, 0, "  ")
    else:
        lines.append("  return -1;")
    return "\n".join([*lines, "}"])


def _node(table: OperatorTable, target: TargetTable, index: int, indent: str) -> list[str]:
    node: DecisionNode = target.nodes[index]
    if not node.fact:
        return _leaf(table, node, indent)
    fact = fact_printer(table.operator)(node.fact)
    yes, no = (c_string(f"{node.fact} {op} {node.threshold}") for op in ("<=", ">"))
    return [
        f"{indent}if (trace.test({fact} <= INT64_C({node.threshold}), {yes}, {no})) {{",
        *_node(table, target, node.below, indent + "  "),
        f"{indent}}} else {{",
        *_node(table, target, node.above, indent + "  "),
        f"{indent}}}",
    ]


def _leaf(table: OperatorTable, node: DecisionNode, indent: str) -> list[str]:
    lines = []
    for index in node.leaf:
        condition = _guards(table, index, table.variants[index])
        lines.append(f"{indent}return {index};" if not condition else f"{indent}if ({condition}) return {index};")
        if not condition:
            return lines
    return [*lines, f"{indent}return -1;"]


def _guards(table: OperatorTable, index: int, variant: LinkedVariant) -> str:
    read = fact_printer(table.operator)
    return " && ".join(
        f"trace.guard({guard.cpp(read)} != 0, kVariants[{index}].info, {c_string(guard.key())})"
        for guard in variant.requires
    )


def _select_table(table: OperatorTable) -> str:
    lines = ["// The table of the highest target that the call's device runs, or -1.", "int table_of(const Call& c) {"]
    ranked = sorted(enumerate(table.tables), key=lambda pair: -pair[1].level)
    for index, target in ranked:
        lines.append(
            f"  if (c.backend == &backend_{family_of(target.target)} && c.level >= {target.level}) return {index};"
        )
    return "\n".join([*lines, "  (void)c;", "  return -1;", "}"])


def _choose(table: OperatorTable) -> str:
    lines = ["template <typename Trace>", "int choose(const Call& c, Trace& trace) {", "  int choice = -1;"]
    lines.append("  switch (c.hollow ? -1 : table_of(c)) {")
    for index in range(len(table.tables)):
        lines += [f"    case {index}:", f"      choice = choose_{index}(c, trace);", "      break;"]
    lines += ["    default:", "      (void)trace;", "      break;", "  }", "  if (choice >= 0) return choice;"]
    families = table.families
    lines += [f"  if (c.backend == &backend_{f}) return {table.generic(f)};" for f in families[1:]]
    return "\n".join([*lines, f"  return {table.generic(families[0])};", "}"])


def _explain(table: OperatorTable) -> str:
    op = table.operator
    targets = ", ".join(c_string(t.target) for t in table.tables)
    generics = " || ".join(f"choice == {table.generic(f)}" for f in table.families)
    lines = [
        "void explain(const Call& c, Text& text) {",
        '  text.add("operator: %s\\n", kOperator.name);',
        '  text.add("device: %s level %d\\n", c.backend->family, static_cast<int>(c.level));',
    ]
    for d in op.dims:
        lines.append(f'  text.add("dim: {d}=%lld\\n", static_cast<long long>(c.d_{d}));')
    tensors = ", ".join(f"c.t_{t.name}" for t in op.tensors)
    lines += [
        f"  const DLTensor* const given[] = {{{tensors}}};",
        "  explain_tensors(text, kOperator, given, c.view);",
    ]
    for a in op.attributes:
        lines.append(f'  text.add("attribute: {a.name}=%s\\n", kChoices_{a.name}[c.v_{a.name}]);')
    lines += [
        "  if (c.empty) {",
        '    text.add("why: no output has elements, so nothing runs\\n");',
        "    return;",
        "  }",
        "  const int table = c.hollow ? -1 : table_of(c);",
    ]
    if table.tables:
        lines += [
            f"  constexpr const char* kTargets[] = {{{targets}}};",
            '  if (table >= 0) text.add("table: %s\\n", kTargets[table]);',
        ]
    lines += [
        '  text.add("tuned: %s\\n", is_tuned(c) ? "yes" : "no");',
        "  TextTrace trace{&text};",
        "  const int choice = choose(c, trace);",
        f"  const bool generic = {generics};",
        '  const char* why = !generic     ? "first of the variants ranked for such calls whose guards hold"',
        '                    : c.hollow   ? "generic: an input has no elements"',
        '                    : table < 0  ? "generic: no tuned variants for this level of the device"',
        '                                 : "generic: no variant ranked for such calls accepts this one";',
        "  explain_choice(text, kVariants[choice].info, why);",
        "}",
    ]
    return "\n".join(["int is_tuned(const Call& c);", "", *lines])


def render_tuned(table: OperatorTable) -> str:
    """`is_tuned` of an operator, with the measured problems of each table."""
    op = table.operator
    names = max(len(op.dims), 1), len(op.tensors), max(len(op.attributes), 1)
    lines = [
        "struct Tuned {",
        f"  int64_t dims[{names[0]}];",
        f"  int64_t classes[{names[1]}];  // of strides; -1 where the tensor is absent",
        f"  int32_t attributes[{names[2]}];",
        "};",
    ]
    used = [(i, sorted({_tuned(op, p) for p in t.tuned})) for i, t in enumerate(table.tables)]
    for index, rows in used:
        if rows:
            lines += [f"constexpr Tuned kTuned_{index}[] = {{", *(f"    {row}," for row in rows), "};"]
    lines += ["", "int is_tuned(const Call& c) {", "  if (c.empty || c.hollow) return 0;"]
    lines += ["  const Tuned* rows = nullptr;", "  int count = 0;", "  switch (table_of(c)) {"]
    for index, rows in used:
        if rows:
            lines += [f"    case {index}:", f"      rows = kTuned_{index};"]
            lines += [f"      count = {len(rows)};", "      break;"]
    lines += ["    default:", "      break;", "  }"]
    lines += [f"  const int64_t dims[] = {{{', '.join(f'c.d_{d}' for d in op.dims) or '0'}}};"]
    classes = ", ".join(
        f"c.t_{t.name} != nullptr ? stride_class(*c.t_{t.name}) : -1" if t.optional else f"stride_class(*c.t_{t.name})"
        for t in op.tensors
    )
    lines += [f"  const int64_t classes[] = {{{classes}}};"]
    attributes = ", ".join(f"c.v_{a.name}" for a in op.attributes) or "0"
    lines += [
        f"  const int32_t attributes[] = {{{attributes}}};",
        "  for (int i = 0; i < count; ++i) {",
        "    bool same = true;",
        f"    for (int k = 0; k < {names[0]}; ++k) same &= rows[i].dims[k] == dims[k];",
        f"    for (int k = 0; k < {names[1]}; ++k) same &= rows[i].classes[k] == classes[k];",
        f"    for (int k = 0; k < {names[2]}; ++k) same &= rows[i].attributes[k] == attributes[k];",
        "    if (same) return 1;",
        "  }",
        "  return 0;",
        "}",
    ]
    return "\n".join(lines)


def _tuned(op: Operator, problem: Problem) -> str:
    facts = op.facts(problem)
    dims = ", ".join(str(problem.dims[d]) for d in op.dims) or "0"
    classes = []
    for tensor in op.tensors:
        shape = op.shape(problem, tensor)
        here = op.is_present(problem, tensor)
        classes.append(stride_class(canonical_strides(shape, op.strides(problem, tensor))) if here else -1)
    attributes = ", ".join(str(facts[f"attribute.{a.name}"]) for a in op.attributes) or "0"
    return f"{{{{{dims}}}, {{{', '.join(map(str, classes))}}}, {{{attributes}}}}}"
