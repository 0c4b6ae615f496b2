"""Generated dispatch code: the checks of each operator's dims, its decision trees and guards, its C functions."""

from __future__ import annotations

from aot_tune.errors import ManifestError
from aot_tune.link.decision import render_choice, render_tuned
from aot_tune.link.records import LibrarySpec, LinkedVariant, OperatorTable
from aot_tune.link.signature import arguments, c_string, parameters, scalar_type, shape_text
from aot_tune.spec import Expr, Operator

__all__ = ["bound_dims", "render_dispatch"]

_LOCALS = frozenset({"exec", "buffer", "size", "tuned", "call_", "status_", "size_", "memory_", "choice_"})
_CHUNK = 96


def render_dispatch(spec: LibrarySpec, manifest: str) -> str:
    """The text of dispatch.cpp; `manifest` is embedded in the library."""
    families = sorted({f for table in spec.operators for f in table.families})
    backends = "\n".join(f"extern const Backend backend_{f};" for f in families)
    symbols = "\n".join(_prototypes(spec))
    chunks = [manifest[i : i + _CHUNK] for i in range(0, len(manifest), _CHUNK)]
    text = "\n".join(f"    {c_string(chunk)}" for chunk in chunks) or '    ""'
    operators = "\n".join(_operator(spec, table) for table in spec.operators)
    return f"""\
// Dispatch of lib{spec.library}.so. Written by aot_tune.
#include "{spec.header}"
#include "runtime.h"

#define AOT_TUNE_PUBLIC __attribute__((visibility("default")))

namespace aot_tune {{
{backends}
}}  // namespace aot_tune

extern "C" {{
{symbols}
}}

namespace {{

using namespace aot_tune;

constexpr char kManifest[] =
{text};

}}  // namespace

extern "C" AOT_TUNE_PUBLIC const char* {spec.prefix}_last_error(void) {{ return last_error(); }}

extern "C" AOT_TUNE_PUBLIC const char* {spec.prefix}_manifest(void) {{ return kManifest; }}
{operators}"""


def bound_dims(op: Operator) -> dict[str, tuple[str, int]]:
    """For each dim the tensor and axis that a call learns it from: the first required input with that extent."""
    bound: dict[str, tuple[str, int]] = {}
    for tensor in op.tensors:
        if tensor.output or tensor.optional:
            continue
        for axis, extent in enumerate(tensor.shape):
            if extent.kind == "fact":
                bound.setdefault(str(extent.value), (tensor.name, axis))
    return {name: bound[name] for name in op.dims}


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

struct Call {{
  View view[{len(op.tensors)}];
  const Backend* backend;
  int32_t level;
  bool empty;   // no output has an element
  bool hollow;  // some output has elements, but not every input
{_members(op)}
}};

{_read(table)}

{render_choice(table)}

