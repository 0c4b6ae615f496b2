"""Numbers that launchers of Triton kernels pass: types of Triton's signatures in C++, conversions, constants."""

from __future__ import annotations

import math
from typing import Any

from aot_tune.support.errors import RenderError

__all__ = ["FLOATS", "INTEGERS", "constant", "passed_number", "passed_scalar"]

INTEGERS = {
    "i1": "uint8_t",
    "u1": "uint8_t",
    **{f"i{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}_t" for bits in (8, 16, 32, 64)},
}
FLOATS = {"fp16": "uint16_t", "bf16": "uint16_t", "fp32": "float", "fp64": "double"}


def passed_number(value: str, kind: str, to: str) -> str:
    """The statement that passes a C++ number as a type of the signature."""
    if kind in ("fp16", "bf16"):
        convert = "float16_bits" if kind == "fp16" else "bfloat16_bits"
        return f"{to} = launcher::{convert}(static_cast<double>({value}));"
    if kind in FLOATS:
        return f"{to} = static_cast<{FLOATS[kind]}>({value});"
    if kind in ("i1", "u1"):
        return f"{to} = {value} != 0;"
    return f"aot_fits &= launcher::narrow({value}, &{to});"


def passed_scalar(name: str, dtype_name: str, kind: str, to: str) -> str:
    """The statement that passes a scalar argument: as `passed_number`, but u64 need not fit 64 bits with a sign."""
    if dtype_name != "u64" or kind in FLOATS or kind in ("i1", "u1"):
        return passed_number(name, kind, to)
    if kind == "u64":
        return f"{to} = {name};"
    return f"aot_fits &= {name} <= INT64_MAX && launcher::narrow(static_cast<int64_t>({name}), &{to});"


def constant(value: Any, kind: str, what: str) -> str:
    """A constant of the type in C++."""
    if kind in FLOATS:
        number = f"{float(value)!r}" if math.isfinite(value) else f"{'-' if value < 0 else ''}__builtin_{_odd(value)}"
        convert = {"fp16": "launcher::float16_bits", "bf16": "launcher::bfloat16_bits"}
        return f"{convert.get(kind, f'static_cast<{FLOATS[kind]}>')}({number})"
    if kind in ("i1", "u1"):
        return "1" if value else "0"
    bits, integer = int(kind[1:]), int(value) if math.isfinite(value) else 0
    low, high = (0, 2**bits) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not low <= integer < high or integer != value:
        raise RenderError(f"{what}: the constant {value!r} does not fit the type {kind}", fix="change it or its type")
    return "INT64_MIN" if integer == -(2**63) else f"INT64_C({integer})"


def _odd(value: float) -> str:
    return "inf()" if math.isinf(value) else 'nan("")'
