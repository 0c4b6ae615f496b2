"""Generated decisions of each target: what was measured, what is likely, and what comes last."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aot_tune.link.library_records import ExpectedTime, OperatorTable, TargetTable
from aot_tune.link.signature import c_string, render_template
from aot_tune.select import Term, Tree
from aot_tune.spec import Expr, Operator, dtype_index

__all__ = ["fact_printer", "render_decisions", "render_generic_of", "render_refusals"]

Fact = Callable[[str], str]

_NONE = Tree((0, 0, 0), (0, 0, 0), (0,) * 8)
"""Stands for no trees, because an array must have an element."""


def fact_printer(op: Operator) -> Callable[[str], str]:
    """How a fact is read from a call `c`. Only facts that a decision asks for are computed."""
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
        dense = " * ".join(later) or "INT64_C(1)"  # as in Operator.facts, an absent tensor counts as row-major
        return f"(c.t_{tensor} != nullptr ? {read} : {dense})"

    return print_fact


def render_decisions(table: OperatorTable) -> list[str]:
    """What decides for the targets of an operator: a function for each table."""
    parts = []
    for i, target in enumerate(table.tables):
        parts += [_expected(i, target, fact_printer(table.operator))] if target.expected else []
        parts.append(_choice(i, target))
    return parts


def render_refusals(table: OperatorTable) -> str:
    """A function for each list of guards that some variants have, and one that knows each variant's list."""
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
    return "\n\n".join([*(_refusal(table, first, every[first]) for first, *_ in variants.values()), "\n".join(lines)])


def _refusal(table: OperatorTable, index: int, guards: tuple[Expr, ...]) -> str:
    read = fact_printer(table.operator)
    lines = [f"const char* refusal_{index}(const Call& c) {{", "  (void)c;"]
    lines += [f"  if ({guard.cpp(read)} == 0) return {c_string(guard.key())};" for guard in guards]
    return "\n".join([*lines, "  return nullptr;", "}"])


def _choice(index: int, target: TargetTable) -> str:
    """A target's decision, after the variants that come last."""
    lines = [f"// {target.target}"]
    lines += [f"constexpr int16_t kRest_{index}[] = {{{', '.join(map(str, target.rest))}}};"] if target.rest else []
    exact = _exact(index, target) if any(target.exact) else []
    others = _others(index, target)
    if target.filling_in:
        lines += _function(f"rank_{index}", others)
        lines += ["", *_filling_in(index, target), ""]
        others = [
            f"  const int variant = rank_{index}(c, trace);",
            "  if (variant >= 0 && !kGeneric[variant]) return variant;",
            f"  const int other = fill_in_{index}(c, trace);",
            "  return other >= 0 ? other : variant;",
        ]
    return "\n".join([*lines, *_function(f"choose_{index}", exact + others)])


def _function(name: str, body: list[str]) -> list[str]:
    head = ["template <typename Trace>", f"int {name}(const Call& c, Trace& trace) {{", "  (void)c;", "  (void)trace;"]
    return [*head, *body, "}"]


def _exact(index: int, target: TargetTable) -> list[str]:
    """What a call gets that is like a measured problem, as far as guards know.

    If other variants were faster there than a generic one, the generic one alone is no choice: others may fill in.
    """
    taken = "variant >= 0"
    if target.filling_in:
        taken += f" && (!kGeneric[variant] || is_preferred(c, kRanked_{index} + row->first, row->count, variant))"
    return [
        f"  if (const Tuned* row = measured_{index}(c)) {{",
        f"    const int variant = first_of(c, kRanked_{index} + row->first, row->count, trace);",
        f"    if ({taken}) return variant;",
        "  }",
    ]


def _others(index: int, target: TargetTable) -> list[str]:
    """What a call gets that was not measured: by expected times or by the nearest problem, then what comes last."""
    lines = []
    if target.expected:
        lines += [f"  const int variant = likely_{index}(c, trace);", "  if (variant >= 0) return variant;"]
    elif any(target.exact) or target.surveyed:
        lines += [
            f"  if (const Tuned* row = nearest(c, kTuned_{index}, kRanked_{index})) {{",
            f"    const int variant = first_of(c, kRanked_{index} + row->first, row->count, trace);",
            "    if (variant >= 0) return variant;",
            "  }",
        ]
    last = f"first_of(c, kRest_{index}, {len(target.rest)}, trace)" if target.rest else "-1"
    return [*lines, f"  return {last};"]


