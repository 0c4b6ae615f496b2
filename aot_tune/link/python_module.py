"""The Python face of a library: module.cpp, its stub for type checkers, and what it says of operators as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

from aot_tune.link.call_tables import FLOATS, TABLES, scalar_default
from aot_tune.link.library_records import LibrarySpec
from aot_tune.link.signature import c_string, choices_text, handler_names, render_template, shape_text
from aot_tune.spec import Operator, Scalar, Tensor
from aot_tune.spec.calls import bound_dims, folds, outputs_to_pass
from aot_tune.spec.dtypes import dtype

__all__ = [
    "SIGNATURES_SCHEMA",
    "python_doc",
    "python_results",
    "python_signature",
    "render_module",
    "render_stub",
    "signatures_json",
]

_COMMON = (*FLOATS, "i32", "i64")
"""Scalars whose range users do not ask about."""
SIGNATURES_SCHEMA = 1
"""It is raised when a reader of the last version would misread the text."""
_WIDTH = 120
_MOST_CHOICES = 3
"""The most outputs that may be left out. Each doubles the overloads. With more of them, a result is `Any`."""


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
    return render_template(
        "module.cpp.j2",
        spec=spec,
        operators=[table.operator for table in spec.operators],
        signatures=c_string(signatures_json(spec)),
        doc=c_string(_module_doc(spec)),
        doc_of=lambda op: c_string(f"{op.name}($module, {python_signature(op)})\n--\n\n{python_doc(op)}"),
        **TABLES,
    )


def _module_doc(spec: LibrarySpec) -> str:
    """The beginning of `help`, which shows the functions themselves only far below, after the errors."""
    operators = [table.operator for table in spec.operators]
    calls = "\n".join(f"{op.name}({python_signature(op)})" for op in operators)
    return (
        f"Kernels chosen by measurement when this package was built: {', '.join(o.name for o in operators)}.\n\n{calls}"
    )


def signatures_json(spec: LibrarySpec) -> str:
    """The text that `signatures()` of a module parses.

    Shapes are expressions over dims, as `Expr.data` writes them. `bound` says, in order, where a call gets each dim
    from: an axis of a tensor, whose extent is the fact `.extent` of `value`, or an integer. `xla_ffi` has the names of
    the library's handlers, if there are any, by operator and XLA platform.
    """
    operators = [_signature(table.operator) for table in spec.operators]
    handlers = {one["name"]: handler_names(spec, str(one["name"])) for one in operators} if spec.xla_ffi else {}
    said = {"schema": SIGNATURES_SCHEMA, "operators": operators, **({"xla_ffi": handlers} if handlers else {})}
    return json.dumps(said, separators=(",", ":"))


def _signature(op: Operator) -> dict[str, object]:
    bound = [
        {"dim": name, "scalar": one.scalar}
        if one.scalar
        else {"dim": name, "tensor": one.tensor, "axis": one.axis, "value": one.value.data()}
        for name, one in bound_dims(op).items()
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
    said: dict[str, object] = {flag: True for flag, on in flags.items() if on}
    said |= {"layout_of": tensor.layout_of} if tensor.layout_of else {}
    return {"name": tensor.name, "dtype": tensor.dtype_name, "shape": shape, **said}


def _scalar_signature(scalar: Scalar) -> dict[str, object]:
    default = {} if scalar.default is None else {"default": scalar.sample}
    return {"name": scalar.name, "dtype": scalar.dtype_name, **default}


def render_stub(spec: LibrarySpec) -> str:
    """The module's .pyi."""
    operators = [table.operator for table in spec.operators]
    names = ", ".join(f'Literal["{op.name}"]' for op in operators)
    functions = [line for op in operators for line in _functions(op)]
    return render_template("stub.pyi.j2", spec=spec, names=names, functions=functions)


def _functions(op: Operator) -> list[str]:
    """The function of an operator: an overload for each choice of the outputs that are written."""
    optional = [t.name for t in python_results(op) if t.optional]
    if not optional or len(optional) > _MOST_CHOICES:
        wanted = dict.fromkeys(optional)
        returned = "Any" if optional else _returned(op, {})
        return [_function(op, wanted, returned), ""]
    lines: list[str] = []
    for choice in itertools.product((False, True), repeat=len(optional)):
        wanted = dict(zip(optional, choice, strict=True))
        lines += ["@overload", _function(op, wanted, _returned(op, wanted), documented=not lines)]
    return [*lines, ""]


def _returned(op: Operator, wanted: Mapping[str, bool | None]) -> str:
    types = [_type(op, t) for t in python_results(op) if wanted.get(t.name, True)]
    if not python_results(op):
        return "None"
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def _function(op: Operator, wanted: Mapping[str, bool | None], returned: str, *, documented: bool = True) -> str:
    head = f"def {op.name}({', '.join(_parameters(op, wanted))}) -> {returned}:"
    if len(head) > _WIDTH:
        lines = "".join(f"    {parameter},\n" for parameter in _parameters(op, wanted))
        head = f"def {op.name}(\n{lines}) -> {returned}:"
    if not documented:
        return f"{head} ..."
    first, *rest = python_doc(op).replace("\\", "\\\\").replace('"""', "'''").splitlines()
    return "\n".join([head, f'    """{first}', *(f"    {line}".rstrip() for line in rest), '    """'])


def _parameters(op: Operator, wanted: Mapping[str, bool | None]) -> list[str]:
    """Like `python_signature`. `wanted` says which optional outputs are written. None means either."""
    like = _like(op) if "_T" in [_type(op, t) for t in python_results(op)] else None
    found = [f"{t.name}: {'_T' if t is like else 'Tensor'}" for t in op.inputs if not t.optional]
    found += [f"{t.name}: Tensor | None = None" for t in op.inputs if t.optional]
    found.append("*")
    for s in op.scalars:
        found.append(f"{s.name}: {_number(s)}" + (f" = {scalar_default(s)}" if s.default is not None else ""))
    for a in op.attributes:
        choices = ", ".join(f'"{c}"' for c in a.choices)
        found.append(f'{a.name}: Literal[{choices}] = "{a.choices[0]}"')
    to_pass = outputs_to_pass(op)
    for t in python_results(op):
        kind = _type(op, t) if _type(op, t) != "Any" else "Tensor"
        if t.optional:
            kinds = {None: f"{kind} | bool | None = None", False: "Literal[False] | None = None"}
            kinds |= {True: f"{kind} | Literal[True]"}
            found.append(f"{t.name}: {kinds[wanted[t.name]]}")
        else:
            found.append(f"{t.name}: {kind}" + ("" if t.name in to_pass else " | None = None"))
    return [*found, "stream: _Stream = None", "workspace: Tensor | None = None"]


def _like(op: Operator) -> Tensor | None:
    """The tensor whose type the results have: the first that every call passes."""
    to_pass = outputs_to_pass(op)
    return next((t for t in op.inputs if not t.optional), None) or next(
        (t for t in python_results(op) if t.name in to_pass), None
    )


def _type(op: Operator, output: Tensor) -> str:
    """`_T` if a result is like the first tensor. The types of arrays may have dtype and rank as parameters."""
    like = _like(op)
    same = like is not None and (output.dtype_name, output.rank) == (like.dtype_name, like.rank)
    return "_T" if same else "Any"


def _number(scalar: Scalar) -> str:
    return "float" if scalar.dtype_name in FLOATS else "bool" if scalar.dtype_name == "bool" else "int"
