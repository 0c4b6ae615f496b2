"""Generated decisions: each target's tree as nested conditions, the choice among targets, the problems measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aot_tune.link.emit.signature import c_string
from aot_tune.link.emit.tuned_facts import tuned_facts
from aot_tune.link.families import family_of
from aot_tune.link.library_records import DecisionNode, OperatorTable, TargetTable
from aot_tune.spec import Expr, Operator, Problem, dtype_index

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
        if kind in ("attribute", "dtype"):
            return f"int64_t{{c.{'v' if kind == 'attribute' else 'y'}_{rest}}}"
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
    """The functions of an operator that choose a variant: guards, one function per target's tree, the choice."""
    parts = [*_refusals(table), _first_of(table)]
    parts += [_tree(table, i, target) for i, target in enumerate(table.tables)]
    parts += [_generic_of(table), _select_table(table), _choose(table)]
    return "\n\n".join(parts)


def _refusals(table: OperatorTable) -> list[str]:
    """A function for each list of guards that some variants have, and the one that knows which variant has which."""
    every = _all_guards(table)
    variants: dict[tuple[str, ...], list[int]] = {}
    for index, guards in every.items():
        variants.setdefault(tuple(guard.key() for guard in guards), []).append(index)
    lines = [
        "// The guard that a call fails first, as text; null when the variant accepts it.",
        "const char* refusal(const Call& c, int variant) {",
        "  (void)c;",
        "  switch (variant) {",
    ]
    for first, *others in variants.values():
        lines += [f"    case {i}:" for i in (first, *others)]
        lines.append(f"      return refusal_{first}(c);")
    lines += ["    default:", "      return nullptr;", "  }", "}"]
    accepts = """\
template <typename Trace>
bool accepts(const Call& c, int variant, Trace& trace) {
  const char* refused = refusal(c, variant);
  return refused == nullptr || trace.guard(false, kInfo[variant], refused);
}"""
    return [*(_refusal(table, first, every[first]) for first, *_ in variants.values()), "\n".join(lines), accepts]


def _refusal(table: OperatorTable, index: int, guards: tuple[Expr, ...]) -> str:
    read = fact_printer(table.operator)
    lines = [f"const char* refusal_{index}(const Call& c) {{", "  (void)c;"]
    lines += [f"  if ({guard.cpp(read)} == 0) return {c_string(guard.key())};" for guard in guards]
    return "\n".join([*lines, "  return nullptr;", "}"])


def _first_of(table: OperatorTable) -> str:
    """The walk along a leaf's variants, which are data: as code they would be most of what is to be compiled."""
    generic = ", ".join(str(v.generic).lower() for v in table.variants)
    return f"""\
constexpr bool kGeneric[] = {{{generic}}};

// The first of a leaf's variants that answers the call, or -1.
template <typename Trace>
int first_of(const Call& c, const int16_t* leaf, int count, Trace& trace) {{
  for (int i = 0; i < count; ++i) {{
    const int variant = leaf[i];
    if (!kGeneric[variant] && !allowed(kOperator, kInfo[variant], trace)) continue;
    if (accepts(c, variant, trace) && trace.fits(c, variant)) return variant;
  }}
  return -1;
}}"""


def _tree(table: OperatorTable, index: int, target: TargetTable) -> str:
    """A target's decisions, behind its leaves; equal leaves are one."""
    leaves = sorted({node.leaf for node in target.nodes if not node.fact and node.leaf})
    names = {leaf: f"kLeaf_{index}_{i}" for i, leaf in enumerate(leaves)}
    lines = [f"// {target.target}"]
    lines += [f"constexpr int16_t {names[leaf]}[] = {{{', '.join(map(str, leaf))}}};" for leaf in leaves]
    lines += ["template <typename Trace>", f"int choose_{index}(const Call& c, Trace& trace) {{"]
    lines += ["  (void)c;", "  (void)trace;"]
    if target.nodes:
        lines += _node(table, names, target, 0, "  ")
    else:
        lines.append("  return -1;")
    return "\n".join([*lines, "}"])


def _node(
    table: OperatorTable, leaves: Mapping[tuple[int, ...], str], target: TargetTable, index: int, indent: str
) -> list[str]:
    node: DecisionNode = target.nodes[index]
    if not node.fact:
        walk = f"first_of(c, {leaves[node.leaf]}, {len(node.leaf)}, trace)" if node.leaf else "-1"
        return [f"{indent}return {walk};"]
    fact = fact_printer(table.operator)(node.fact)
    yes, no = (c_string(f"{node.fact} {op} {node.threshold}") for op in ("<=", ">"))
    return [
        f"{indent}if (trace.test({fact} <= INT64_C({node.threshold}), {yes}, {no})) {{",
        *_node(table, leaves, target, node.below, indent + "  "),
        f"{indent}}} else {{",
        *_node(table, leaves, target, node.above, indent + "  "),
        f"{indent}}}",
    ]


