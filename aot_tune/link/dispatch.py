"""Generated dispatch code: each operator's tables, facts and checks of its calls, its decisions, its C functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from aot_tune.compile import Variant
from aot_tune.expr.integers import EXTENT, checked, is_plain
from aot_tune.link.c_functions import render_explain, render_functions, render_known, render_preload, render_serve
from aot_tune.link.decision import fact_printer, render_choice
from aot_tune.link.library_records import LibrarySpec, OperatorTable, SeenCalls, TargetTable, family_facts
from aot_tune.link.measured_problems import render_is_tuned, render_nearest
from aot_tune.link.signature import (
    arguments,
    c_string,
    dtype_text,
    first_tensor,
    in_place_flags,
    parameters,
    scalar_type,
    shape_text,
)
from aot_tune.spec import Expr, Operator
from aot_tune.spec.calls import BoundDim, bound_dims, dims_beside_inputs
from aot_tune.spec.dtypes import dtype
from aot_tune.spec.targets import TILES_LEVEL
from aot_tune.support.errors import ManifestError

__all__ = [
    "own_facts",
    "render_dispatch",
    "render_facts",
    "render_legal",
    "render_library_info",
    "render_trace",
    "render_traced_library",
    "render_unseen",
]

_LOCALS = frozenset(
    (
        *("buffer", "size", "tuned", "c_", "data_", "given_", "plain_", "dtypes_", "call_", "text_", "status_"),
        *("entered_", "known_", "calls_", "number_", "options_", "traced_"),
    )
)
_CHUNK = 96


def render_dispatch(spec: LibrarySpec, manifest: str) -> str:
    """The text of dispatch.cpp. The library embeds `manifest`."""
    families = sorted({f for table in spec.operators for f in table.families})
    backends = "\n".join(f"extern const Backend backend_{f};" for f in families)
    symbols = "\n".join(_prototypes(spec))
    chunks = [manifest[i : i + _CHUNK] for i in range(0, len(manifest), _CHUNK)]
    text = "\n".join(f"    {c_string(chunk)}" for chunk in chunks) or '    ""'
    operators = "\n".join(_operator(spec, table) for table in spec.operators)
    host = [v for table in spec.operators for v in table.variants if v.target.family == "cpu"]
    tiles = "\nextern const bool uses_tiles = true;" if any(v.target.level >= TILES_LEVEL for v in host) else ""
    return f"""\
// Dispatch of lib{spec.library}.so. Written by aot_tune.
#include "{spec.header}"
#include "choice.h"
#include "cpu_threads.h"
#include "expected.h"
#include "known.h"
#include "plain.h"
#include "runtime.h"
#include "trace.h"
#include "warn.h"

#define AOT_TUNE_PUBLIC __attribute__((visibility("default")))

namespace aot_tune {{
{backends}{tiles}
}}  // namespace aot_tune

extern "C" {{
{symbols}
}}

namespace {{

using namespace aot_tune;

constexpr char kManifest[] =
{text};

{render_traced_library(spec, manifest)}

}}  // namespace

extern "C" AOT_TUNE_PUBLIC const char* {spec.prefix}_last_error(void) {{ return last_error(); }}

extern "C" AOT_TUNE_PUBLIC const char* {spec.prefix}_manifest(void) {{ return kManifest; }}

extern "C" AOT_TUNE_PUBLIC int32_t {spec.prefix}_set_num_threads(int32_t threads) {{ return set_num_threads(threads); }}

extern "C" AOT_TUNE_PUBLIC int32_t {spec.prefix}_get_num_threads(void) {{ return get_num_threads(); }}
{operators}
{render_preload(spec, families)}
{render_library_info(spec)}"""


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


def _operator(spec: LibrarySpec, table: OperatorTable) -> str:
    op = table.operator
    for name in arguments(op):
        if name in _LOCALS:
            raise ManifestError(f"operator {op.name!r}: the argument {name!r} has a reserved name", fix="rename it")
    return f"""
// ---- {op.name} ----

