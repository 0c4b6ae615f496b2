"""What operators take and return, as tables of C++. The library, its Python module and XLA's handlers include them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aot_tune.expr.integers import checked_cpp, is_plain
from aot_tune.link.library_records import LibrarySpec
from aot_tune.link.signature import braced, c_string, dtype_text, render_template, shape_text
from aot_tune.render.template_functions import scalar_type
from aot_tune.spec import Operator, Scalar, Tensor
from aot_tune.spec.calls import bound_dims, dims_beside_inputs, folds, outputs_to_pass
from aot_tune.spec.dtypes import DType, dtype

__all__ = ["FLOATS", "passed", "render_tables", "scalar_default"]

_PYTHON = {"inf": "1e999", "-inf": "-1e999", "nan": "1e999 - 1e999"}
_CPP = {"inf": "__builtin_inf()", "-inf": "-__builtin_inf()", "nan": '__builtin_nan("")'}
_CPP |= {str(-(2**63)): "-9223372036854775807 - 1"}
FLOATS = ("f32", "f64")


def render_tables(spec: LibrarySpec) -> str:
    """The text of operator_tables.h."""
    return render_template(
        "operator_tables.h.j2",
        spec=spec,
        operators=[table.operator for table in spec.operators],
        tables_of=_tables,
        passed=passed,
    )


def scalar_default(scalar: Scalar, words: Mapping[str, str] = _PYTHON) -> str:
    """A default as source. `words` are for values that have no literal."""
    value = scalar.default or 0
    if scalar.dtype_name == "bool":
        return str(bool(value)) if words is _PYTHON else str(bool(value)).lower()
    text = repr(float(value)) if scalar.dtype_name in FLOATS else str(int(value))
    return words.get(text, text)


def passed(op: Operator) -> list[str]:
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
    return "\n".join([*lines, "", _shape(op), "", f"constexpr OperatorInfo kOperator = {braced([*fields, 'shape'])};"])


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
    """The row of a scalar: its default, whether it must be passed, and the index of the dim that it binds."""
    suffix = "u" if scalar.dtype_name.startswith("u") else ""
    value = f"{{static_cast<{scalar_type(scalar)}>({scalar_default(scalar, _CPP)}{suffix})}}"
    required = str(scalar.default is None).lower()
    binds = op.dims.index(scalar.binds) if scalar.binds else -1
    return braced([f'"{scalar.name}"', f"ScalarInfo::k{scalar.dtype_name.capitalize()}", value, required, binds])


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
