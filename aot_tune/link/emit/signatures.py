"""What each operator takes and returns, as JSON in the Python module, for bindings of frameworks."""

from __future__ import annotations

import json

from aot_tune.link.emit.xla_handlers import handler_names
from aot_tune.link.library_records import LibrarySpec
from aot_tune.spec import Operator, Scalar, Tensor
from aot_tune.spec.bound_dims import bound_dims, outputs_to_pass
from aot_tune.spec.leading_dims import folds

__all__ = ["SIGNATURES_SCHEMA", "signatures_json"]

SIGNATURES_SCHEMA = 1
"""It is raised when a reader of the last version would misread the text."""


def signatures_json(spec: LibrarySpec) -> str:
    """The text that `signatures()` of a module parses.

    Shapes are expressions over dims, as `Expr.data` writes them. `bound` says, in order, where a call gets each dim
    from: an axis of a tensor, whose extent is the fact `.extent` of `value`, or an integer. `xla_ffi` has the names of
    the library's handlers, if there are any, by operator and XLA platform.
    """
    operators = [_operator(table.operator) for table in spec.operators]
    handlers = {one["name"]: handler_names(spec, str(one["name"])) for one in operators} if spec.xla_ffi else {}
    said = {"schema": SIGNATURES_SCHEMA, "operators": operators, **({"xla_ffi": handlers} if handlers else {})}
    return json.dumps(said, separators=(",", ":"))


def _operator(op: Operator) -> dict[str, object]:
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
        "tensors": [_tensor(t, to_pass=t.name in to_pass, leading=folds(op, t)) for t in op.tensors],
        "scalars": [_scalar(s) for s in op.scalars],
        "attributes": [{"name": a.name, "choices": list(a.choices)} for a in op.attributes],
    }


def _tensor(tensor: Tensor, *, to_pass: bool, leading: bool) -> dict[str, object]:
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


def _scalar(scalar: Scalar) -> dict[str, object]:
    default = {} if scalar.default is None else {"default": scalar.sample}
    return {"name": scalar.name, "dtype": scalar.dtype_name, **default}