namespace {{
namespace operator_{op.name} {{

{_tables(table)}

{_call(op)}

{render_legal(op)}{_read(table)}

{render_facts(table)}

{render_choice(table)}

{render_is_tuned(table)}

{render_nearest(table)}

{render_serve(table)}

{render_known(table, bound_dims(table.operator))}

{render_trace(op)}

{render_unseen(table)}

{render_explain(table)}

}}  // namespace operator_{op.name}
}}  // namespace
{render_functions(spec, table)}"""


def _tables(table: OperatorTable) -> str:
    op = table.operator
    lines = []
    variables = list(op.dtypes)
    for variable, choices in op.dtypes.items():
        rows = ", ".join(f'{{"{d.name}", {d.code}, {d.bits}}}' for d in map(dtype, choices))
        lines.append(f"constexpr DTypeInfo kDTypes_{variable}[] = {{{rows}}};")
    if variables:
        rows = ", ".join(f'{{"{v}", kDTypes_{v}, {len(c)}}}' for v, c in op.dtypes.items())
        lines.append(f"constexpr VariableInfo kVariables[] = {{{rows}}};")
    lines.append("constexpr TensorInfo kTensors[] = {")
    for tensor in op.tensors:
        index = variables.index(tensor.dtype_name) if tensor.dtype_name in op.dtypes else -1
        d = dtype(op.dtypes.get(tensor.dtype_name, (tensor.dtype_name,))[0])
        flags = f"{str(tensor.written).lower()}, {str(tensor.optional).lower()}, {index}{in_place_flags(op, tensor)}"
        texts = f"{c_string(shape_text(op, tensor.name))}, {c_string(dtype_text(op, tensor))}"
        lines.append(f'    {{"{tensor.name}", {texts}, {d.code}, {d.bits}, {tensor.rank}, {flags}}},')
    variables_text = f"kVariables, {len(variables)}" if variables else "nullptr, 0"
    operator = f'{{"{op.name}", kTensors, {len(op.tensors)}, {variables_text}}}'
    lines += ["};", f"constexpr OperatorInfo kOperator = {operator};"]
    for attribute in op.attributes:
        names = ", ".join(c_string(c) for c in attribute.choices)
        lines.append(f"constexpr const char* kChoices_{attribute.name}[] = {{{names}}};")
        lines.append(
            f'constexpr AttributeInfo kAttribute_{attribute.name} = {{"{attribute.name}", kChoices_{attribute.name}, '
            f"{len(attribute.choices)}}};"
        )
    backends = ", ".join(f"&backend_{f}" for f in table.families)
    lines.append(f"const Backend* const kBackends[] = {{{backends}}};")
    return "\n".join([*lines, "", *_variants(table)])


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


def _call(op: Operator) -> str:
    return f"""\
