"""What callers of a library include: the C header, the Python module with its stub, XLA's handlers.

They are documented from the operators. The tables of what operators take and return are C++ that all of them, and the
dispatch, include. The module also says it as JSON.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from aot_tune.expr.integer_expressions import checked_cpp, is_plain
from aot_tune.link.library_records import FAMILIES, LibrarySpec
from aot_tune.link.signature import (
    braced,
    c_string,
    choices_text,
    dtype_text,
    handler_names,
    render_template,
    shape_text,
    xla_families,
)
from aot_tune.render.template_functions import parameters, scalar_type
from aot_tune.spec import Operator, Scalar, Tensor
from aot_tune.spec.calls import bound_dims, dims_beside_inputs, folds, outputs_to_pass
from aot_tune.spec.dtypes import DType, dtype

_PYTHON = {"inf": "1e999", "-inf": "-1e999", "nan": "1e999 - 1e999"}
_CPP = {"inf": "__builtin_inf()", "-inf": "-__builtin_inf()", "nan": '__builtin_nan("")'}
_CPP |= {str(-(2**63)): "-9223372036854775807 - 1"}
_FLOATS = ("f32", "f64")
ABI_VERSION = 1
"""AOT_TUNE_ABI_VERSION of the header that all libraries share."""
SIGNATURES_SCHEMA = 1
"""It is raised when a reader of the last version would misread the text."""
_COMMON = (*_FLOATS, "i32", "i64")
"""Scalars whose range users do not ask about."""
_WIDTH = 120
_MOST_CHOICES = 3
"""The most outputs that may be left out. Each doubles the overloads. With more of them, a result is `Any`."""


def render_header(spec: LibrarySpec) -> str:
    """The header's text."""
    operators = [table.operator for table in spec.operators]
    return render_template(
        "header.h.j2",
        spec=spec,
        operators=operators,
        version=ABI_VERSION,
        guard=re.sub(r"[^A-Za-z0-9]", "_", spec.header).upper() + "_",
        aliases=any(t.may_alias for op in operators for t in op.tensors),
        booleans=any(s.dtype_name == "bool" for op in operators for s in op.scalars),
        comment_of=lambda op: _comment(_documentation(op)),
        choices_of=lambda op, attribute: ", ".join(
            f"{spec.prefix}_{op.name}_{attribute.name}_{choice}".upper() + f" = {i}"
            for i, choice in enumerate(attribute.choices)
        ),
        prototype=lambda op, suffix, last: _prototype(f"{spec.prefix}_{op.name}{suffix}", [*parameters(op), *last]),
    )


def _documentation(op: Operator) -> list[str]:
    lines = [line.rstrip() for line in (op.documentation.strip() or op.name).splitlines()]
    lines.append("")
    for tensor in op.tensors:
        role = "read and written" if tensor.inout else "output" if tensor.output else "input"
        role += f", may be the memory of {' or '.join(tensor.may_alias)}" if tensor.may_alias else ""
        optional = ", may be NULL" if tensor.optional else ""
        lines.append(f"{tensor.name}: {tensor.dtype_name} {shape_text(op, tensor.name)}, {role}{optional}")
    lines += [f"{variable}: {choices_text(choices)}, the same for all" for variable, choices in op.dtypes.items()]
    lines += [f"{s.name}: {scalar_type(s)}{f', the dim {s.binds}' if s.binds else ''}" for s in op.scalars]
    for attribute in op.attributes:
        values = ", ".join(f"{i} {c}" for i, c in enumerate(attribute.choices))
        lines.append(f"{attribute.name}: {values}")
    lines.append("exec: how to carry out the call; NULL for defaults")
    return lines


def _comment(lines: list[str]) -> str:
    text = "\n".join([lines[0], *(f" * {line}".rstrip() for line in lines[1:])])
    return f"/* {text.replace('*/', '* /').replace('/*', '/ *')}\n */"  # compilers warn of either within a comment


def _prototype(name: str, declared: list[str]) -> str:
    head = f"int32_t {name}("
    lines = [head]
    for i, parameter in enumerate(declared):
        text = parameter + ("," if i + 1 < len(declared) else ");")
        if len(lines[-1]) + 1 + len(text) > 110:
            lines.append(" " * len(head) + text)
        else:
            lines[-1] += ("" if lines[-1].endswith("(") else " ") + text
    return "\n".join(lines)


