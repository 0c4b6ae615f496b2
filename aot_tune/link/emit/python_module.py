"""The Python face of a library: module.cpp, which fills in the binding's tables, and the stub for type checkers."""

from __future__ import annotations

from aot_tune.link.emit.call_tables import FLOATS, operator_tables, scalar_default
from aot_tune.link.emit.signature import c_string, choices_text, shape_text
from aot_tune.link.emit.signatures import signatures_json
from aot_tune.link.library_records import LibrarySpec, OperatorTable
from aot_tune.spec import Operator, Scalar, Tensor
from aot_tune.spec.bound_dims import outputs_to_pass
from aot_tune.spec.dtypes import dtype

__all__ = ["python_signature", "render_module", "render_stub"]

_COMMON = (*FLOATS, "i32", "i64")
"""Scalars whose range nobody asks for."""


def python_signature(op: Operator, *, annotate: bool = False) -> str:
    """The parameters of an operator's Python function: inputs by position, the rest by keyword."""

    def note(kind: str) -> str:
        return f": {kind}" if annotate else ""

    equals = " = " if annotate else "="
    required = [f"{t.name}{note('Tensor')}" for t in op.inputs if not t.optional]
    optional = [f"{t.name}{note('Tensor | None')}{equals}None" for t in op.inputs if t.optional]
    keyword = [
        f"{s.name}{note(_scalar_note(s))}" + (f"{equals}{scalar_default(s)}" if s.default is not None else "")
        for s in op.scalars
    ]
    for attribute in op.attributes:
        choices = ", ".join(f'"{c}"' for c in attribute.choices)
        quote = '"' if annotate else "'"
        default = f"{quote}{attribute.choices[0]}{quote}"
        keyword.append(f"{attribute.name}{note(f'Literal[{choices}]')}{equals}{default}")
    to_pass = outputs_to_pass(op)
    for output in _made(op):
        kind = "Tensor | bool | None" if output.optional else "Tensor | None"
        passed = output.name in to_pass
        keyword.append(f"{output.name}{note('Tensor')}" if passed else f"{output.name}{note(kind)}{equals}None")
    keyword.append(f"stream{note('Any')}{equals}None")
    keyword.append(f"workspace{note('Tensor | None')}{equals}None")
    return ", ".join([*required, *optional, "*", *keyword])


def _made(op: Operator) -> list[Tensor]:
    """What a call makes where it is not passed, and returns."""
    return [t for t in op.tensors if t.output]


def _scalar_note(scalar: Scalar) -> str:
    return "float" if scalar.dtype_name in FLOATS else "bool" if scalar.dtype_name == "bool" else "int"


def _scalar_doc(scalar: Scalar) -> str:
    what = f"the dim {scalar.binds}" if scalar.binds else "a number"
    if scalar.dtype_name == "bool":
        what = "True or False"
    elif scalar.dtype_name not in _COMMON and not scalar.binds:
        low, high = dtype(scalar.dtype_name).limits
        what = f"a whole number from {low} to {high}"
    return f"{scalar.name}: {what}{', to be passed' if scalar.default is None else ''}."


def _doc(op: Operator) -> str:
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
    lines += [f"{variable}: {choices_text(choices)}, the same for all." for variable, choices in op.dtypes.items()]
    lines += [_scalar_doc(s) for s in op.scalars]
    lines += [f"{a.name}: one of {', '.join(a.choices)}." for a in op.attributes]
    lines += [
        "stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.",
        "workspace: memory of the device for the call, any tensor; the library's own when not passed.",
    ]
    returned = {0: "nothing", 1: "the output"}.get(len(_made(op)), "the output; a tuple when several are written")
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

const Library kLibrary = {{"{spec.face}", kOperators, {len(spec.operators)}, {spec.prefix}_last_error,
                          {spec.prefix}_manifest, {spec.prefix}_preload,
                          {c_string(signatures_json(spec))}}};

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
    """What `help` begins with; it shows the functions themselves far below, behind the errors."""
    operators = [table.operator for table in spec.operators]
    calls = "\n".join(f"{op.name}({python_signature(op)})" for op in operators)
    return (
        f"Kernels chosen by measurement when this package was built: {', '.join(o.name for o in operators)}.\n\n{calls}"
    )


def _method(op: Operator) -> str:
    doc = c_string(f"{op.name}($module, {python_signature(op)})\n--\n\n{_doc(op)}")
    return f'{{"{op.name}", method(call_{op.name}), METH_FASTCALL | METH_KEYWORDS, {doc}}}'


def _operator(spec: LibrarySpec, table: OperatorTable) -> str:
    op = table.operator
    index = spec.operators.index(table)
    return f"""{operator_tables(spec, table)}
PyObject* call_{op.name}(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {{
  return call<kOperator_{op.name}>(module, {index}, arguments, count, keywords);
}}
"""


def render_stub(spec: LibrarySpec) -> str:
    """The module's .pyi."""
    parts = [
        f'"""Stub of the module {spec.face}. Written by aot_tune."""\n',
        "from typing import Any, Literal\n",
        "# Anything that DLPack reads: numpy.ndarray, torch.Tensor, ...",
        "Tensor = Any\n",
        "operators: tuple[str, ...]\n",
        "class Error(Exception): ...",
        "class ArgumentTypeError(Error, TypeError): ...",
        "class ArgumentValueError(Error, ValueError): ...",
        "class CallError(Error, RuntimeError): ...\n",
    ]
    for table in spec.operators:
        op = table.operator
        parts.append(f"def {op.name}({python_signature(op, annotate=True)}) -> {'Any' if _made(op) else 'None'}:")
        doc = _doc(op).replace("\\", "\\\\").replace('"""', "'''").splitlines()
        parts += [f'    """{doc[0]}', *(f"    {line}".rstrip() for line in doc[1:]), '    """', ""]
    parts += [
        "def is_tuned(operator: str, *tensors: Tensor, **tensors_or_dims: Any) -> bool: ...",
        "def explain(operator: str, *tensors: Tensor, **tensors_or_dims: Any) -> dict[str, Any]: ...",
        "def manifest() -> dict[str, Any]: ...",
        "def preload(device: Any) -> None: ...",
        "def signatures() -> dict[str, Any]: ...",
    ]
    return "\n".join(parts) + "\n"
