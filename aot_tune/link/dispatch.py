"""Generated dispatch code: what decides for an operator's calls on each target, its guards and checks, its C functions.

What is the same for all operators is C++ in `runtime/operator.h` and `runtime/decision.h`. Here are the parts that
depend on an operator's tables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

from aot_tune.compile import Variant
from aot_tune.expr.integer_expressions import EXTENT, checked_cpp, is_plain
from aot_tune.link.library_records import (
    ExpectedTime,
    LibrarySpec,
    OperatorTable,
    RegimeCalls,
    TargetTable,
    family_facts,
    family_of,
)
from aot_tune.link.measured_problems import alone_rows, measured_fields, render_rows
from aot_tune.link.signature import braced, c_string, render_template
from aot_tune.render.template_functions import parameters, scalar_type
from aot_tune.select import Term, Tree
from aot_tune.spec import Expr, Operator, Tensor, dtype, dtype_index
from aot_tune.spec.calls import BoundDim, bound_dims
from aot_tune.spec.regimes import OTHER, regimes_of
from aot_tune.spec.targets import TILES_LEVEL
from aot_tune.spec.tensors import OffBy

Fact = Callable[[str], str]

_NONE = Tree((0, 0, 0), (0, 0, 0), (0,) * 8)
"""Stands for no trees, because an array must have an element."""


def _fact_printer(op: Operator) -> Callable[[str], str]:
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


def _decisions(table: OperatorTable) -> list[str]:
    """What the tables of an operator's targets consist of: the rows that were measured, and expected times."""
    fact = _fact_printer(table.operator)
    parts = [_regimes(table.operator, fact)] if any(target.regimes for target in table.tables) else []
    parts += [_regime_rows(table.operator, i, target, fact) for i, target in enumerate(table.tables) if target.regimes]
    parts += [render_rows(table.operator, i, target) for i, target in enumerate(table.tables)]
    parts += [_expected(table.operator, i, target, fact) for i, target in enumerate(table.tables) if target.expected]
    return list(filter(None, parts))


def _refusals(table: OperatorTable) -> str:
    """A function for each list of guards that some variants have, and one that knows each variant's list."""
    every = _all_guards(table)
    variants: dict[tuple[str, ...], list[int]] = {}
    for index, guards in every.items():
        variants.setdefault(tuple(guard.key() for guard in guards), []).append(index)
    lines = ["const char* Own::refusal(const Call& c, int variant) {", "  (void)c;", "  switch (variant) {"]
    for first, *others in variants.values():
        lines += [f"    case {i}:" for i in (first, *others)]
        lines.append(f"      return refusal_{first}(c);")
    lines += ["    default:", "      return nullptr;", "  }", "}"]
    return "\n\n".join([*(_refusal(table, first, every[first]) for first, *_ in variants.values()), "\n".join(lines)])


def _worthwhile(table: OperatorTable) -> str:
    """A function that knows the calls that each variant's kernel is meant for."""
    fact, variants = _fact_printer(table.operator), dict[str, list[int]]()
    for index, variant in enumerate(table.variants):
        if conditions := table.worth.get(variant.name):
            meant = " && ".join(f"({condition.cpp(fact)}) != 0" for condition in conditions)
            variants.setdefault(meant, []).append(index)
    lines = ["bool Own::worthwhile(const Call& c, int variant) {", "  (void)c;", "  switch (variant) {"]
    for meant, indices in variants.items():
        lines += [f"    case {i}:" for i in indices] + [f"      return {meant};"]
    return "\n".join([*lines, "    default:", "      return true;", "  }", "}"])


def _refusal(table: OperatorTable, index: int, guards: tuple[Expr, ...]) -> str:
    read = _fact_printer(table.operator)
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


def _expected_fields(index: int, target: TargetTable) -> list[str]:
    """What the row of a target's table has of expected times."""
    if not target.expected:
        return ["nullptr", "0", "nullptr"]
    return [f"kExpected_{index}", str(len(target.expected)), f"terms_{index}"]