def render_module(spec: LibrarySpec) -> str:
    """The text of module.cpp."""
    return render_template(
        "module.cpp.j2",
        spec=spec,
        operators=[table.operator for table in spec.operators],
        signatures=c_string(_signatures_json(spec)),
        doc=c_string(_module_doc(spec)),
        doc_of=lambda op: c_string(f"{op.name}($module, {python_signature(op)})\n--\n\n{_python_doc(op)}"),
    )


def render_xla_handlers(spec: LibrarySpec) -> str:
    """The text of xla_ffi.cpp."""
    devices = [(family, FAMILIES[family].device) for family in xla_families(spec)]
    operators = [table.operator for table in spec.operators]
    return render_template("xla_ffi.cpp.j2", spec=spec, operators=operators, devices=devices)


def _module_doc(spec: LibrarySpec) -> str:
    """The beginning of `help`, which shows the functions themselves only far below, after the errors."""
    operators = [table.operator for table in spec.operators]
    calls = "\n".join(f"{op.name}({python_signature(op)})" for op in operators)
    return (
        f"Kernels chosen by measurement when this package was built: {', '.join(o.name for o in operators)}.\n\n{calls}"
    )


def python_signature(op: Operator) -> str:
    """The parameters of an operator's Python function: inputs by position, the rest by keyword."""
    required = [t.name for t in op.inputs if not t.optional]
    optional = [f"{t.name}=None" for t in op.inputs if t.optional]
    keyword = [s.name + (f"={_scalar_default(s)}" if s.default is not None else "") for s in op.scalars]
    keyword += [f"{a.name}='{a.choices[0]}'" for a in op.attributes]
    to_pass = outputs_to_pass(op)
    keyword += [t.name if t.name in to_pass else f"{t.name}=None" for t in _python_results(op)]
    return ", ".join([*required, *optional, "*", *keyword, "stream=None", "workspace=None"])


def _python_results(op: Operator) -> list[Tensor]:
    """What a call makes if it is not passed, and returns."""
    return [t for t in op.tensors if t.output]


def _python_doc(op: Operator) -> str:
    """What `help` says of an operator's function."""
    lines = [op.documentation.strip() or op.name, ""]
    to_pass = outputs_to_pass(op)
    for tensor in op.tensors:
        what = f"{tensor.dtype_name} {shape_text(op, tensor.name)}"
        alias = f"; it may be {' or '.join(tensor.may_alias)} itself" if tensor.may_alias else ""
        if not tensor.output:
            changed = ", changed in place" if tensor.inout else ""
            lines.append(f"{tensor.name}: {what}{changed}" + (", may be left out." if tensor.optional else "."))
        elif tensor.optional:
            lines.append(f"{tensor.name}: {what}, written when passed{alias}; True makes a new one.")
        elif tensor.name in to_pass:
            told = f"; it tells {' and '.join(to_pass[tensor.name])}" if to_pass[tensor.name] else ""
            lines.append(f"{tensor.name}: {what}, to be passed{told}{alias}.")
        else:
            layout = f", with the layout of {tensor.layout_of}" if tensor.layout_of else ""
            lines.append(f"{tensor.name}: {what}, made when not passed{layout}{alias}.")
    if op.fold:
        names = [t.name for t in op.tensors if folds(op, t)]
        lines.append(f"{op.fold}: stands for any number of leading dims, the same of {', '.join(names)}.")
    lines += [f"{variable}: {choices_text(choices)}, the same for all." for variable, choices in op.dtypes.items()]
    lines += [_scalar_doc(s) for s in op.scalars]
    lines += [f"{a.name}: one of {', '.join(a.choices)}." for a in op.attributes]
    lines += [
        "stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.",
        "workspace: memory of the device for the call, any tensor; the library's own when not passed.",
    ]
    several = "the output; a tuple when several are written"
    returned = {0: "nothing", 1: "the output"}.get(len(_python_results(op)), several)
    lines += ["", f"Returns {returned}."]
    return "\n".join(lines)


def _scalar_doc(scalar: Scalar) -> str:
    what = f"the dim {scalar.binds}" if scalar.binds else "a number"
    if scalar.dtype_name == "bool":
        what = "True or False"
    elif scalar.dtype_name not in _COMMON and not scalar.binds:
        low, high = dtype(scalar.dtype_name).limits
        what = f"a whole number from {low} to {high}"
    what += "" if scalar.least is None else f", {scalar.least:g} or more"
    return f"{scalar.name}: {what}{', to be passed' if scalar.default is None else ''}."


