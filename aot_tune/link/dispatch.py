"""Generated dispatch code: each operator's tables, facts and checks of its calls, its decisions, its C functions.

What is the same for all operators is C++ in `cpp/`. Here are the parts that depend on an operator's tables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from aot_tune.compile import Variant
from aot_tune.expr.integers import EXTENT, checked_cpp, is_plain
from aot_tune.link.decision import fact_printer, render_decisions, render_generic_of, render_refusals
from aot_tune.link.library_records import LibrarySpec, OperatorTable, SeenCalls, TargetTable, family_facts
from aot_tune.link.measured_problems import number_of, render_measured
from aot_tune.link.signature import braced, c_string, prepared, render_template
from aot_tune.render.template_functions import parameters, scalar_type
from aot_tune.spec import Expr, Operator, Tensor
from aot_tune.spec.calls import BoundDim, bound_dims, dims_beside_inputs
from aot_tune.spec.targets import TILES_LEVEL
from aot_tune.support.errors import ManifestError

__all__ = ["render_dispatch"]

_LOCALS = frozenset(
    (
        *("buffer", "size", "tuned", "c_", "data_", "given_", "plain_", "dtypes_", "call_", "text_", "status_"),
        *("entered_", "known_", "calls_", "number_", "options_", "traced_"),
    )
)
_CHUNK = 96
_ENTER = """\
  Entered entered_;
  status_ = entered_.enter(*call_.backend, call_.device().device_id);
  if (status_ != AOT_TUNE_OK) return status_;
"""


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
        loading=[f"operator_{t.operator.name}::preload" for t in spec.operators if _loads(t)],
        facts=[f"&operator_{t.operator.name}::kFacts" for t in spec.operators],
    )


def _operator(spec: LibrarySpec, table: OperatorTable) -> str:
    op, bound, beside = table.operator, bound_dims(table.operator), dims_beside_inputs(table.operator)
    for name in op.arguments:
        if name in _LOCALS:
            raise ManifestError(f"operator {op.name!r}: the argument {name!r} has a reserved name", fix="rename it")
    options = [s.name for s in op.scalars] + [a.name for a in op.attributes]
    again = [_or_null(t, f"&known_->tensors[{i}].tensor") for i, t in enumerate(op.tensors)]
    families = [family_facts(f) for f in table.families]
    return render_template(
        "operator.cpp.j2",
        op=op,
        table=table,
        or_null=_or_null,
        prepared=lambda call: prepared(op, call),
        no_place=lambda question, where: (
            f'return fail(AOT_TUNE_ERROR_NULL, "{op.name}: {question} has nowhere to write to: {where} is NULL");'
        ),
        scope=f"operator_{op.name}",
        head=f'extern "C" AOT_TUNE_PUBLIC int32_t {spec.prefix}_{op.name}',
        declared=", ".join(parameters(op)),
        passed=", ".join(op.arguments),
        tensors=[t.name for t in op.tensors],
        call_tensors=[f"c.t_{t.name}" for t in op.tensors],
        dim_names=[f'"{d}"' for d in op.dims],
        options=options,
        option_bits=[f"aot_tune::bits_of({name})" for name in options],
        again=", ".join([*again, *options]),
        count=len(table.variants),
        tables=_tables(table),
        members=_members(op),
        first_tensor=next(t.name for t in op.tensors if not t.optional),
        legal=_legal(op),
        read=_read(table),
        facts=_facts(table),
        refusals=render_refusals(table),
        generic=[str(v.candidate.generic).lower() for v in table.variants],
        fills_in=any(t.filling_in for t in table.tables),
        measured=render_measured(table),
        decisions=render_decisions(table),
        generic_of=render_generic_of(table),
        by_specificity=sorted(enumerate(table.tables), key=lambda pair: pair[1].specificity, reverse=True),
        tuned=[i for i, target in enumerate(table.tables) if target.tuned or target.surveyed],
        notes=any(v.symbol in table.noting for v in table.variants),
        loads=_loads(table),
        wanted_generics=[line for f in table.families if family_facts(f).preloads for line in _wanted(table, f)],
        wanted_tables=[(i, t.used) for i, t in enumerate(table.tables) if family_facts(t.target).preloads and t.used],
        settled=[str(v.symbol in table.settled).lower() for v in table.variants],
        unnumbered=_unnumbered(op, bound),
        bound_tensors=[(name, op.tensor(name).rank) for name in _bound_tensors(bound)],
        number=number_of(
            [
                *(b.scalar or f"{b.tensor}->shape[{b.axis}]" for b in bound.values()),
                *(f"aot_tune::place_of(*{name})" for name in _bound_tensors(bound)),
                *(a.name for a in op.attributes),
                *(f"({t.name} != nullptr)" for t in op.tensors if t.optional),
            ]
        ),
        seen=_seen(table),
        bounded=any(map(table.bounded, table.families)),
        table_targets=[c_string(t.target) for t in table.tables],
        processors=[t.processors for t in table.tables] if any(t.processors for t in table.tables) else [],
        or_zero=f", or a dim is 0 ({', '.join(beside)})" if beside else "",
        enter="" if all(f.on_host for f in families) else _ENTER,
        threads="  const aot_tune::CallThreads threads_;\n" if any(f.on_host for f in families) else "",
    )


def _or_null(tensor: Tensor, view: str) -> str:
    """A tensor of a call, or null if it was left out."""
    return f"{tensor.name} ? {view} : nullptr" if tensor.optional else view


def _loads(table: OperatorTable) -> bool:
    return any(family_facts(v.candidate.target).preloads for v in table.variants)


def _members(op: Operator) -> list[str]:
    members = [f"const DLTensor* t_{t.name}" for t in op.tensors]
    members += [f"int64_t d_{d}" for d in op.dims] + [f"int32_t y_{v}" for v in op.dtypes]
    return (
        members + [f"{scalar_type(s)} v_{s.name}" for s in op.scalars] + [f"int32_t v_{a.name}" for a in op.attributes]
    )


def _bound_tensors(bound: Mapping[str, BoundDim]) -> list[str]:
    """Tensors that dims are learned from."""
    return list(dict.fromkeys(b.tensor for b in bound.values() if b.tensor))


def _unnumbered(op: Operator, bound: Mapping[str, BoundDim]) -> list[str]:
    """Arguments that are no part of a call's number."""
    named = {*_bound_tensors(bound), *(t.name for t in op.tensors if t.optional), *(a.name for a in op.attributes)}
    return [name for name in op.arguments if name not in named | {b.scalar for b in bound.values()}]