def _expected(operator: Operator, index: int, target: TargetTable, fact: Fact) -> str:
    """The expected times of a target's variants. `fact` prints a fact of the call `c`."""
    shared = _shared_terms(target.expected)
    parts = [_terms_of_table(index, target, shared, fact)]
    parts += [_of_variant(f"{index}_{i}", expectation, shared, fact) for i, expectation in enumerate(target.expected)]
    return "\n\n".join([*parts, _table(operator, index, target)])


def _shared_terms(expected: tuple[ExpectedTime, ...]) -> dict[int, int]:
    """The places of terms, by their numbers. These are terms that variants have in common and that some model needs."""
    needed: set[int] = set()
    for expectation in expected:
        for number in expectation.model.terms:
            if number < expectation.terms.shared:
                needed.add(number)
                term = expectation.terms.terms[number]
                needed.update(term.pair if term.kind == "product" else ())
    return {number: position for position, number in enumerate(sorted(needed))}


def _terms_of_table(index: int, target: TargetTable, shared: Mapping[int, int], fact: Fact) -> str:
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
    return "\n".join(
        [
            f"constexpr int64_t kWeights_{name}[] = {{{weights}}};",
            f"constexpr TimeTree kTrees_{name}[] = {{",
            *rows,
            "};",
            f"int64_t expected_{name}(const Call& c, const int64_t* s, int64_t limit) {{",
            "  (void)c;",
            "  (void)s;",
            f"  const int64_t terms[] = {{{', '.join(values)}}};",
            f"  return expected_time(terms, kWeights_{name}, INT64_C({model.base}), kTrees_{name}, limit);",
            "}",
        ]
    )


def _table(operator: Operator, index: int, target: TargetTable) -> str:
    kinds, names = _kinds(target), _names(operator)
    lines = [f"const ExpectedInfo<Own> kExpected_{index}[] = {{"]
    for number, expected in enumerate(target.expected):
        bits = sum(1 << place for place, name in enumerate(names) if name in expected.regimes)
        row = [kinds.index(expected.facts), hex(bits), expected.variant, str(expected.vendor).lower()]
        row += [expected.model.error, f"expected_{index}_{number}"]
        lines.append(f"    {braced(row)},")
    return "\n".join([*lines, "};"])


def _names(operator: Operator) -> list[str]:
    """The names of an operator's regimes, by number. Calls that meet the conditions of none are of the last."""
    return [*(name for name, _ in regimes_of(operator)), OTHER]


def _kinds(target: TargetTable) -> list[tuple[tuple[str, int], ...]]:
    """The kinds of calls of a target's table, by number."""
    return list(dict.fromkeys([*(c.facts for c in target.regimes), *(e.facts for e in target.expected)]))


def _regimes(operator: Operator, fact: Fact) -> str:
    lines = ["// The number of a call's regime.", "int regime_of(const Call& c) {", "  (void)c;"]
    for number, (_, conditions) in enumerate(regimes_of(operator)):
        tests = " && ".join(f"({condition.cpp(fact)}) != 0" for condition in conditions)
        lines.append(f"  if ({tests}) return {number};")
    return "\n".join([*lines, f"  return {len(regimes_of(operator))};", "}"])