def _filling_in(index: int, target: TargetTable) -> list[str]:
    """The choice among variants that may not have been measured, for calls that otherwise only the generic one takes.

    If a generic variant was preferred to another one, that stays.
    """
    filling = ", ".join(map(str, target.filling_in))
    lines = [f"constexpr int16_t kFillingIn_{index}[] = {{{filling}}};"]
    if target.expected:
        body = [f"  const int kind = kind_{index}(c);", f"  for (const auto& one : kExpected_{index})"]
        body.append("    if (one.kind == kind && one.within(c) && competes(c, one.variant)) return -1;")
    else:
        others = [i for i in target.used if i not in target.filling_in]
        lines.append(f"constexpr int16_t kMeasured_{index}[] = {{{', '.join(map(str, others))}}};")
        body = [f"  for (const int variant : kMeasured_{index})", "    if (competes(c, variant)) return -1;"]
    walk = f"  return first_of(c, kFillingIn_{index}, {len(target.filling_in)}, trace);"
    return [*lines, *_function(f"fill_in_{index}", [*body, walk])]


def _all_guards(table: OperatorTable) -> dict[int, tuple[Expr, ...]]:
    """The guards of each variant that has some: its requirements, and that the call has its dtypes."""
    by_index = {}
    for index, variant in enumerate(table.variants):
        dtypes = zip(table.operator.dtypes, table.choices(variant), strict=True)
        guards = [dtype_index(variable) == choice for variable, choice in dtypes]
        stated = {g.key() for g in guards}
        guards += [g for g in variant.guards if g.key() not in stated]
        if guards:
            by_index[index] = tuple(guards)
    return by_index


def _is_of_dtypes(guard: Expr) -> bool:
    return all(fact.startswith("dtype.") for fact in guard.facts())


def render_generic_of(table: OperatorTable) -> str:
    """`generic_of`, the variant that answers a call if no other does."""
    lines = ["// The generic variant for the call's device and dtypes, or -1.", "int generic_of(const Call& c) {"]
    families, read = table.families, fact_printer(table.operator)
    single = len(families) == 1 and len(table.generics(families[0])) == 1
    if single and not table.operator.dtypes and not table.bounded(families[0]):
        return "\n".join([*lines, "  (void)c;", f"  return {table.generics(families[0])[0]};", "}"])
    for family in families:
        for index in table.generics(family):
            dtypes = zip(table.operator.dtypes, table.choices(table.variants[index]), strict=True)
            tests = [f"c.backend == &backend_{family}", *(f"c.y_{variable} == {choice}" for variable, choice in dtypes)]
            tests += [f"runs_on(kInfo[{index}], c.level)"] if table.variants[index].target.last else []
            tests += [f"{guard.cpp(read)}" for guard in table.variants[index].guards if not _is_of_dtypes(guard)]
            lines.append(f"  if ({' && '.join(tests)}) return {index};")
    return "\n".join([*lines, "  return -1;", "}"])


def _expected(index: int, target: TargetTable, fact: Fact) -> str:
    """`likely_<index>`: the variant of a target's table that is expected to be the fastest for a call, or -1.

    `fact` prints a fact of the call `c`.
    """
    shared = _shared(target.expected)
    parts = [_shared_terms(index, target, shared, fact)]
    parts += [_of_variant(f"{index}_{i}", expectation, shared, fact) for i, expectation in enumerate(target.expected)]
    parts += [
        _table(index, target, fact),
        render_template("likely.cpp.j2", index=index, shared=max(len(shared), 1), count=len(target.expected)),
    ]
    return "\n\n".join(parts).rstrip("\n")


