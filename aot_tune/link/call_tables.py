"""Tables of what operators take and return, in C++, for the Python module and XLA's handlers, and these handlers."""

from __future__ import annotations

from collections.abc import Mapping

from aot_tune.expr.integers import EXTENT, checked_cpp, is_plain
from aot_tune.link.library_records import LibrarySpec
from aot_tune.link.signature import c_string, render_template, xla_families
from aot_tune.render.template_functions import scalar_type
from aot_tune.spec import Operator, Scalar
from aot_tune.spec.calls import bound_dims, folds, outputs_to_pass
from aot_tune.spec.dtypes import DType, dtype

__all__ = ["FLOATS", "TABLES", "render_xla_handlers", "scalar_default"]

_PYTHON = {"inf": "1e999", "-inf": "-1e999", "nan": "1e999 - 1e999"}
_CPP = {"inf": "__builtin_inf()", "-inf": "-__builtin_inf()", "nan": '__builtin_nan("")'}
_CPP |= {str(-(2**63)): "-9223372036854775807 - 1"}
FLOATS = ("f32", "f64")
_DEVICES = {"cpu": "kDLCPU", "cuda": "kDLCUDA", "hip": "kDLROCM"}


def scalar_default(scalar: Scalar, words: Mapping[str, str] = _PYTHON) -> str:
    """A default as source. `words` are for values that have no literal."""
    value = scalar.default or 0
    if scalar.dtype_name == "bool":
        return str(bool(value)) if words is _PYTHON else str(bool(value)).lower()
    text = repr(float(value)) if scalar.dtype_name in FLOATS else str(int(value))
    return words.get(text, text)


def _scalar_flags(op: Operator, scalar: Scalar) -> str:
    """Whether it must be passed, and the index of the dim that it binds. Usual values are left out."""
    binds = f", {op.dims.index(scalar.binds)}" if scalar.binds else ""
    required = "true" if scalar.default is None else "false"
    return f", {required}{binds}" if binds or scalar.default is None else ""


def _scalar_member(scalar: Scalar) -> str:
    """The member of the binding's union that holds it."""
    return "truth" if scalar.dtype_name == "bool" else scalar.dtype_name


def _passed(op: Operator) -> str:
    """The arguments of the library's functions, from the binding's arrays."""
    passed = [f"t[{i}]" for i in range(len(op.tensors))]
    passed += [f"s[{i}].{_scalar_member(s)}" for i, s in enumerate(op.scalars)]
    return ", ".join(passed + [f"c[{i}]" for i in range(len(op.attributes))])


def _tables(op: Operator) -> str:
    lines = []
    for variable, choices in op.dtypes.items():
        rows = ", ".join(f'{{"{d.name}", {_dtype(d)}}}' for d in map(dtype, choices))
        lines.append(f"constexpr DTypeChoice kDTypes_{op.name}_{variable}[] = {{{rows}}};")
    if op.dtypes:
        rows = ", ".join(f'{{"{v}", kDTypes_{op.name}_{v}, {len(c)}}}' for v, c in op.dtypes.items())
        lines.append(f"constexpr DTypeVariable kVariables_{op.name}[] = {{{rows}}};")
    to_pass = outputs_to_pass(op)
    lines.append(f"constexpr TensorArgument kTensors_{op.name}[] = {{")
    for t in op.tensors:
        variable_index = list(op.dtypes).index(t.dtype_name) if t.dtype_name in op.dtypes else -1
        element = dtype(op.dtypes.get(t.dtype_name, (t.dtype_name,))[0])
        layout = _place(op, t.layout_of) if t.layout_of else -1
        told = [t.output, t.optional, t.inout, t.name in to_pass, layout, folds(op, t)]
        while len(told) > 2 and (told[-1] is False or told[-1] == -1):
            told.pop()
        flags = ", ".join(str(flag).lower() for flag in told)
        lines.append(f'    {{"{t.name}", {_dtype(element)}, {t.rank}, {variable_index}, {flags}}},')
    lines.append("};")
    if op.scalars:
        scalars = ", ".join(
            f'{{"{s.name}", ScalarArgument::k{s.dtype_name.capitalize()}, {_scalar_value(s)}{_scalar_flags(op, s)}}}'
            for s in op.scalars
        )
        lines.append(f"constexpr ScalarArgument kScalars_{op.name}[] = {{{scalars}}};")
    for a in op.attributes:
        names = ", ".join(c_string(c) for c in a.choices)
        lines.append(f"constexpr const char* kChoices_{op.name}_{a.name}[] = {{{names}}};")
    if op.attributes:
        rows = ", ".join(f'{{"{a.name}", kChoices_{op.name}_{a.name}, {len(a.choices)}}}' for a in op.attributes)
        lines.append(f"constexpr AttributeArgument kAttributes_{op.name}[] = {{{rows}}};")
    if op.dims:
        lines.append(f"constexpr const char* kDims_{op.name}[] = {{{', '.join(c_string(d) for d in op.dims)}}};")
    return "\n".join(lines)