def _regime_rows(operator: Operator, index: int, target: TargetTable, fact: Fact) -> str:
    """What is known of the calls of each kind and regime, and how those are decided that nobody measured."""
    kinds, names = _kinds(target), _names(operator)
    known = {(calls.facts, calls.regime): calls for calls in target.regimes}
    every = [known.get((kind, name), RegimeCalls(facts=kind, regime=name)) for kind in kinds for name in names]
    lines = [f"constexpr Span kSpans_{index}[] = {{"]
    lines += [f"    {', '.join(_span(operator, name, calls) for name in _own_facts(operator))}," for calls in every]
    lines += ["};", f"constexpr RegimeInfo kRegimes_{index}[] = {{"]
    for number, calls in enumerate(every):
        rule, judged = calls.rule, calls.rule.judged
        name = c_string(calls.regime if len(names) > 1 else "")
        row = [name, number // len(names), number % len(names), f"RegimeInfo::k{rule.by.capitalize()}", rule.caution]
        row += [len(judged.regret), round(1000 * judged.mean), round(1000 * judged.percentile(0.95))]
        lines.append(f"    {braced(row)},")
    lines += ["};", "// The row of a call's kind and regime, or -1.", f"int regime_{index}(const Call& c) {{"]
    for number, facts in enumerate(kinds):
        tests = " && ".join(f"{fact(name)} == {value}" for name, value in facts) or "true"
        lines.append(f"  if ({tests}) return {number * len(names)} + regime_of(c);")
    return "\n".join([*lines, "  return -1;", "}"])


_CHUNK = 96


def render_dispatch(spec: LibrarySpec, manifest: str) -> str:
    """The text of dispatch.cpp. The library embeds `manifest`."""
    families = sorted({f for table in spec.operators for f in table.families})
    chunks = [manifest[i : i + _CHUNK] for i in range(0, len(manifest), _CHUNK)]
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    traced = json.dumps({"library": spec.name, "prefix": spec.prefix, "build": digest})
    host = [v for table in spec.operators for v in table.variants if v.target.family == "cpu"]
    return render_template(
        "dispatch.cpp.j2",
        spec=spec,
        families=families,
        uses_tiles=any(v.target.level >= TILES_LEVEL for v in host),
        prototypes=_prototypes(spec),
        manifest="\n".join(f"    {c_string(chunk)}" for chunk in chunks) or '    ""',
        traced=c_string(traced[1:-1]),
        operators=[_operator(spec, table) for table in spec.operators],
        backends=[f"&backend_{f}" for f in families],
        loading=[
            f"preload<operator_{t.operator.name}::Own>"
            for t in spec.operators
            if any(family_facts(v.candidate.target).preloads for v in t.variants)
        ],
        facts=[f"&operator_{t.operator.name}::Own::kFacts" for t in spec.operators],
    )


def _operator(spec: LibrarySpec, table: OperatorTable) -> str:
    op = table.operator
    exec_, base = "const aot_tune_exec* exec", f"{spec.prefix}_{op.name}"
    arguments = (op.tensors, op.scalars, op.attributes)
    return render_template(
        "operator.cpp.j2",
        op=op,
        table=table,
        scope=f"operator_{op.name}",
        function=base,
        declared=", ".join(parameters(op)),
        arguments=braced([braced([argument.name for argument in group]) for group in arguments]),
        functions=[
            ("", exec_, "exec"),
            ("_workspace", "size_t* workspace_size", "workspace_size"),
            ("_explain", f"{exec_}, char* buffer, size_t size", "exec, buffer, size"),
            ("_is_tuned", "int32_t* tuned", "tuned"),
            ("_infer", "DLTensor* const* made, DLTensor* const* taken", "made, taken"),
        ],
        count=len(table.variants),
        variants=_variants(table),
        families=_families(table),
        bind=_bind(op),
        legal=_legal(op),
        refusals=_refusals(table),
        worthwhile=_worthwhile(table),
        decisions=_decisions(table),
        generics=sorted(i for family in table.families for i in table.generics(family)),
        most_expected=max([0, *(len(target.expected) for target in table.tables)]),
        most_terms=max([1, *(len(_shared_terms(target.expected)) for target in table.tables)]),
        tables=_tables(table),
        on_host=any(family_facts(f).on_host for f in table.families),
        tolerances=braced([_tolerance(op, tensor) for tensor in op.tensors]),
        rounding=2.0 ** -dtype(op.intermediates).fraction if op.intermediates else 0.0,
    )


def _tolerance(op: Operator, tensor: Tensor) -> str:
    """By how much an output may be off: as a factor of its rounding, and as a step of integers in a share of them."""
    stated = op.tolerance.get(tensor.name) if isinstance(op.tolerance, Mapping) else op.tolerance
    if isinstance(stated, OffBy):
        return braced([0, stated.most, stated.share])
    return braced([stated or 0, 0, 1])


def _tables(table: OperatorTable) -> str:
    """What decides for each target, the most specific first."""
    lines, rows = [], []
    for index, target in sorted(enumerate(table.tables), key=lambda pair: pair[1].specificity, reverse=True):
        known = [f"kSpans_{index}", f"kRegimes_{index}"] if target.regimes else ["nullptr", "nullptr"]
        row = [f"&backend_{family_of(target.target)}", target.level, target.last, target.processors]
        row += [f'{{"{target.target}", {", ".join(known)}}}']
        row.append(f"regime_{index}" if target.regimes else "nullptr")
        for name, variants in (("Used", target.used), ("Rest", target.rest), ("FillingIn", target.filling_in)):
            lines += [f"constexpr int16_t k{name}_{index}[] = {braced(variants)};"] if variants else []
            row.append(f"{{k{name}_{index}, {len(variants)}}}" if variants else "{nullptr, 0}")
        row += measured_fields(table.operator, index, target)
        row += _expected_fields(index, target)
        if alone := alone_rows(table.operator, target):
            lines.append(f"constexpr Alone kAlone_{index}[] = {braced([braced(pair) for pair in alone])};")
            row += [f"kAlone_{index}", len(alone)]
        rows.append(f"    {braced(row)},")
    return "\n".join([*lines, "const TableInfo<Own> Own::kTables[] = {", *(rows or ["    {},"]), "};"])


def _families(table: OperatorTable) -> str:
    """The families of devices that there are variants for, and what they are for, for people."""
    rows = []
    for family in table.families:
        dtypes = [
            " ".join(f"{v}={c[i]}" for (v, c), i in zip(table.operator.dtypes.items(), choices, strict=True))
            for choices in dict.fromkeys(table.choices(table.variants[i]) for i in table.generics(family))
        ]
        texts = (", ".join(table.targets(family)), " or ".join(dtypes))
        rows.append(f"    {braced([f'&backend_{family}', *map(c_string, texts)])},")
    return "\n".join(["const FamilyInfo kFamilies[] = {", *rows, "};"])


def _prototypes(spec: LibrarySpec) -> list[str]:
    lines: dict[str, str] = {}
    for table in spec.operators:
        declared = ", ".join(parameters(table.operator))
        for variant in table.variants:
            symbol = variant.symbol
            lines[symbol] = (
                f"int32_t {symbol}_workspace({declared}, size_t* workspace_size);\n"
                f"int32_t {symbol}_launch({declared}, void* workspace, size_t workspace_size, void* stream);"
            )
            if family_facts(variant.candidate.target).preloads:
                lines[symbol] += f"\nint32_t {symbol}_preload(void);"
            if variant.symbol in table.noting:
                lines[symbol] += f"\nint32_t {symbol}_note({declared}, char* buffer, size_t buffer_size);"
    return [lines[s] for s in sorted(lines)]


def _variants(table: OperatorTable) -> str:
    kinds = ["const DLTensor*"] * len(table.operator.tensors) + [scalar_type(s) for s in table.operator.scalars]
    kinds += ["int32_t"] * len(table.operator.attributes)
    lines = ["const VariantInfo kVariants[] = {", *(f"    {_info(v, table)}," for v in table.variants), "};", ""]
    lines.append(f"const Functions<{', '.join(kinds)}> kFunctions[] = {{")
    for v in table.variants:
        preload = f"{v.symbol}_preload" if family_facts(v.candidate.target).preloads else "nullptr"
        note = f"{v.symbol}_note" if v.symbol in table.noting else "nullptr"
        lines.append(f"    {{{v.symbol}_workspace, {v.symbol}_launch, {preload}, {note}}},")
    return "\n".join([*lines, "};"])


def _info(v: Variant, table: OperatorTable) -> str:
    info = ", ".join(c_string(text) for text in (v.name, v.candidate.target, v.candidate.kernel, v.made.digest))
    flags = [v.candidate.generic, v.symbol in table.settled, v.name in table.varying, v.name in table.uncaptured]
    while len(flags) > 2 and not flags[-1]:
        flags.pop()
    told = ", ".join(str(flag).lower() for flag in flags)
    return f"{{{info}, &backend_{v.target.family}, {v.target.level}, {v.target.last}, {told}}}"


def _bind(op: Operator) -> str:
    lines = [
        "int32_t Own::bind(Tensors t, const Scalar* s, int64_t* dims) {",
        "  (void)t;",
        "  (void)s;",
        "  (void)dims;",
    ]
    for name, source in bound_dims(op).items():
        lines += _bind_dim(op, name, source)
    return "\n".join([*lines, "  return AOT_TUNE_OK;", "}"])


def _bind_dim(op: Operator, name: str, bound: BoundDim) -> list[str]:
    """Lines of `bind` that set a dim, or return an error if there is no such extent."""
    to = f"dims[{op.dims.index(name)}]"
    if bound.scalar:
        place = [s.name for s in op.scalars].index(bound.scalar)
        return [
            f"  {to} = dim_of(kOperator.scalars[{place}], s[{place}]);",
            f'  if ({to} < 0) return no_dim(kOperator, "{bound.scalar}", {to}, "{name}");',
        ]
    tensor = [t.name for t in op.tensors].index(bound.tensor)
    read = f"t[{tensor}]->shape[{bound.axis}]"
    if bound.plain:
        return [f"  {to} = {read};"]

    def dim(fact: str) -> str:
        return read if fact == EXTENT else f"dims[{op.dims.index(fact)}]"

    back = checked_cpp(op.tensor(bound.tensor).shape[bound.axis], dim)
    return [
        "  {",
        "    bool undefined_ = false;",
        f"    {to} = {checked_cpp(bound.value, dim)};",
        f"    if (undefined_ || {to} < 0 || {back} != {read} || undefined_)",
        f'      return unsolved(kOperator, {tensor}, {bound.axis}, {read}, "{name}");',
        "  }",
    ]


def _own_facts(op: Operator) -> tuple[str, ...]:
    """The facts of an operator's calls but those of tensors, in the runtime's order, named as in decisions."""
    return (*op.dims, *(f"dtype.{v}" for v in op.dtypes), *(f"attribute.{a.name}" for a in op.attributes))


def _legal(op: Operator) -> str:
    """The function that checks what every call must meet."""
    fact = _fact_printer(op)
    lines = ["int32_t Own::check_legal(const Call& c) {", "  (void)c;"]
    lines += [] if all(map(is_plain, op.legal)) else ["  bool undefined_;"]
    for condition in op.legal:
        if is_plain(condition):
            lines.append(f"  if (!{condition.cpp(fact)})")
        else:
            lines.append("  undefined_ = false;")
            lines.append(f"  if (!{checked_cpp(condition, fact)} || undefined_)")
        facts = ", ".join(_found(op, name) for name in sorted(condition.facts()))
        arguments = f"AOT_TUNE_ERROR_{_code(condition)}, {c_string(condition.key())}, {c_string(_hint(condition))}"
        lines.append(f"    return not_legal(kOperator, {arguments}, {{{facts}}});")
    return "\n".join([*lines, "  return AOT_TUNE_OK;", "}"])


def _found(op: Operator, fact: str) -> str:
    """The initialiser of a fact for an error: a number, or the name of a choice."""
    kind, _, rest = fact.partition(".")
    text = f"kChoices_{rest}[{_fact_printer(op)(fact)}]" if kind in ("attribute", "dtype") else "nullptr"
    return f"{{{c_string(fact)}, {_fact_printer(op)(fact)}, {text}}}"


def _code(condition: Expr) -> str:
    """The status that fits best: layout, dtype, extent, attribute, or something that must or must not be passed."""
    kinds = {fact.partition(".")[0] if "." in fact else "" for fact in condition.facts()}
    if kinds & {"stride", "alignment"}:
        return "LAYOUT"
    if "dtype" in kinds:
        return "DTYPE"
    if "" in kinds or not kinds:
        return "SHAPE"
    return "ATTRIBUTE" if "attribute" in kinds else "NULL"


def _hint(condition: Expr) -> str:
    facts = condition.facts()
    if any(fact.startswith("stride.") for fact in facts):
        return "pass a contiguous copy of the tensor"
    return "pass a copy of the tensor that is aligned so" if any(f.startswith("alignment.") for f in facts) else ""


def _span(op: Operator, fact: str, seen: RegimeCalls) -> str:
    """The values that a fact had in what was seen, or all its possible values if the fact does not matter."""
    kind, _, name = fact.partition(".")
    if not name:
        low, high = seen.dims.get(fact, (1, 0))
    elif fact in dict(seen.facts):
        low = high = dict(seen.facts)[fact]
    else:
        choices = op.dtypes[name] if kind == "dtype" else op.choices[name]
        low, high = 0, len(choices) - 1
    return f"{{{low}, {high}}}"