def _shared(expected: tuple[ExpectedTime, ...]) -> dict[int, int]:
    """The places of terms, by their numbers. These are terms that variants have in common and that some model needs."""
    needed: set[int] = set()
    for expectation in expected:
        for number in expectation.model.terms:
            if number < expectation.terms.shared:
                needed.add(number)
                needed.update(_pair(expectation.terms.terms[number]))
    return {number: position for position, number in enumerate(sorted(needed))}


def _pair(term: Term) -> tuple[int, ...]:
    return term.pair if term.kind == "product" else ()


def _shared_terms(index: int, target: TargetTable, shared: Mapping[int, int], fact: Fact) -> str:
    terms = target.expected[0].terms.terms
    lines = ["// What all of them need of a call.", f"void terms_{index}(const Call& c, int64_t* s) {{"]
    lines += ["  (void)c;", "  (void)s;"]
    lines += [f"  s[{position}] = {_term(terms[number], shared, fact)};" for number, position in shared.items()]
    return "\n".join([*lines, "}"])


def _term(term: Term, shared: Mapping[int, int], fact: Fact) -> str:
    if term.quantity is None:
        left, right = (shared[number] for number in term.pair)
        return f"product_term(s[{left}], s[{right}])"
    return f"{'log_term' if term.kind == 'log' else 'number_term'}({term.quantity.cpp(fact)})"


def _of_variant(name: str, expectation: ExpectedTime, shared: Mapping[int, int], fact: Fact) -> str:
    terms, model = expectation.terms, expectation.model
    values = [
        f"s[{shared[number]}]" if number < terms.shared else _term(terms.terms[number], shared, fact)
        for number in model.terms
    ]
    trees = model.trees or (_NONE,)
    rows = [
        f"    {{{-sum(min(t.leaves) for t in trees[i:])}, {{{', '.join(map(str, tree.terms))}}}, "
        f"{{{', '.join(map(str, tree.cuts))}}}, {{{', '.join(map(str, tree.leaves))}}}}},"
        for i, tree in enumerate(trees)
    ]
    weights = ", ".join(map(str, model.weights))
    within = " && ".join(f"({condition.cpp(fact)}) != 0" for condition in expectation.within) or "true"
    return "\n".join(
        [
            f"constexpr int64_t kWeights_{name}[] = {{{weights}}};",
            f"constexpr TimeTree kTrees_{name}[] = {{",
            *rows,
            "};",
            f"bool within_{name}(const Call& c) {{",
            "  (void)c;",
            f"  return {within};",
            "}",
            f"int64_t expected_{name}(const Call& c, const int64_t* s, int64_t limit) {{",
            "  (void)c;",
            "  (void)s;",
            f"  const int64_t terms[] = {{{', '.join(values)}}};",
            f"  return expected_time(terms, kWeights_{name}, INT64_C({model.base}), kTrees_{name}, limit);",
            "}",
        ]
    )


def _table(index: int, target: TargetTable, fact: Fact) -> str:
    kinds = list(dict.fromkeys(expected.facts for expected in target.expected))
    lines = ["// Which of the kinds that variants are kept for a call is of.", f"int kind_{index}(const Call& c) {{"]
    lines.append("  (void)c;")
    for number, facts in enumerate(kinds):
        tests = " && ".join(f"{fact(name)} == {value}" for name, value in facts) or "true"
        lines.append(f"  if ({tests}) return {number};")
    lines += [
        "  return -1;",
        "}",
        "",
        "constexpr struct {",
        "  int32_t kind;",
        "  int32_t variant;",
        "  int32_t caution;  // is added: how much faster than a vendor's it has to be expected",
        "  int32_t error;",
        "  bool (*within)(const Call&);",
        "  int64_t (*expected)(const Call&, const int64_t*, int64_t);",
        f"}} kExpected_{index}[] = {{",
    ]
    lines += [
        f"    {{{kinds.index(expected.facts)}, {expected.variant}, {expected.caution}, {expected.model.error}, "
        f"within_{index}_{i}, expected_{index}_{i}}},"
        for i, expected in enumerate(target.expected)
    ]
    return "\n".join([*lines, "};"])