def _seen(table: OperatorTable) -> str:
    """The calls whose times are known, for `warn`."""
    lines = [_spans(table.operator, index, target) for index, target in enumerate(table.tables) if target.seen]
    rows = [_row(index, target) for index, target in enumerate(table.tables)]
    return "\n".join([*lines, f"constexpr Seen kSeen[] = {braced(rows)};"] if rows else lines)


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


def _tables(table: OperatorTable) -> str:
    backends = ", ".join(f"&backend_{f}" for f in table.families)
    return "\n".join([f"const Backend* const kBackends[] = {{{backends}}};", "", *_variants(table)])


def _variants(table: OperatorTable) -> list[str]:
    declared = ", ".join(parameters(table.operator))
    preloads = any(family_facts(v.candidate.target).preloads for v in table.variants)
    notes = any(v.symbol in table.noting for v in table.variants)
    lines = [
        "const VariantInfo kInfo[] = {",
        *(f"    {_info(v)}," for v in table.variants),
        "};",
        "",
        "struct Functions {",
        f"  int32_t (*workspace)({declared}, size_t*);",
        f"  int32_t (*launch)({declared}, void*, size_t, void*);",
        *(["  int32_t (*preload)();"] if preloads else []),
        *([f"  int32_t (*note)({declared}, char*, size_t);"] if notes else []),
        "};",
        "const Functions kFunctions[] = {",
    ]
    for v in table.variants:
        functions = [f"{v.symbol}_workspace", f"{v.symbol}_launch"]
        if preloads:
            functions.append(f"{v.symbol}_preload" if family_facts(v.candidate.target).preloads else "nullptr")
        if notes:
            functions.append(f"{v.symbol}_note" if v.symbol in table.noting else "nullptr")
        lines.append(f"    {{{', '.join(functions)}}},")
    lines.append("};")
    if preloads:
        lines.append(f"std::atomic<uint64_t> loaded[{len(table.variants)}];  // a bit per device")
    return lines


