"""Generated code that learns a call's dims from its tensors and integers, in C and in the Python binding."""

from __future__ import annotations

from collections.abc import Mapping

from aot_tune.expr.integers import checked, is_plain
from aot_tune.link.emit.signature import c_string
from aot_tune.spec import Operator
from aot_tune.spec.bound_dims import EXTENT, BoundDim, bound_dims

__all__ = ["check_scalars", "python_bind", "read_dim"]


def read_dim(op: Operator, name: str, bound: BoundDim) -> list[str]:
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


def check_scalars(op: Operator, bound: Mapping[str, BoundDim]) -> list[str]:
    """Lines of `read` that compare integers with the dims that they bind, if a tensor has already set these dims."""
    lines = []
    for scalar in (s for s in op.scalars if s.binds and bound[s.binds].scalar != s.name):
        passed, dim = f"static_cast<int64_t>({scalar.name})", f"c_.d_{scalar.binds}"
        told = f'"{scalar.name}", {passed}, "{scalar.binds}", {dim}'
        lines += [f"  if ({passed} != {dim}) return other_dim(kOperator, {told});"]
    return lines


def python_bind(op: Operator, unions: Mapping[str, str]) -> str:
    """The binding's function that reads a call's dims. `unions` gives the member of `Scalar` for a scalar.

    If the library refuses a dim, such as an extent that no dim solves, it is 0 here. Then the library reports it.
    """
    index = {t.name: i for i, t in enumerate(op.tensors)}
    place = {d: i for i, d in enumerate(op.dims)}
    scalars = {s.name: i for i, s in enumerate(op.scalars)}
    bound = bound_dims(op)
    lines = ["  static bool bind(Tensors t, const Scalar* s, int64_t* dims) {"]
    for tensor in dict.fromkeys(b.tensor for b in bound.values() if b.tensor):
        rank = op.tensor(tensor).rank
        lines.append(f"    if (t[{index[tensor]}] == nullptr || t[{index[tensor]}]->ndim != {rank}) return false;")
    if not all(is_plain(b.value) for b in bound.values()):
        lines.append("    bool undefined_ = false;")
    for name, one in bound.items():
        to = f"dims[{place[name]}]"
        if one.scalar:
            lines.append(f"    {to} = static_cast<int64_t>(s[{scalars[one.scalar]}].{unions[one.scalar]});")
        else:
            read = f"t[{index[one.tensor]}]->shape[{one.axis}]"
            value = checked(one.value, lambda fact, read=read: read if fact == EXTENT else f"dims[{place[fact]}]")  # type: ignore[misc]
            lines.append(f"    {to} = {value};")
        if not one.plain:
            lines.append(f"    if (undefined_) {to} = 0;")
        if one.scalar or not one.plain:
            lines.append(f"    if ({to} < 0) {to} = 0;")
    return "\n".join([*lines, "    (void)t;", "    (void)s;", "    (void)dims;", "    return true;", "  }"])
