"""The Python face of a library: module.cpp, which fills in the binding's tables."""

from __future__ import annotations

from aot_tune.link.emit.call_tables import FLOATS, operator_tables, scalar_default
from aot_tune.link.emit.signature import c_string, choices_text, shape_text
from aot_tune.link.emit.signatures import signatures_json
from aot_tune.link.library_records import LibrarySpec, OperatorTable
from aot_tune.spec import Operator, Scalar, Tensor
from aot_tune.spec.bound_dims import outputs_to_pass
from aot_tune.spec.dtypes import dtype
from aot_tune.spec.leading_dims import folds

__all__ = ["python_doc", "python_results", "python_signature", "render_module"]

_COMMON = (*FLOATS, "i32", "i64")
"""Scalars whose range users do not ask about."""


def python_signature(op: Operator) -> str:
    """The parameters of an operator's Python function: inputs by position, the rest by keyword."""
    required = [t.name for t in op.inputs if not t.optional]
    optional = [f"{t.name}=None" for t in op.inputs if t.optional]
    keyword = [s.name + (f"={scalar_default(s)}" if s.default is not None else "") for s in op.scalars]
    keyword += [f"{a.name}='{a.choices[0]}'" for a in op.attributes]
    to_pass = outputs_to_pass(op)
    keyword += [t.name if t.name in to_pass else f"{t.name}=None" for t in python_results(op)]
    return ", ".join([*required, *optional, "*", *keyword, "stream=None", "workspace=None"])


def python_results(op: Operator) -> list[Tensor]:
    """What a call makes if it is not passed, and returns."""
    return [t for t in op.tensors if t.output]


def _scalar_doc(scalar: Scalar) -> str:
    what = f"the dim {scalar.binds}" if scalar.binds else "a number"
    if scalar.dtype_name == "bool":
        what = "True or False"
    elif scalar.dtype_name not in _COMMON and not scalar.binds:
        low, high = dtype(scalar.dtype_name).limits
        what = f"a whole number from {low} to {high}"
    return f"{scalar.name}: {what}{', to be passed' if scalar.default is None else ''}."


def python_doc(op: Operator) -> str:
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
    returned = {0: "nothing", 1: "the output"}.get(len(python_results(op)), several)
    lines += ["", f"Returns {returned}."]
    return "\n".join(lines)


def render_module(spec: LibrarySpec) -> str:
    """The text of module.cpp."""
    parts = [_operator(spec, table) for table in spec.operators]
    methods = "\n".join(f"    {_method(table.operator)}," for table in spec.operators)
    operators = "\n".join(f"    kOperator_{table.operator.name}," for table in spec.operators)
    return f"""\
// The Python module {spec.face} of lib{spec.library}.so. Written by aot_tune.
#include "call.h"
#include "{spec.header}"

namespace aot_tune::python {{
namespace {{
{"".join(parts)}
constexpr Operator kOperators[] = {{
{operators}
}};

}}  // namespace

const Library kLibrary = {{kTablesLayout, "{spec.face}", kOperators, {len(spec.operators)}, {spec.prefix}_last_error,
                          {spec.prefix}_manifest, {spec.prefix}_preload, {spec.prefix}_set_num_threads,
                          {spec.prefix}_get_num_threads, {c_string(signatures_json(spec))}}};

}}  // namespace aot_tune::python

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_{spec.face}(void) {{
  using namespace aot_tune::python;
  using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
  const auto method = [](Fast function) {{
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  }};
  static PyMethodDef methods[] = {{
{methods}
  }};
  return make_module({c_string(_module_doc(spec))}, methods);
}}
"""


def _module_doc(spec: LibrarySpec) -> str:
    """The beginning of `help`, which shows the functions themselves only far below, after the errors."""
    operators = [table.operator for table in spec.operators]
    calls = "\n".join(f"{op.name}({python_signature(op)})" for op in operators)
    return (
        f"Kernels chosen by measurement when this package was built: {', '.join(o.name for o in operators)}.\n\n{calls}"
    )


def _method(op: Operator) -> str:
    doc = c_string(f"{op.name}($module, {python_signature(op)})\n--\n\n{python_doc(op)}")
    return f'{{"{op.name}", method(call_{op.name}), METH_FASTCALL | METH_KEYWORDS, {doc}}}'


def _operator(spec: LibrarySpec, table: OperatorTable) -> str:
    op = table.operator
    index = spec.operators.index(table)
    return f"""{operator_tables(spec, table)}
PyObject* call_{op.name}(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {{
  return call<kOperator_{op.name}>(module, {index}, arguments, count, keywords);
}}
"""