def _signatures_json(spec: LibrarySpec) -> str:
    """The text that `signatures()` of a module parses.

    Shapes are expressions over dims, as `Expr.data` writes them. `bound` says, in order, where a call gets each dim
    from: an axis of a tensor, whose extent is the fact `.extent` of `value`, or an integer. `xla_ffi` has the names of
    the library's handlers, if there are any, by operator and XLA platform.
    """
    operators = [operator_signature(table.operator) for table in spec.operators]
    handlers = {op["name"]: handler_names(spec, str(op["name"])) for op in operators} if spec.xla_ffi else {}
    document = {"schema": SIGNATURES_SCHEMA, "operators": operators, **({"xla_ffi": handlers} if handlers else {})}
    return json.dumps(document, separators=(",", ":"))


def operator_signature(op: Operator) -> dict[str, object]:
    """What a module says of one operator; see `_signatures_json`."""
    bound = [
        {"dim": name, "scalar": source.scalar}
        if source.scalar
        else {"dim": name, "tensor": source.tensor, "axis": source.axis, "value": source.value.data()}
        for name, source in bound_dims(op).items()
    ]
    to_pass = outputs_to_pass(op)
    return {
        "name": op.name,
        "documentation": op.documentation.strip(),
        "bound": bound,
        "dtypes": {variable: list(choices) for variable, choices in op.dtypes.items()},
        "tensors": [_tensor_signature(t, to_pass=t.name in to_pass, leading=folds(op, t)) for t in op.tensors],
        "scalars": [_scalar_signature(s) for s in op.scalars],
        "attributes": [{"name": a.name, "choices": list(a.choices)} for a in op.attributes],
    }


def _tensor_signature(tensor: Tensor, *, to_pass: bool, leading: bool) -> dict[str, object]:
    flags = {
        "output": tensor.output,
        "inout": tensor.inout,
        "optional": tensor.optional,
        "folds": leading,  # its first axis stands for any number of leading dims
        "to_pass": to_pass,  # for an output: it tells a dim, a dtype or the device of the call
    }
    shape = [extent.data() for extent in tensor.shape]
    fields: dict[str, object] = {flag: True for flag, on in flags.items() if on}
    fields |= {"layout_of": tensor.layout_of} if tensor.layout_of else {}
    return {"name": tensor.name, "dtype": tensor.dtype_name, "shape": shape, **fields}


def _scalar_signature(scalar: Scalar) -> dict[str, object]:
    default = {} if scalar.default is None else {"default": scalar.sample}
    return {"name": scalar.name, "dtype": scalar.dtype_name, **default}


def render_stub(spec: LibrarySpec) -> str:
    """The module's .pyi."""
    operators = [table.operator for table in spec.operators]
    names = ", ".join(f'Literal["{op.name}"]' for op in operators)
    functions = [line for op in operators for line in _stub_functions(op)]
    return render_template("stub.pyi.j2", spec=spec, names=names, functions=functions)


def _stub_functions(op: Operator) -> list[str]:
    """The function of an operator: an overload for each choice of the outputs that are written."""
    optional = [t.name for t in _python_results(op) if t.optional]
    if not optional or len(optional) > _MOST_CHOICES:
        wanted = dict.fromkeys(optional)
        returned = "Any" if optional else _returned(op, {})
        return [_stub_function(op, wanted, returned), ""]
    lines: list[str] = []
    for choice in itertools.product((False, True), repeat=len(optional)):
        wanted = dict(zip(optional, choice, strict=True))
        lines += ["@overload", _stub_function(op, wanted, _returned(op, wanted), documented=not lines)]
    return [*lines, ""]


def _returned(op: Operator, wanted: Mapping[str, bool | None]) -> str:
    types = [_type(op, t) for t in _python_results(op) if wanted.get(t.name, True)]
    if not _python_results(op):
        return "None"
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def _stub_function(op: Operator, wanted: Mapping[str, bool | None], returned: str, *, documented: bool = True) -> str:
    head = f"def {op.name}({', '.join(_stub_parameters(op, wanted))}) -> {returned}:"
    if len(head) > _WIDTH:
        lines = "".join(f"    {parameter},\n" for parameter in _stub_parameters(op, wanted))
        head = f"def {op.name}(\n{lines}) -> {returned}:"
    if not documented:
        return f"{head} ..."
    first, *rest = _python_doc(op).replace("\\", "\\\\").replace('"""', "'''").splitlines()
    return "\n".join([head, f'    """{first}', *(f"    {line}".rstrip() for line in rest), '    """'])