def _info(v: Variant) -> str:
    info = ", ".join(c_string(text) for text in (v.name, v.candidate.target, v.candidate.kernel, v.made.digest))
    return f"{{{info}, &backend_{v.target.family}, {v.target.level}, {v.target.last}}}"


def _read(table: OperatorTable) -> str:
    op = table.operator
    index = {t.name: i for i, t in enumerate(op.tensors)}
    lines = [
        "int generic_of(const Call& c);",
        "",
        "// Checks a call and fills it in; `data_` is false where no memory is touched.",
        f"int32_t read(Call& c_, bool data_, {', '.join(parameters(op))}) {{",
        f"  const DLTensor* const given_[] = {{{', '.join(t.name for t in op.tensors)}}};",
    ]
    if op.dtypes:
        lines.append(f"  int32_t dtypes_[{len(op.dtypes)}];")
    passed = "dtypes_" if op.dtypes else "nullptr"
    lines += [
        f"  const bool plain_ = read_plainly<kOperator>(given_, c_.view, {passed});",
        "  if (!plain_) {",
        f"    if (int32_t status = read_tensors(kOperator, given_, c_.view, {passed})) return status;",
        "  }",
    ]
    lines += [f"  c_.y_{v} = dtypes_[{i}];" for i, v in enumerate(op.dtypes)]
    bound = bound_dims(op)
    for name, source in bound.items():
        lines += _read_dim(op, name, source)
    read = {(source.tensor, source.axis) for source in bound.values() if source.plain}
    for tensor in op.tensors:
        for axis, extent in enumerate(tensor.shape):
            if (tensor.name, axis) not in read:
                lines += _extent_check(tensor.name, index[tensor.name], axis, extent, tensor.optional)
    lines += _check_scalars(op, bound)
    for i, attribute in enumerate(op.attributes):
        lines += [
            f"  if ({attribute.name} < 0 || {attribute.name} >= {len(attribute.choices)})",
            f"    return wrong_attribute(kOperator, kAttributes[{i}], {attribute.name});",
        ]
    beside = [f"c_.d_{name} == 0" for name in dims_beside_inputs(op)]
    outputs = " && ".join(_is_empty(t.name, index[t.name], t.optional, "true") for t in op.tensors if t.written)
    empty = [_is_empty(t.name, index[t.name], t.optional, "false") for t in op.tensors if not t.output]
    inputs = " || ".join([*empty, *beside])
    lines += [
        f"  c_.empty = {outputs};",
        f"  c_.hollow = !c_.empty && ({inputs or 'false'});",
        "  c_.plain = data_ && plain_ && has_plain_memory<kOperator>(given_, c_.view);",
        "  if (data_ && !c_.empty && !c_.plain) {",
        "    if (int32_t status = check_memory(kOperator, given_, c_.view)) return status;",
        "  }",
    ]
    for i, tensor in enumerate(op.tensors):
        view = f"&c_.view[{i}].tensor"
        lines.append(f"  c_.t_{tensor.name} = {f'{tensor.name} ? {view} : nullptr' if tensor.optional else view};")
    lines += [f"  c_.v_{s.name} = {s.name};" for s in op.scalars]
    lines += [f"  c_.v_{a.name} = {a.name};" for a in op.attributes]
    if op.legal:
        lines.append("  if (int32_t status = check_legal(c_)) return status;")
    return "\n".join([*lines, *_read_device(table), "}"])


