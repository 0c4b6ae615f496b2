"""Generated decisions of each target: what was measured, what is likely, and what comes last."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aot_tune.link.library_records import ExpectedTime, OperatorTable, TargetTable
from aot_tune.link.measured_problems import render_rows
from aot_tune.link.signature import c_string
from aot_tune.select import Term, Tree
from aot_tune.spec import Expr, Operator, dtype_index

__all__ = ["expected_fields", "fact_printer", "render_decisions", "render_refusals", "shared_terms"]

Fact = Callable[[str], str]

_NONE = Tree((0, 0, 0), (0, 0, 0), (0,) * 8)
"""Stands for no trees, because an array must have an element."""


def fact_printer(op: Operator) -> Callable[[str], str]:
    """How a fact is read from a call `c`. Only facts that a decision asks for are computed."""
    optional = {t.name for t in op.tensors if t.optional}
    tensors, attributes, dtypes = [t.name for t in op.tensors], [a.name for a in op.attributes], list(op.dtypes)

    def tensor_of(name: str) -> str:
        return f"c.tensor({tensors.index(name)})"

    def print_of_tensor(kind: str, tensor: str, axis: str) -> str:
        passed = tensor_of(tensor)
        if kind == "present":
            return f"int64_t{{{passed} != nullptr}}" if tensor in optional else "INT64_C(1)"
        if kind == "alignment":
            data = f"{passed}->data"
            return f"alignment_of({f'{passed} != nullptr ? {data} : nullptr' if tensor in optional else data})"
        read = f"{passed}->strides[{axis}]"
        later = [e.cpp(print_fact) for e in op.tensor(tensor).shape[int(axis) + 1 :]]
        dense = " * ".join(later) or "INT64_C(1)"  # as in Operator.facts, an absent tensor counts as row-major
        return f"({passed} != nullptr ? {read} : {dense})" if tensor in optional else read

    def print_fact(fact: str) -> str:
        kind, _, rest = fact.partition(".")
        if not rest:
            return f"c.dims[{op.dims.index(fact)}]"
        if kind == "attribute":
            return f"int64_t{{c.arguments.attributes[{attributes.index(rest)}]}}"
        if kind == "dtype":
            return f"int64_t{{c.dtypes[{dtypes.index(rest)}]}}"
        tensor, _, axis = rest.partition(".")
        return print_of_tensor(kind, tensor, axis)

    return print_fact


def render_decisions(table: OperatorTable) -> list[str]:
    """What the tables of an operator's targets consist of: the rows that were measured, and expected times."""
    fact = fact_printer(table.operator)
    parts = [render_rows(table.operator, i, target) for i, target in enumerate(table.tables)]
    parts += [_expected(i, target, fact) for i, target in enumerate(table.tables) if target.expected]
    return list(filter(None, parts))


def render_refusals(table: OperatorTable) -> str:
    """A function for each list of guards that some variants have, and one that knows each variant's list."""
    every = _all_guards(table)
    variants: dict[tuple[str, ...], list[int]] = {}
    for index, guards in every.items():
        variants.setdefault(tuple(guard.key() for guard in guards), []).append(index)
    lines = [
        "const char* Own::refusal(const Call& c, int variant) {",
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


def expected_fields(index: int, target: TargetTable) -> list[str]:
    """What the row of a target's table has of expected times."""
    if not target.expected:
        return ["nullptr", "0", "nullptr", "nullptr"]
    return [f"kExpected_{index}", str(len(target.expected)), f"kind_{index}", f"terms_{index}"]


def _expected(index: int, target: TargetTable, fact: Fact) -> str:
    """The expected times of a target's variants. `fact` prints a fact of the call `c`."""
    shared = shared_terms(target.expected)
    parts = [_shared_terms(index, target, shared, fact)]
    parts += [_of_variant(f"{index}_{i}", expectation, shared, fact) for i, expectation in enumerate(target.expected)]
    return "\n\n".join([*parts, _table(index, target, fact)])


def shared_terms(expected: tuple[ExpectedTime, ...]) -> dict[int, int]:
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
        f"const ExpectedInfo<Own> kExpected_{index}[] = {{",
    ]
    lines += [
        f"    {{{kinds.index(expected.facts)}, {expected.variant}, {expected.caution}, {expected.model.error}, "
        f"within_{index}_{i}, expected_{index}_{i}}},"
        for i, expected in enumerate(target.expected)
    ]
    return "\n".join([*lines, "};"])