struct Call {{
  View view[{len(op.tensors)}];
  const Backend* backend;
  int32_t level;
  int generic;  // the variant that answers when no other does
  bool empty;   // no output has an element
  bool hollow;  // some output has elements, but not every input
  bool plain;   // nothing is unusual about tensors and memory
{_members(op)}
  const DLDevice& device() const {{ return t_{op.tensors[first_tensor(op)].name}->device; }}
  static const VariantInfo& info(int variant) {{ return kInfo[variant]; }}
  // What a variant says of the call, for people.
  void note(int variant, char* buffer, size_t size) const;
}};"""


def _members(op: Operator) -> str:
    lines = [f"  const DLTensor* t_{t.name};" for t in op.tensors]
    lines += [f"  int64_t d_{d};" for d in op.dims]
    lines += [f"  int32_t y_{v};" for v in op.dtypes]
    lines += [f"  {scalar_type(s)} v_{s.name};" for s in op.scalars]
    lines += [f"  int32_t v_{a.name};" for a in op.attributes]
    return "\n".join(lines)


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
    for name, one in bound.items():
        lines += _read_dim(op, name, one)
    read = {(one.tensor, one.axis) for one in bound.values() if one.plain}
    for tensor in op.tensors:
        for axis, extent in enumerate(tensor.shape):
            if (tensor.name, axis) not in read:
                lines += _extent_check(tensor.name, index[tensor.name], axis, extent, tensor.optional)
    lines += _check_scalars(op, bound)
    for attribute in op.attributes:
        lines += [
            f"  if ({attribute.name} < 0 || {attribute.name} >= {len(attribute.choices)})",
            f"    return wrong_attribute(kOperator, kAttribute_{attribute.name}, {attribute.name});",
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
        here = f" && c_.backend == &backend_{family}" if count > 1 else ""
        lines.append(f"  if (c_.generic < 0{here})")
        lines.append(f"    return no_kernels(kOperator, c_.device(), dtypes_, {c_string(served)});")
    for family in table.families:
        if not table.bounded(family) and any(table.variants[i].target.level > 1 for i in table.generics(family)):
            here = f"c_.backend == &backend_{family} && " if count > 1 else ""
            targets = c_string(", ".join(table.targets(family)))
            lines.append(f"  if ({here}c_.level < kInfo[c_.generic].level)")
            lines.append(f"    return too_old(kOperator, c_.device(), c_.level, kInfo[c_.generic], {targets});")
    return [*lines, "  return AOT_TUNE_OK;"]


def _other_architecture(table: OperatorTable, family: str) -> list[str]:
    """The error for a device for which the family has no generic variant, whatever the dtypes."""
    first = {table.variants[i].target.level: i for i in reversed(table.generics(family))}
    runs = " && ".join(f"!runs_on(kInfo[{i}], c_.level)" for i in sorted(first.values()))
    here = f"c_.backend == &backend_{family} && " if len(table.families) > 1 else ""
    targets = c_string(", ".join(table.targets(family)))
    return [
        f"  if ({here}{runs})",
        f"    return too_old(kOperator, c_.device(), c_.level, kInfo[{min(first.values())}], {targets});",
    ]


def _is_empty(tensor: str, index: int, optional: bool, absent: str) -> str:
    empty = f"c_.view[{index}].empty"
    if not optional:
        return empty
    return f"({tensor} == nullptr || {empty})" if absent == "true" else f"({tensor} != nullptr && {empty})"


def _extent_check(tensor: str, index: int, axis: int, extent: Expr, optional: bool) -> list[str]:
    wanted = checked(extent, lambda fact: f"c_.d_{fact}")
    here = f"{tensor} != nullptr && " if optional else ""
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
        f"  if ({here}{got} != {wanted})",
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
    value = checked(bound.value, lambda fact: read if fact == EXTENT else f"c_.d_{fact}")
    back = checked(op.tensor(bound.tensor).shape[bound.axis], lambda fact: f"c_.d_{fact}")
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
        told = f'"{scalar.name}", {passed}, "{scalar.binds}", {dim}'
        lines += [f"  if ({passed} != {dim}) return other_dim(kOperator, {told});"]
    return lines


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


def render_legal(op: Operator) -> str:
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
            lines.append(f"  if (!{checked(condition, fact)} || undefined_)")
        found = ", ".join(_found(op, name) for name in sorted(condition.facts()))
        told = f"AOT_TUNE_ERROR_{_code(condition)}, {c_string(condition.key())}, {c_string(_hint(condition))}"
        lines.append(f"    return not_legal(kOperator, {told}, {{{found}}});")
    return "\n".join([*lines, "  return AOT_TUNE_OK;", "}", "", ""])


def _found(op: Operator, fact: str) -> str:
    """The initialiser of a fact for an error: a number, or the name of a choice."""
    kind, _, rest = fact.partition(".")
    text = "nullptr"
    if kind == "attribute":
        text = f"kChoices_{rest}[c.v_{rest}]"
    elif kind == "dtype":
        text = f"kDTypes_{rest}[c.y_{rest}].name"
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


def render_traced_library(spec: LibrarySpec, manifest: str) -> str:
    """What the header of a trace says of the library: its digest is that of the manifest's text."""
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    fields = json.dumps({"library": spec.name, "prefix": spec.prefix, "build": digest})
    return f"constexpr char kLibrary[] =\n    {c_string(fields[1:-1])};"


def render_trace(op: Operator) -> str:
    """`trace_call`, which counts an operator's call."""
    given = ", ".join(f"c.t_{t.name}" for t in op.tensors)
    return f"""\
// Counts a call for AOT_TUNE_TRACE.
__attribute__((noinline, cold)) void trace_call(const Call& c, bool captured) {{
  const DLTensor* const given[] = {{{given}}};
  int64_t words[trace_words(kFacts.own(), kTensors)];
  read_facts(c, words);
  count_call(kFacts, given, c.view, c.empty, captured, words);
}}"""