def _read_device(table: OperatorTable) -> list[str]:
    """The end of `read`: the call's backend, and the variant that can always answer the call."""
    op = table.operator
    count = len(table.families)
    lines = [
        f"  if (int32_t status = find_backend(kOperator, kBackends, {count}, c_.device(), &c_.backend, &c_.level))",
        "    return status;",
        "  c_.generic = generic_of(c_);",
    ]
    for family in table.families:
        if table.bounded(family):
            lines += _other_architecture(table, family)
    for family in table.families if op.dtypes else ():
        every = (
            " ".join(f"{v}={c[i]}" for (v, c), i in zip(op.dtypes.items(), table.choices(variant), strict=True))
            for variant in (table.variants[i] for i in table.generics(family))
        )
        served = " or ".join(dict.fromkeys(every))
        if_backend = f" && c_.backend == &backend_{family}" if count > 1 else ""
        lines.append(f"  if (c_.generic < 0{if_backend})")
        lines.append(f"    return no_kernels(kOperator, c_.device(), dtypes_, {c_string(served)});")
    for family in table.families:
        if not table.bounded(family) and any(table.variants[i].target.level > 1 for i in table.generics(family)):
            if_backend = f"c_.backend == &backend_{family} && " if count > 1 else ""
            targets = c_string(", ".join(table.targets(family)))
            lines.append(f"  if ({if_backend}c_.level < kInfo[c_.generic].level)")
            lines.append(f"    return too_old(kOperator, c_.device(), c_.level, kInfo[c_.generic], {targets});")
    return [*lines, "  return AOT_TUNE_OK;"]


def _other_architecture(table: OperatorTable, family: str) -> list[str]:
    """The error for a device for which the family has no generic variant, whatever the dtypes."""
    first = {table.variants[i].target.level: i for i in reversed(table.generics(family))}
    runs = " && ".join(f"!runs_on(kInfo[{i}], c_.level)" for i in sorted(first.values()))
    if_backend = f"c_.backend == &backend_{family} && " if len(table.families) > 1 else ""
    targets = c_string(", ".join(table.targets(family)))
    return [
        f"  if ({if_backend}{runs})",
        f"    return too_old(kOperator, c_.device(), c_.level, kInfo[{min(first.values())}], {targets});",
    ]


def _is_empty(tensor: str, index: int, optional: bool, absent: str) -> str:
    empty = f"c_.view[{index}].empty"
    if not optional:
        return empty
    return f"({tensor} == nullptr || {empty})" if absent == "true" else f"({tensor} != nullptr && {empty})"


def _extent_check(tensor: str, index: int, axis: int, extent: Expr, optional: bool) -> list[str]:
    wanted = checked_cpp(extent, lambda fact: f"c_.d_{fact}")
    if_passed = f"{tensor} != nullptr && " if optional else ""
    got = f"{tensor}->shape[{axis}]"
    if not is_plain(extent):
        return [
            f"  if ({tensor} != nullptr) {{" if optional else "  {",
            "    bool undefined_ = false;",
            f"    const int64_t wanted_ = {wanted};",
            f"    if (undefined_) return no_extent(kOperator, {index}, {axis}, {c_string(extent.key())});",
            f"    if ({got} != wanted_)",
            f"      return wrong_extent(kOperator, {index}, {axis}, {got}, wanted_, {c_string(extent.key())});",
            "  }",
        ]
    return [
        f"  if ({if_passed}{got} != {wanted})",
        f"    return wrong_extent(kOperator, {index}, {axis}, {got}, {wanted}, {c_string(extent.key())});",
    ]


def _read_dim(op: Operator, name: str, bound: BoundDim) -> list[str]:
    """Lines of `read` that set a dim of the call `c_`, or return an error if there is no such extent."""
    if bound.scalar:
        return [
            f"  c_.d_{name} = static_cast<int64_t>({bound.scalar});",
            f'  if (c_.d_{name} < 0) return no_dim(kOperator, "{bound.scalar}", c_.d_{name}, "{name}");',
        ]
    read = f"{bound.tensor}->shape[{bound.axis}]"
    if bound.plain:
        return [f"  c_.d_{name} = {read};"]
    index = [t.name for t in op.tensors].index(bound.tensor)
    symbol = c_string(op.tensor(bound.tensor).shape[bound.axis].key())
    value = checked_cpp(bound.value, lambda fact: read if fact == EXTENT else f"c_.d_{fact}")
    back = checked_cpp(op.tensor(bound.tensor).shape[bound.axis], lambda fact: f"c_.d_{fact}")
    return [
        "  {",
        "    bool undefined_ = false;",
        f"    c_.d_{name} = {value};",
        f"    if (undefined_ || c_.d_{name} < 0 || {back} != {read} || undefined_)",
        f'      return unsolved(kOperator, {index}, {bound.axis}, {read}, {symbol}, "{name}");',
        "  }",
    ]


