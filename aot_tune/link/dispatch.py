"""Generated dispatch code: each operator's tables, facts and checks of its calls, its decisions, its C functions.

What is the same for all operators is C++ in `cpp/`. Here are the parts that depend on an operator's tables.
"""

from __future__ import annotations

import hashlib
import json

from aot_tune.compile import Variant
from aot_tune.expr.integers import EXTENT, checked_cpp, is_plain
from aot_tune.link.decision import expected_fields, fact_printer, render_decisions, render_refusals, shared_terms
from aot_tune.link.library_records import LibrarySpec, OperatorTable, SeenCalls, TargetTable, family_facts, family_of
from aot_tune.link.measured_problems import measured_fields
from aot_tune.link.signature import braced, c_string, render_template
from aot_tune.render.template_functions import parameters, scalar_type
from aot_tune.spec import Expr, Operator
from aot_tune.spec.calls import BoundDim, bound_dims
from aot_tune.spec.targets import TILES_LEVEL
from aot_tune.support.errors import ManifestError

__all__ = ["render_dispatch"]

_LOCALS = frozenset(("buffer", "size", "tuned", "made", "taken"))
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
        loading=[f"preload<operator_{t.operator.name}::Own>" for t in spec.operators if _loads(t)],
        facts=[f"&operator_{t.operator.name}::Own::kFacts" for t in spec.operators],
    )


def _operator(spec: LibrarySpec, table: OperatorTable) -> str:
    op = table.operator
    for name in op.arguments:
        if name in _LOCALS:
            raise ManifestError(f"operator {op.name!r}: the argument {name!r} has a reserved name", fix="rename it")
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
        refusals=render_refusals(table),
        decisions=render_decisions(table),
        generics=sorted(i for family in table.families for i in table.generics(family)),
        most_expected=max([1, *(len(target.expected) for target in table.tables)]),
        most_terms=max([1, *(len(shared_terms(target.expected)) for target in table.tables)]),
        tables=_tables(table),
        on_host=any(family_facts(f).on_host for f in table.families),
    )


def _loads(table: OperatorTable) -> bool:
    return any(family_facts(v.candidate.target).preloads for v in table.variants)


def _tables(table: OperatorTable) -> str:
    """What decides for each target, the most specific first."""
    lines, rows = [], []
    for index, target in sorted(enumerate(table.tables), key=lambda pair: pair[1].specificity, reverse=True):
        lines += [_spans(table.operator, index, target)] if target.seen else []
        spans = f"kSpans_{index}" if target.seen else "nullptr"
        row = [f"&backend_{family_of(target.target)}", target.level, target.last, target.processors]
        row.append(f'{{"{target.target}", {spans}, {len(target.seen)}, {str(bool(target.expected)).lower()}}}')
        for name, variants in (("Used", target.used), ("Rest", target.rest), ("FillingIn", target.filling_in)):
            lines += [f"constexpr int16_t k{name}_{index}[] = {braced(variants)};"] if variants else []
            row.append(f"{{k{name}_{index}, {len(variants)}}}" if variants else "{nullptr, 0}")
        row += measured_fields(table.operator, index, target)
        row += expected_fields(index, target)
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
    flags = ", ".join(str(flag).lower() for flag in (v.candidate.generic, v.symbol in table.settled))
    return f"{{{info}, &backend_{v.target.family}, {v.target.level}, {v.target.last}, {flags}}}"


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
    """The facts of an operator's calls, without those of tensors, in the runtime's order.

    The names are those of decisions.
    """
    return (*op.dims, *(f"dtype.{v}" for v in op.dtypes), *(f"attribute.{a.name}" for a in op.attributes))


def _legal(op: Operator) -> str:
    """The function that checks what every call must meet."""
    fact = fact_printer(op)
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
    text = f"kChoices_{rest}[{fact_printer(op)(fact)}]" if kind in ("attribute", "dtype") else "nullptr"
    return f"{{{c_string(fact)}, {fact_printer(op)(fact)}, {text}}}"


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


def _spans(op: Operator, index: int, target: TargetTable) -> str:
    rows = (f"    {', '.join(_span(op, fact, seen) for fact in _own_facts(op))}," for seen in target.seen)
    return "\n".join([f"constexpr Span kSpans_{index}[] = {{", *rows, "};"])


def _span(op: Operator, fact: str, seen: SeenCalls) -> str:
    """The values that a fact had in what was seen, or all its possible values if the fact does not matter."""
    kind, _, name = fact.partition(".")
    if not name:
        low, high = seen.dims[fact]
    elif fact in dict(seen.facts):
        low = high = dict(seen.facts)[fact]
    else:
        choices = op.dtypes[name] if kind == "dtype" else op.choices[name]
        low, high = 0, len(choices) - 1
    return f"{{{low}, {high}}}"
