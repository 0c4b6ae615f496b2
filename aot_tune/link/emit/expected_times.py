"""Generated code that ranks variants by their expected times, for calls that nobody measured (runtime/expected.h)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aot_tune.link.library_records import ExpectedTime, TargetTable
from aot_tune.select import Term, Tree

__all__ = ["render_expected"]

Fact = Callable[[str], str]

_NONE = Tree((0, 0, 0), (0, 0, 0), (0,) * 8)
"""Stands for no trees, because an array must have an element."""


def render_expected(index: int, target: TargetTable, fact: Fact) -> str:
    """`likely_<index>`: the variant of a target's table that is expected to be the fastest for a call, or -1.

    `fact` prints a fact of the call `c`.
    """
    shared = _shared(target.expected)
    parts = [_shared_terms(index, target, shared, fact)]
    parts += [_of_variant(f"{index}_{i}", one, shared, fact) for i, one in enumerate(target.expected)]
    parts += [_table(index, target, fact), _likely(index, target, len(shared))]
    return "\n\n".join(parts)


def _shared(expected: tuple[ExpectedTime, ...]) -> dict[int, int]:
    """The places of terms, by their numbers. These are terms that variants have in common and that some model needs."""
    needed: set[int] = set()
    for one in expected:
        for number in one.model.terms:
            if number < one.terms.shared:
                needed.add(number)
                needed.update(_pair(one.terms.terms[number]))
    return {number: place for place, number in enumerate(sorted(needed))}


def _pair(term: Term) -> tuple[int, ...]:
    return term.pair if term.kind == "product" else ()


def _shared_terms(index: int, target: TargetTable, shared: Mapping[int, int], fact: Fact) -> str:
    terms = target.expected[0].terms.terms
    lines = ["// What all of them need of a call.", f"void terms_{index}(const Call& c, int64_t* s) {{"]
    lines += ["  (void)c;", "  (void)s;"]
    lines += [f"  s[{place}] = {_term(terms[number], shared, fact)};" for number, place in shared.items()]
    return "\n".join([*lines, "}"])


def _term(term: Term, shared: Mapping[int, int], fact: Fact) -> str:
    if term.quantity is None:
        left, right = (shared[number] for number in term.pair)
        return f"product_term(s[{left}], s[{right}])"
    return f"{'log_term' if term.kind == 'log' else 'number_term'}({term.quantity.cpp(fact)})"


def _of_variant(name: str, one: ExpectedTime, shared: Mapping[int, int], fact: Fact) -> str:
    terms, model = one.terms, one.model
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
    within = " && ".join(f"({condition.cpp(fact)}) != 0" for condition in one.within) or "true"
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
    kinds = list(dict.fromkeys(one.facts for one in target.expected))
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
        f"    {{{kinds.index(one.facts)}, {one.variant}, {one.caution}, {one.model.error}, "
        f"within_{index}_{i}, expected_{index}_{i}}},"
        for i, one in enumerate(target.expected)
    ]
    return "\n".join([*lines, "};"])


def _likely(index: int, target: TargetTable, shared: int) -> str:
    return f"""\
template <typename Trace>
int likely_{index}(const Call& c, Trace& trace) {{
  int64_t s[{max(shared, 1)}];
  terms_{index}(c, s);
  Likely found[{len(target.expected)}];
  int count = 0;
  int64_t best = INT64_MAX;
  const int kind = kind_{index}(c);
  for (const auto& one : kExpected_{index}) {{
    if (one.kind != kind || !one.within(c)) continue;
    if (!allowed(kOperator, kInfo[one.variant], trace) || !accepts(c, one.variant, trace)) continue;
    const int64_t time = one.expected(c, s, Trace::kFirstOnly ? best - one.caution : INT64_MAX);
    trace.expected(kInfo[one.variant], time, one.error);
    found[count++] = {{time + one.caution, one.variant}};
    if (time + one.caution < best) best = time + one.caution;
  }}
  for (int variant; (variant = take_likeliest(found, &count)) >= 0;) {{
    if (trace.fits(c, variant)) return variant;
  }}
  return -1;
}}"""