def _place(op: Operator, name: str) -> int:
    return [t.name for t in op.tensors].index(name)


def _dtype(element: DType) -> str:
    return f"{{{c_string(element.torch)}, {element.code}, {element.bits}}}"


def _scalar_value(scalar: Scalar) -> str:
    suffix = "u" if scalar.dtype_name.startswith("u") else ""
    return f"{{static_cast<{scalar_type(scalar)}>({scalar_default(scalar, _CPP)}{suffix})}}"


def _entry(op: Operator) -> str:
    def table(stem: str, count: int) -> str:
        return f"{stem}_{op.name}, {count}" if count else "nullptr, 0"

    functions = ", ".join(f"Functions_{op.name}::{f}" for f in ("call", "explain", "is_tuned", "bind", "shape"))
    tables = ", ".join(
        (
            table("kTensors", len(op.tensors)),
            table("kScalars", len(op.scalars)),
            table("kAttributes", len(op.attributes)),
            table("kDims", len(op.dims)),
            table("kVariables", len(op.dtypes)),
        )
    )
    return f'{{"{op.name}", {tables}, {functions}}}'


def _shape(op: Operator) -> str:
    position = {d: i for i, d in enumerate(op.dims)}
    lines = ["  static void shape(int tensor, const int64_t* dims, int64_t* extents) {", "    (void)dims;"]
    if not all(is_plain(extent) for tensor in op.tensors for extent in tensor.shape):
        lines.append("    bool undefined_ = false;")
    lines.append("    switch (tensor) {")
    for i, tensor in enumerate(op.tensors):
        lines.append(f"      case {i}:")
        for axis, extent in enumerate(tensor.shape):
            value = checked_cpp(extent, lambda fact: f"dims[{position[fact]}]")
            lines.append(f"        extents[{axis}] = {value};")
            lines += [] if is_plain(extent) else [f"        if (undefined_) extents[{axis}] = -1;"]
        lines.append("        break;")
    return "\n".join([*lines, "      default:", "        break;", "    }", "  }"])


def _bind(op: Operator) -> str:
    """The binding's function that reads a call's dims.

    If the library refuses a dim, such as an extent that no dim solves, it is 0 here. Then the library reports it.
    """
    index = {t.name: i for i, t in enumerate(op.tensors)}
    position = {d: i for i, d in enumerate(op.dims)}
    scalars = {s.name: f"s[{i}].{_scalar_member(s)}" for i, s in enumerate(op.scalars)}
    bound = bound_dims(op)
    lines = ["  static bool bind(Tensors t, const Scalar* s, int64_t* dims) {"]
    for tensor in dict.fromkeys(b.tensor for b in bound.values() if b.tensor):
        rank = op.tensor(tensor).rank
        lines.append(f"    if (t[{index[tensor]}] == nullptr || t[{index[tensor]}]->ndim != {rank}) return false;")
    if not all(is_plain(b.value) for b in bound.values()):
        lines.append("    bool undefined_ = false;")
    for name, source in bound.items():
        to = f"dims[{position[name]}]"
        if source.scalar:
            lines.append(f"    {to} = static_cast<int64_t>({scalars[source.scalar]});")
        else:
            read = f"t[{index[source.tensor]}]->shape[{source.axis}]"
            value = checked_cpp(
                source.value,
                lambda fact, read=read: read if fact == EXTENT else f"dims[{position[fact]}]",  # type: ignore[misc]
            )
            lines.append(f"    {to} = {value};")
        if not source.plain:
            lines.append(f"    if (undefined_) {to} = 0;")
        if source.scalar or not source.plain:
            lines.append(f"    if ({to} < 0) {to} = 0;")
    return "\n".join([*lines, "    (void)t;", "    (void)s;", "    (void)dims;", "    return true;", "  }"])


TABLES = {"tables_of": _tables, "passed_of": _passed, "bind_of": _bind, "shape_of": _shape, "entry_of": _entry}
"""What `operator_tables.cpp.j2` asks of an operator."""


def render_xla_handlers(spec: LibrarySpec) -> str:
    """The text of xla_ffi.cpp."""
    devices = [(family, _DEVICES[family]) for family in xla_families(spec)]
    operators = [table.operator for table in spec.operators]
    return render_template("xla_ffi.cpp.j2", spec=spec, operators=operators, devices=devices, **TABLES)