def _stub_parameters(op: Operator, wanted: Mapping[str, bool | None]) -> list[str]:
    """Like `python_signature`. `wanted` says which optional outputs are written. None means either."""
    like = _like(op) if "_T" in [_type(op, t) for t in _python_results(op)] else None
    stated = [f"{t.name}: {'_T' if t is like else 'Tensor'}" for t in op.inputs if not t.optional]
    stated += [f"{t.name}: Tensor | None = None" for t in op.inputs if t.optional]
    stated.append("*")
    for s in op.scalars:
        stated.append(f"{s.name}: {_number(s)}" + (f" = {_scalar_default(s)}" if s.default is not None else ""))
    for a in op.attributes:
        choices = ", ".join(f'"{c}"' for c in a.choices)
        stated.append(f'{a.name}: Literal[{choices}] = "{a.choices[0]}"')
    to_pass = outputs_to_pass(op)
    for t in _python_results(op):
        kind = _type(op, t) if _type(op, t) != "Any" else "Tensor"
        if t.optional:
            kinds = {None: f"{kind} | bool | None = None", False: "Literal[False] | None = None"}
            kinds |= {True: f"{kind} | Literal[True]"}
            stated.append(f"{t.name}: {kinds[wanted[t.name]]}")
        else:
            stated.append(f"{t.name}: {kind}" + ("" if t.name in to_pass else " | None = None"))
    return [*stated, "stream: _Stream = None", "workspace: Tensor | None = None"]


def _like(op: Operator) -> Tensor | None:
    """The tensor whose type the results have: the first that every call passes."""
    to_pass = outputs_to_pass(op)
    return next((t for t in op.inputs if not t.optional), None) or next(
        (t for t in _python_results(op) if t.name in to_pass), None
    )


def _type(op: Operator, output: Tensor) -> str:
    """`_T` if a result is like the first tensor. The types of arrays may have dtype and rank as parameters."""
    like = _like(op)
    same = like is not None and (output.dtype_name, output.rank) == (like.dtype_name, like.rank)
    return "_T" if same else "Any"


def _number(scalar: Scalar) -> str:
    return "float" if scalar.dtype_name in _FLOATS else "bool" if scalar.dtype_name == "bool" else "int"


def render_tables(spec: LibrarySpec) -> str:
    """The text of operator_tables.h."""
    return render_template(
        "operator_tables.h.j2",
        spec=spec,
        operators=[table.operator for table in spec.operators],
        tables_of=_tables,
        passed=_passed,
    )


def _scalar_default(scalar: Scalar, words: Mapping[str, str] = _PYTHON) -> str:
    """A default as source. `words` are for values that have no literal."""
    value = scalar.default or 0
    if scalar.dtype_name == "bool":
        return str(bool(value)) if words is _PYTHON else str(bool(value)).lower()
    text = repr(float(value)) if scalar.dtype_name in _FLOATS else str(int(value))
    return words.get(text, text)


def _passed(op: Operator) -> list[str]:
    """The arguments of C functions, from arrays of the tensors `t`, the scalars `s` and the choices `c`."""
    arguments = [f"t[{i}]" for i in range(len(op.tensors))]
    arguments += [f"s[{i}].{_member(s)}" for i, s in enumerate(op.scalars)]
    return arguments + [f"c[{i}]" for i in range(len(op.attributes))]


def _member(scalar: Scalar) -> str:
    """The member of the union `Scalar` that holds it."""
    return "truth" if scalar.dtype_name == "bool" else scalar.dtype_name