def _all_guards(table: OperatorTable) -> dict[int, tuple[Expr, ...]]:
    """The guards of each variant that has some: what it requires, and that the call has its dtypes."""
    found = {}
    for index, variant in enumerate(table.variants):
        dtypes = zip(table.operator.dtypes, table.choices(variant), strict=True)
        guards = [dtype_index(variable) == choice for variable, choice in dtypes]
        stated = {g.key() for g in guards}
        guards += [g for g in variant.requires if g.key() not in stated]
        if guards:
            found[index] = tuple(guards)
    return found


def _generic_of(table: OperatorTable) -> str:
    lines = ["// The generic variant for the call's device and dtypes, or -1.", "int generic_of(const Call& c) {"]
    families = table.families
    if len(families) == 1 and not table.operator.dtypes and not table.bounded(families[0]):
        return "\n".join([*lines, "  (void)c;", f"  return {table.generics(families[0])[0]};", "}"])
    for family in families:
        for index in table.generics(family):
            dtypes = zip(table.operator.dtypes, table.choices(table.variants[index]), strict=True)
            tests = [f"c.backend == &backend_{family}", *(f"c.y_{variable} == {choice}" for variable, choice in dtypes)]
            tests += [f"runs_on(kInfo[{index}], c.level)"] if table.variants[index].last else []
            lines.append(f"  if ({' && '.join(tests)}) return {index};")
    return "\n".join([*lines, "  return -1;", "}"])


def _select_table(table: OperatorTable) -> str:
    lines = [
        "// The table of the most specific target that a device runs, or -1.",
        "int table_for(const Backend* backend, int32_t level) {",
        "  (void)backend;",
        "  (void)level;",
    ]
    ranked = sorted(enumerate(table.tables), key=lambda pair: pair[1].specificity, reverse=True)
    for index, target in ranked:
        last = f" && level <= {target.last}" if target.last else ""
        family = family_of(target.target)
        lines.append(f"  if (backend == &backend_{family} && level >= {target.level}{last}) return {index};")
    return "\n".join([*lines, "  return -1;", "}"])


def _choose(table: OperatorTable) -> str:
    lines = [
        "template <typename Trace>",
        "int choose(const Call& c, Trace& trace) {",
        "  int choice = -1;",
        "  switch (c.hollow ? -1 : table_for(c.backend, c.level)) {",
    ]
    for index in range(len(table.tables)):
        lines += [f"    case {index}:", f"      choice = choose_{index}(c, trace);", "      break;"]
    lines += ["    default:", "      (void)trace;", "      break;", "  }"]
    return "\n".join([*lines, "  return choice >= 0 ? choice : c.generic;", "}"])


def render_tuned(table: OperatorTable) -> str:
    """`is_tuned` of an operator, with the measured problems of each table."""
    op = table.operator
    names = max(len(op.dims), 1), len(op.tensors), max(len(op.attributes), 1)
    lines = [
        "struct Tuned {",
        f"  int64_t dims[{names[0]}];",
        f"  int64_t classes[{names[1]}];  // of strides; -1 where the tensor is absent",
        f"  int32_t attributes[{names[2]}];",
        *([f"  int32_t dtypes[{len(op.dtypes)}];"] if op.dtypes else []),
        "};",
    ]
    used = [(i, sorted({_tuned(op, p) for p in t.tuned})) for i, t in enumerate(table.tables)]
    for index, rows in used:
        if rows:
            lines += [f"constexpr Tuned kTuned_{index}[] = {{", *(f"    {row}," for row in rows), "};"]
    lines += ["", "int is_tuned(const Call& c) {", "  if (c.empty || c.hollow) return 0;"]
    lines += ["  const Tuned* rows = nullptr;", "  int count = 0;", "  switch (table_for(c.backend, c.level)) {"]
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
    if op.dtypes:
        lines.append(f"  const int32_t dtypes[] = {{{', '.join(f'c.y_{v}' for v in op.dtypes)}}};")
    lines += [
        f"  const int32_t attributes[] = {{{attributes}}};",
        "  for (int i = 0; i < count; ++i) {",
        "    bool same = true;",
        f"    for (int k = 0; k < {names[0]}; ++k) same &= rows[i].dims[k] == dims[k];",
        f"    for (int k = 0; k < {names[1]}; ++k) same &= rows[i].classes[k] == classes[k];",
        f"    for (int k = 0; k < {names[2]}; ++k) same &= rows[i].attributes[k] == attributes[k];",
        *(
            [f"    for (int k = 0; k < {len(op.dtypes)}; ++k) same &= rows[i].dtypes[k] == dtypes[k];"]
            if op.dtypes
            else []
        ),
        "    if (same) return 1;",
        "  }",
        "  return 0;",
        "}",
    ]
    return "\n".join(lines)


def _tuned(op: Operator, problem: Problem) -> str:
    dims, classes, attributes, dtypes = tuned_facts(op, problem)
    row = [", ".join(map(str, part)) or "0" for part in (dims, classes, attributes)]
    if dtypes:
        row.append(", ".join(map(str, dtypes)))
    return f"{{{', '.join(f'{{{part}}}' for part in row)}}}"
