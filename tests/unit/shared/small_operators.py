"""Operators that tests declare in Python: what they do not say is the same in all."""

import math
from typing import Any

from aot_tune.spec import Kernel, Operator, Tensor, dims, problem


def make_operator(*kernels: Kernel, extents: str = "M N", **changes: Any) -> Operator:
    """out = x, by a generic kernel and others, on a problem of extents 3, 5, 7, ...; `changes` are other fields."""
    named, of_name = dims(extents), changes.get("name", "scale")
    dtype = "T" if changes.get("dtypes") else "f32"
    fields: dict[str, Any] = {
        "name": of_name,
        "dims": tuple(extents.split()),
        "tensors": (Tensor("x", named, dtype), Tensor("out", named, dtype, output=True)),
        "reference": lambda xp, call: {"out": call.x},
        "flops": math.prod(named[1:], start=named[0]),
        "workload": (problem(**{name: 3 + 2 * i for i, name in enumerate(extents.split())}),),
        "kernels": (Kernel("generic", f"{of_name}/generic.cpp.j2", generic=True), *kernels),
    }
    return Operator(**{**fields, **changes})