def _check_scalars(op: Operator, bound: Mapping[str, BoundDim]) -> list[str]:
    """Lines of `read` that compare integers with the dims that they bind, if a tensor has already set these dims."""
    lines = []
    for scalar in (s for s in op.scalars if s.binds and bound[s.binds].scalar != s.name):
        passed, dim = f"static_cast<int64_t>({scalar.name})", f"c_.d_{scalar.binds}"
        arguments = f'"{scalar.name}", {passed}, "{scalar.binds}", {dim}'
        lines += [f"  if ({passed} != {dim}) return other_dim(kOperator, {arguments});"]
    return lines


def _own_facts(op: Operator) -> tuple[str, ...]:
    """The facts of an operator's calls, without those of tensors, in the runtime's order.

    The names are those of decisions.
    """
    return (*op.dims, *(f"dtype.{v}" for v in op.dtypes), *(f"attribute.{a.name}" for a in op.attributes))


def _facts(table: OperatorTable) -> str:
    """`kFacts`, and `read_facts`, which reads the facts of a call."""
    op = table.operator
    values = [f"c.d_{d}" for d in op.dims] + [f"c.y_{v}" for v in op.dtypes] + [f"c.v_{a.name}" for a in op.attributes]
    values += [f"c.t_{t.name} != nullptr" if t.optional else "1" for t in op.tensors]
    return "\n".join(
        [
            f"constexpr FactsInfo kFacts = {{&kOperator, kInfo, {len(table.variants)}}};",
            "",
            "void read_facts(const Call& c, int64_t* facts) {",
            f"  const int64_t values[] = {{{', '.join(values)}}};",
            "  std::memcpy(facts, values, sizeof values);",
            "}",
        ]
    )


def _legal(op: Operator) -> str:
    """The function that checks what every call must meet. Empty if there are no such conditions."""
    if not op.legal:
        return ""
    fact = fact_printer(op)
    lines = ["int32_t check_legal(const Call& c) {"]
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
    text = "nullptr"
    if kind == "attribute":
        text = f"kChoices_{rest}[c.v_{rest}]"
    elif kind == "dtype":
        text = f"kChoices_{rest}[c.y_{rest}]"
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


def _row(index: int, target: TargetTable) -> str:
    spans = f"kSpans_{index}" if target.seen else "nullptr"
    return f'{{"{target.target}", {spans}, {len(target.seen)}, {str(bool(target.expected)).lower()}}}'


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


def _wanted(table: OperatorTable, family: str) -> list[str]:
    """Marks the generic variants that a device of a family runs, or fails if there are none."""
    generics = table.generics(family)
    targets = c_string(", ".join(table.targets(family)))
    fail = f"      return too_old(kOperator, device, level, kInfo[{generics[0]}], {targets});"
    if table.bounded(family) or len({table.variants[i].target.level for i in generics}) > 1:
        marks = [f"    wanted[{i}] = runs_on(kInfo[{i}], level);" for i in generics]
        body = [*marks, f"    if ({' && '.join(f'!wanted[{i}]' for i in generics)})", fail]
    else:
        marks = [f"   {''.join(f' wanted[{i}] =' for i in generics)} true;"]
        body = [f"    if (level < kInfo[{generics[0]}].level)", fail, *marks]
    return [
        f"  if (&backend == &backend_{family}) {{",
        "    const DLDevice device = {static_cast<DLDeviceType>(backend.device_type), device_id};",
        *body,
        "  }",
    ]