def _tables(op: Operator) -> str:
    choices = {**op.dtypes, **op.choices}
    lines = [
        f"constexpr const char* kChoices_{name}[] = {braced([c_string(c) for c in several])};"
        for name, several in choices.items()
    ]
    lines += [
        f"constexpr DType kTypes_{variable}[] = {braced([_dtype(dtype(c)) for c in several])};"
        for variable, several in op.dtypes.items()
    ]
    rows = {
        "TensorInfo kTensors": [_tensor(op, t) for t in op.tensors],
        "ScalarInfo kScalars": [_scalar(op, s) for s in op.scalars],
        "AttributeInfo kAttributes": [_choices(a.name, a.choices) for a in op.attributes],
        "const char* kDims": [c_string(name) for name in op.dims],
        "VariableInfo kVariables": [braced([_choices(v, several), f"kTypes_{v}"]) for v, several in op.dtypes.items()],
    }
    fields = [f'"{op.name}"']
    for declared, initialisers in rows.items():
        const = "const " if declared.startswith("char") else ""
        name = declared.split()[-1]
        lines += (
            [f"constexpr {const}{declared}[] = {{", *(f"    {r}," for r in initialisers), "};"] if initialisers else []
        )
        fields += [name, str(len(initialisers))] if initialisers else ["nullptr", "0"]
    bound = {source.tensor for source in bound_dims(op).values()}
    fields.append(hex(_bits(t.name in bound for t in op.tensors)))
    fields.append(hex(_bits(name in dims_beside_inputs(op) for name in op.dims)))
    fields.append("shape")
    functions = [_shape(op), ""]
    if any(t.below is not None for t in op.tensors):
        fields.append("below")
        functions += [_below(op), ""]
    return "\n".join([*lines, "", *functions, f"constexpr OperatorInfo kOperator = {braced(fields)};"])


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << place for place, flag in enumerate(flags) if flag)


def _tensor(op: Operator, t: Tensor) -> str:
    """The row of a tensor. Usual values at its end are left out."""
    names = [tensor.name for tensor in op.tensors]
    variable = list(op.dtypes).index(t.dtype_name) if t.dtype_name in op.dtypes else -1
    element = dtype(op.dtypes.get(t.dtype_name, (t.dtype_name,))[0])
    layout = names.index(t.layout_of) if t.layout_of else -1
    aliases = _bits(name in t.may_alias for name in names)
    told = [t.output, t.optional, t.inout, t.name in outputs_to_pass(op), layout, folds(op, t), aliases]
    usual = [None, None, False, False, -1, False, 0]
    while told[-1] == usual[len(told) - 1]:
        told.pop()
    texts = [f'"{t.name}"', c_string(shape_text(op, t.name)), c_string(dtype_text(op, t))]
    return braced([*texts, _dtype(element), t.rank, variable, *(str(flag).lower() for flag in told)])


def _dtype(element: DType) -> str:
    return braced([element.code, element.bits, c_string(element.torch)])


def _choices(name: str, choices: Sequence[str]) -> str:
    return f'{{"{name}", kChoices_{name}, {len(choices)}}}'


def _scalar(op: Operator, scalar: Scalar) -> str:
    """The row of a scalar: its default, whether it must be passed, the dim that it binds, the least that it may be."""
    suffix = "u" if scalar.dtype_name.startswith("u") else ""
    value = f"{{static_cast<{scalar_type(scalar)}>({_scalar_default(scalar, _CPP)}{suffix})}}"
    required = str(scalar.default is None).lower()
    binds = op.dims.index(scalar.binds) if scalar.binds else -1
    least = [] if scalar.least is None else [repr(float(scalar.least))]
    kind = f"ScalarInfo::k{scalar.dtype_name.capitalize()}"
    return braced([f'"{scalar.name}"', kind, value, required, binds, *least])


def _below(op: Operator) -> str:
    position = {d: i for i, d in enumerate(op.dims)}
    lines = ["inline int64_t below(int tensor, const int64_t* dims) {", "  bool undefined_ = false;"]
    for i, tensor in enumerate(op.tensors):
        if tensor.below is not None:
            value = checked_cpp(tensor.below, lambda fact: f"dims[{position[fact]}]")
            lines += [f"  if (tensor == {i}) {{", f"    const int64_t most = {value};"]
            lines += ["    return undefined_ ? kNoExtent : most;", "  }"]
    return "\n".join([*lines, "  (void)undefined_;", "  return kNoExtent;", "}"])


def _shape(op: Operator) -> str:
    position = {d: i for i, d in enumerate(op.dims)}
    lines = ["inline void shape(int tensor, const int64_t* dims, int64_t* extents) {", "  (void)dims;"]
    if not all(is_plain(extent) for tensor in op.tensors for extent in tensor.shape):
        lines.append("  bool undefined_ = false;")
    lines.append("  switch (tensor) {")
    for i, tensor in enumerate(op.tensors):
        lines.append(f"    case {i}:")
        for axis, extent in enumerate(tensor.shape):
            value = checked_cpp(extent, lambda fact: f"dims[{position[fact]}]")
            lines.append(f"      extents[{axis}] = {value};")
            lines += [] if is_plain(extent) else [f"      if (undefined_) extents[{axis}] = kNoExtent;"]
        lines.append("      break;")
    return "\n".join([*lines, "    default:", "      break;", "  }", "}"])
