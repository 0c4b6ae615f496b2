"""Torch's schemas for operators: arguments in the order and with the defaults of the module's functions."""

from __future__ import annotations

import math
import string

from aot_tune.signatures.operator_signature import OperatorSignature, Overload, ScalarSignature

__all__ = ["schema_of", "tensor_arguments"]


def tensor_arguments(op: OperatorSignature, overload: Overload) -> tuple[str, ...]:
    """The tensors that an overload takes, in the order of its schema."""
    return (*(t.name for t in op.positional), *overload.taken)


def schema_of(op: OperatorSignature, overload: Overload) -> str:
    """`rms_norm(Tensor x, Tensor weight, Tensor? residual=None, *, float eps=1e-05) -> Tensor`."""
    letters = iter(string.ascii_lowercase)  # an operator has at most 16 tensors

    def tensor(name: str, *, optional: bool, written: bool) -> str:
        kind = f"Tensor({next(letters)}!)" if written else "Tensor"
        return f"{kind}? {name}=None" if optional else f"{kind} {name}"

    positional = [tensor(t.name, optional=t.optional, written=t.inout) for t in op.positional]
    named = [_scalar(op, s) for s in op.scalars]
    named += [f'str {a.name}="{a.choices[0]}"' for a in op.attributes]
    named += [tensor(name, optional=op.tensor(name).optional, written=True) for name in overload.taken]
    arguments = ", ".join([*positional, *(["*", *named] if named else [])])
    returned = "Tensor" if len(overload.made) == 1 else f"({', '.join(['Tensor'] * len(overload.made))})"
    return f"{op.name}{'.' if overload.name else ''}{overload.name}({arguments}) -> {returned}"


def _scalar(op: OperatorSignature, scalar: ScalarSignature) -> str:
    floating = scalar.dtype in ("f32", "f64")
    binds = any(source.scalar == scalar.name for source in op.bound)
    kind = "float" if floating else "bool" if scalar.dtype == "bool" else "SymInt" if binds else "int"
    if scalar.default is None:
        return f"{kind} {scalar.name}"
    if floating and not math.isfinite(scalar.default):
        return f"{kind}? {scalar.name}=None"  # schemas cannot write such a default, so None stands for it
    return f"{kind} {scalar.name}={float(scalar.default) if floating else scalar.default}"