{render_tuned(table)}

}}  // namespace operator_{op.name}
}}  // namespace
{_functions(spec, op)}"""


def _tables(table: OperatorTable) -> str:
    op = table.operator
    lines = ["constexpr TensorInfo kTensors[] = {"]
    for tensor in op.tensors:
        d = tensor.dtype
        flags = f"{str(tensor.output).lower()}, {str(tensor.optional).lower()}"
        shape = c_string(shape_text(op, tensor.name))
        lines.append(f'    {{"{tensor.name}", {shape}, "{d.name}", {d.code}, {d.bits}, {tensor.rank}, {flags}}},')
    lines += ["};", f'constexpr OperatorInfo kOperator = {{"{op.name}", kTensors, {len(op.tensors)}}};']
    for attribute in op.attributes:
        choices = ", ".join(c_string(c) for c in attribute.choices)
        lines.append(f"constexpr const char* kChoices_{attribute.name}[] = {{{choices}}};")
        lines.append(
            f'constexpr AttributeInfo kAttribute_{attribute.name} = {{"{attribute.name}", kChoices_{attribute.name}, '
            f"{len(attribute.choices)}}};"
        )
    backends = ", ".join(f"&backend_{f}" for f in table.families)
    lines.append(f"const Backend* const kBackends[] = {{{backends}}};")
    declared = ", ".join(parameters(op))
    lines += [
        "",
        "struct Variant {",
        "  VariantInfo info;",
        f"  int32_t (*workspace)({declared}, size_t*);",
        f"  int32_t (*launch)({declared}, void*, size_t, void*);",
        "};",
        "const Variant kVariants[] = {",
        *(f"    {_variant(v)}," for v in table.variants),
        "};",
    ]
    return "\n".join(lines)


def _variant(v: LinkedVariant) -> str:
    info = ", ".join(c_string(text) for text in (v.name, v.target, v.kernel, v.object_digest))
    return f"{{{{{info}}}, {v.symbol}_workspace, {v.symbol}_launch}}"


def _members(op: Operator) -> str:
    lines = [f"  const DLTensor* t_{t.name};" for t in op.tensors]
    lines += [f"  int64_t d_{d};" for d in op.dims]
    lines += [f"  {scalar_type(s)} v_{s.name};" for s in op.scalars]
    lines += [f"  int32_t v_{a.name};" for a in op.attributes]
    return "\n".join(lines)


def _read(table: OperatorTable) -> str:
    op = table.operator
    index = {t.name: i for i, t in enumerate(op.tensors)}
    first = next(i for i, t in enumerate(op.tensors) if not t.optional)
    lines = [
        "// Checks a call and fills it in; `data` is false where no memory is touched.",
        f"int32_t read(Call& c, bool data, {', '.join(parameters(op))}) {{",
        f"  const DLTensor* const given[] = {{{', '.join(t.name for t in op.tensors)}}};",
        "  if (int32_t status = read_tensors(kOperator, given, c.view)) return status;",
    ]
    bound = bound_dims(op)
    lines += [f"  c.d_{dim} = {name}->shape[{axis}];" for dim, (name, axis) in bound.items()]
    for tensor in op.tensors:
        for axis, extent in enumerate(tensor.shape):
            if extent.kind != "fact" or bound[str(extent.value)] != (tensor.name, axis):
                lines += _extent_check(tensor.name, index[tensor.name], axis, extent, tensor.optional)
    for attribute in op.attributes:
        lines += [
            f"  if ({attribute.name} < 0 || {attribute.name} >= {len(attribute.choices)})",
            f"    return wrong_attribute(kOperator, kAttribute_{attribute.name}, {attribute.name});",
        ]
    outputs = " && ".join(_is_empty(t.name, index[t.name], t.optional, "true") for t in op.tensors if t.output)
    inputs = " || ".join(_is_empty(t.name, index[t.name], t.optional, "false") for t in op.tensors if not t.output)
    lines += [
        f"  c.empty = {outputs};",
        f"  c.hollow = !c.empty && ({inputs or 'false'});",
        "  if (data && !c.empty) {",
        "    if (int32_t status = check_memory(kOperator, given, c.view)) return status;",
        "  }",
    ]
    for i, tensor in enumerate(op.tensors):
        view = f"&c.view[{i}].tensor"
        lines.append(f"  c.t_{tensor.name} = {f'{tensor.name} ? {view} : nullptr' if tensor.optional else view};")
    lines += [f"  c.v_{s.name} = {s.name};" for s in op.scalars]
    lines += [f"  c.v_{a.name} = {a.name};" for a in op.attributes]
    lines += [
        f"  const DLDevice& device = c.view[{first}].tensor.device;",
        f"  return find_backend(kOperator, kBackends, {len(table.families)}, device, &c.backend, &c.level);",
        "}",
    ]
    return "\n".join(lines)


def _is_empty(tensor: str, index: int, optional: bool, absent: str) -> str:
    empty = f"c.view[{index}].empty"
    if not optional:
        return empty
    return f"({tensor} == nullptr || {empty})" if absent == "true" else f"({tensor} != nullptr && {empty})"


def _extent_check(tensor: str, index: int, axis: int, extent: Expr, optional: bool) -> list[str]:
    wanted = extent.cpp(lambda fact: f"c.d_{fact}")
    here = f"{tensor} != nullptr && " if optional else ""
    got = f"{tensor}->shape[{axis}]"
    return [
        f"  if ({here}{got} != {wanted})",
        f"    return wrong_extent(kOperator, {index}, {axis}, {got}, {wanted}, {c_string(extent.key())});",
    ]


def _functions(spec: LibrarySpec, op: Operator) -> str:
    declared = ", ".join(parameters(op))
    passed = ", ".join(arguments(op))
    names = [f"t_{t.name}" for t in op.tensors] + [f"v_{s.name}" for s in op.scalars]
    prepared = ", ".join(f"call_.{n}" for n in names + [f"v_{a.name}" for a in op.attributes])
    scope = f"operator_{op.name}"
    device = "call_.view[" + str(next(i for i, t in enumerate(op.tensors) if not t.optional)) + "].tensor.device"
    head = f'extern "C" AOT_TUNE_PUBLIC int32_t {spec.prefix}_{op.name}'
    return f"""
{head}({declared}, const aot_tune_exec* exec) {{
  {scope}::Call call_;
  int32_t status_ = {scope}::read(call_, true, {passed});
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  NoTrace trace_;
  const {scope}::Variant& variant_ = {scope}::kVariants[{scope}::choose(call_, trace_)];
  size_t size_ = 0;
  status_ = variant_.workspace({prepared}, &size_);
  if (status_ != 0) return kernel_failed({scope}::kOperator, variant_.info, "workspace", status_);
  void* memory_;
  status_ = take_workspace({scope}::kOperator, *call_.backend, {device}, exec, size_, &memory_);
  if (status_ != AOT_TUNE_OK) return status_;
  status_ = variant_.launch({prepared}, memory_, size_, exec != nullptr ? exec->stream : nullptr);
  return status_ == 0 ? AOT_TUNE_OK : kernel_failed({scope}::kOperator, variant_.info, "launch", status_);
}}

{head}_workspace({declared}, size_t* workspace_size) {{
  {scope}::Call call_;
  *workspace_size = 0;
  int32_t status_ = {scope}::read(call_, false, {passed});
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  NoTrace trace_;
  const {scope}::Variant& variant_ = {scope}::kVariants[{scope}::choose(call_, trace_)];
  status_ = variant_.workspace({prepared}, workspace_size);
  return status_ == 0 ? AOT_TUNE_OK : kernel_failed({scope}::kOperator, variant_.info, "workspace", status_);
}}

{head}_explain({declared}, char* buffer, size_t size) {{
  {scope}::Call call_;
  Text text_(buffer, size);
  int32_t status_ = {scope}::read(call_, false, {passed});
  if (status_ != AOT_TUNE_OK) return status_;
  {scope}::explain(call_, text_);
  return AOT_TUNE_OK;
}}

{head}_is_tuned({declared}, int32_t* tuned) {{
  {scope}::Call call_;
  *tuned = 0;
  int32_t status_ = {scope}::read(call_, false, {passed});
  if (status_ != AOT_TUNE_OK) return status_;
  *tuned = {scope}::is_tuned(call_);
  return AOT_TUNE_OK;
}}
"""
