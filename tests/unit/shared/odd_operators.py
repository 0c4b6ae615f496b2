"""One library of odd operators, for all tests of what a library makes of calls.

The fixtures `odd` (a `linked.Built`) and `odd_ops` (its Python module) link it once a process; what is compiled for it
is kept (`linked.compile_objects`). Its operators:

kinds        conditions of every kind in `legal`, two dtypes that depend on each other
top, fill, both, widths    integers that tell a dim
halves, blocks, resize     extents that are solved for a dim
cast         a dtype that outputs alone have
tell, all_of_them          scalars of every kind, with and without defaults
pieces       extents that divide, and that overflow
copy         an output with the layout of an input, of four axes
apply        generic variants for combinations of an optional tensor and an attribute
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import linked

from aot_tune.link import LibrarySpec, LinkedVariant, OperatorTable
from aot_tune.spec import (
    Attribute,
    Expr,
    Kernel,
    Operator,
    Scalar,
    Tensor,
    alignment,
    attribute,
    ceildiv,
    dim,
    dims,
    dtype,
    dtype_index,
    next_power_of_2,
    present,
    problem,
    stride,
    where,
)

M, N, K, B, G, H, D = dims("M N K B G H D")

NOTHING = """
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
"""


def _reference(_xp: object, _call: object) -> dict[str, object]:
    raise AssertionError("link computes nothing")


LEGAL = (
    stride("x", 1) == 1,
    alignment("x") >= 16,
    N % 4 == 0,
    (attribute("causal") == 0) | (M == N),
    (present("bias") == 1) | (attribute("mode") != 2),
    attribute("mode") <= 2,
    dtype_index("T") <= dtype_index("S"),
    present("mask") == 0,
)
KINDS = (
    linked.PRELUDE
    + """
#define ARGS const DLTensor *x, const DLTensor *bias, const DLTensor *mask, const DLTensor *out, int32_t causal, \\
             int32_t mode
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  for (int64_t i = 0; i < out->shape[0]; ++i) {
    const int64_t at = i * out->strides[0];
    if (out->dtype.bits == 32) static_cast<float*>(out->data)[at] = 7;
    if (out->dtype.bits == 64) static_cast<double*>(out->data)[at] = 7;
  }
  return 0;
}
"""
)


def kinds(**changes: Any) -> Operator:
    fields: dict[str, Any] = {
        "name": "kinds",
        "dims": ("M", "N"),
        "dtypes": {"T": ("f32", "f64"), "S": ("f32", "f64")},
        "tensors": (
            Tensor("x", (M, N), "T"),
            Tensor("bias", (N,), "T", optional=True),
            Tensor("mask", (N,), "u8", optional=True),
            Tensor("out", (M,), "S", output=True),
        ),
        "attributes": (Attribute("causal", ("no", "yes")), Attribute("mode", ("a", "b", "c", "d"))),
        "legal": LEGAL,
        "reference": _reference,
        "flops": M * N,
        "workload": (problem(M=2, N=4),),
        "kernels": (Kernel("plain", "kinds/plain.cpp.j2", generic=True),),
    }
    return Operator(**{**fields, **changes})


TAIL = """
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  int64_t count = 1;
  for (int i = 0; i < out->ndim; ++i) count *= out->shape[i];
  for (int64_t i = 0; i < count; ++i) {
    if (out->dtype.bits == 32) static_cast<float*>(out->data)[i] = VALUE;
    if (out->dtype.bits == 64) static_cast<double*>(out->data)[i] = VALUE;
  }
  return 0;
}
"""


def _bound(name: str, **fields: object) -> Operator:
    shape: dict[str, int] = dict.fromkeys(fields["dims"], 4)  # type: ignore[call-overload]
    return Operator(
        name=name,
        reference=_reference,
        flops=1,
        workload=(problem(**shape),),
        kernels=(Kernel("plain", f"{name}/plain.cpp.j2", generic=True),),
        **fields,  # type: ignore[arg-type]
    )


BOUND = {
    "const DLTensor *x, const DLTensor *out, int64_t top_k": _bound(
        "top",
        dims=("M", "N", "K"),
        tensors=(Tensor("x", (M, N)), Tensor("out", (M, K), output=True)),
        scalars=(Scalar("top_k", "i64", binds="K"),),
        legal=(K <= N,),
    ),
    "const DLTensor *x, const DLTensor *scales, const DLTensor *out": _bound(
        "halves",
        dims=("M", "N"),
        tensors=(
            Tensor("x", (M, 2 * N)),
            Tensor("scales", (M, ceildiv(N, 128) + 1)),
            Tensor("out", (M, N), output=True),
        ),
    ),
    "const DLTensor *x, const DLTensor *out": _bound(
        "resize",
        dims=("M", "N"),
        tensors=(Tensor("x", (M,)), Tensor("out", (N,), output=True)),
    ),
    "const DLTensor *out, int32_t n": _bound(
        "fill",
        dims=("N",),
        tensors=(Tensor("out", (N + 1,), output=True),),
        scalars=(Scalar("n", "i32", binds="N"),),
    ),
    "const DLTensor *x, const DLTensor *out, const DLTensor *other": _bound(
        "cast",
        dims=("N",),
        tensors=(Tensor("x", (N,)), Tensor("out", (N,), "T", output=True), Tensor("other", (N,), "T", output=True)),
        dtypes={"T": ("f32", "f64")},
    ),
    "const DLTensor *x, const DLTensor *out, int64_t N": _bound(
        "both",
        dims=("N",),
        tensors=(Tensor("x", (N,)), Tensor("out", (N,), output=True)),
        scalars=(Scalar("N", "i64", binds="N"),),
    ),
    "const DLTensor *x, const DLTensor *out, uint8_t few, uint32_t many, int16_t some": _bound(
        "widths",
        dims=("M", "N", "K", "B"),
        tensors=(Tensor("x", (M,)), Tensor("out", (N, K, B), output=True)),
        scalars=(
            Scalar("few", "u8", binds="N"),
            Scalar("many", "u32", binds="K"),
            Scalar("some", "i16", default=2, binds="B"),
        ),
    ),
    "const DLTensor *x, const DLTensor *w, const DLTensor *out": _bound(
        "blocks",
        dims=("M", "K", "B"),
        tensors=(Tensor("x", (M, K)), Tensor("w", (M * (B + 1) - K,)), Tensor("out", (M, B), output=True)),
    ),
}
VALUES = {"top": "top_k", "fill": "n", "both": "N"}


LARGE = 2**53 + 1  # no double
TELL = (
    linked.PRELUDE
    + """
#define ARGS const DLTensor *x, const DLTensor *out, float single, double wide, int32_t small, int64_t large, \\
             double needed
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  auto* values = static_cast<double*>(out->data);
  const double found[] = {single, wide, double(small), double(large >> 32), double(large & 0xffffffff), needed};
  for (int64_t i = 0; i < 6; ++i) values[i * out->strides[0]] = found[i];
  return 0;
}
"""
)


WHOLE = ("i8", "i16", "i32", "u8", "u16", "u32", "u64")
"""Integers in the order of the operator `all_of_them`, behind a boolean."""

BITS = (
    linked.PRELUDE
    + """
#include <cstring>
#define ARGS const DLTensor *x, const DLTensor *out, bool flag, int8_t a, int16_t b, int32_t c, \\
             uint8_t e, uint16_t f, uint32_t g, uint64_t h
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
template <typename T>
void put(const DLTensor* out, int64_t at, T value) {
  int64_t wide = static_cast<int64_t>(value);
  static_cast<int64_t*>(out->data)[at * out->strides[0]] = wide;
}
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  put(out, 0, flag), put(out, 1, a), put(out, 2, b), put(out, 3, c);
  put(out, 4, e), put(out, 5, f), put(out, 6, g), put(out, 7, h);
  return 0;
}
"""
)


def tell() -> Operator:
    return Operator(
        name="tell",
        dims=("N",),
        tensors=(Tensor("x", (dim("N"),), "f64"), Tensor("out", (dim("N"),), "f64", output=True)),
        scalars=(
            Scalar("single", "f32", 0.1),
            Scalar("wide", "f64", 0.1),
            Scalar("small", "i32", -3),
            Scalar("large", "i64", LARGE),
            Scalar("needed", "f64"),
        ),
        reference=_reference,
        flops=dim("N"),
        workload=(problem(N=6),),
        kernels=(Kernel("plain", "tell/plain.cpp.j2", generic=True),),
    )


def all_of_them() -> Operator:
    return Operator(
        name="all_of_them",
        dims=("N",),
        tensors=(Tensor("x", (dim("N"),), "f64"), Tensor("out", (dim("N"),), "i64", output=True)),
        scalars=(
            Scalar("flag", "bool", True),
            *(Scalar(f"of_{d}", d, dtype(d).limits[0] if d != "u64" else 2**64 - 1) for d in WHOLE),
        ),
        reference=_reference,
        flops=dim("N"),
        workload=(problem(N=8),),
        kernels=(Kernel("plain", "all_of_them/plain.cpp.j2", generic=True),),
    )


PIECES = (
    linked.PRELUDE
    + """
#define ARGS const DLTensor *out, const DLTensor *x, const DLTensor *groups, const DLTensor *padded
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  for (int64_t i = 0; i < out->shape[0]; ++i) static_cast<float*>(out->data)[i * out->strides[0]] = 7;
  return 0;
}
"""
)


def pieces() -> Operator:
    """`out` has M * (N // G) elements."""
    return Operator(
        name="pieces",
        dims=("M", "N", "G"),
        tensors=(
            Tensor("out", (M * (N // G),), output=True),
            Tensor("x", (M, N)),
            Tensor("groups", (G,)),
            Tensor("padded", (next_power_of_2(M + 1),), output=True, optional=True),
        ),
        legal=(where(G == 3, N == 0, N % G == 0),),
        reference=_reference,
        flops=M * N,
        workload=(problem(M=2, N=4, G=2),),
        kernels=(Kernel("plain", "pieces/plain.cpp.j2", generic=True),),
    )


COPY = (
    linked.PRELUDE
    + """
#define ARGS const DLTensor *x, const DLTensor *like, const DLTensor *out, const DLTensor *plain
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  const int64_t* n = x->shape;
  for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; ++i) {
    const int64_t at[] = {i / (n[3] * n[2] * n[1]), i / (n[3] * n[2]) % n[1], i / n[3] % n[2], i % n[3]};
    int64_t from = 0, to = 0, second = 0;
    for (int axis = 0; axis < 4; ++axis) {
      from += at[axis] * x->strides[axis];
      to += at[axis] * out->strides[axis];
      second += at[axis] * plain->strides[axis];
    }
    static_cast<float*>(out->data)[to] = static_cast<float*>(x->data)[from];
    static_cast<float*>(plain->data)[second] = static_cast<float*>(x->data)[from];
  }
  return 0;
}
"""
)


def copy() -> Operator:
    """`out` is a copy of `x` with the layout of `like`, and `plain` one without."""
    shape = (B, H, M, D)
    return Operator(
        name="copy",
        dims=("B", "H", "M", "D"),
        tensors=(
            Tensor("x", shape),
            Tensor("like", shape),
            Tensor("out", shape, output=True, layout_of="like"),
            Tensor("plain", shape, output=True),
        ),
        reference=_reference,
        flops=B * H * M * D,
        workload=(problem(B=1, H=2, M=3, D=4),),
        kernels=(Kernel("plain", "copy/plain.cpp.j2", generic=True),),
    )


APPLY = (
    linked.PRELUDE
    + """
#define ARGS const DLTensor *x, const DLTensor *bias, const DLTensor *out, int32_t mode
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  for (int64_t i = 0; i < out->shape[0]; ++i) static_cast<float*>(out->data)[i * out->strides[0]] = MARK;
  return 0;
}
"""
)


def apply(legal: tuple[Expr, ...] = ()) -> Operator:
    return Operator(
        name="apply",
        dims=("N",),
        tensors=(Tensor("x", (N,)), Tensor("bias", (N,), optional=True), Tensor("out", (N,), output=True)),
        attributes=(Attribute("mode", ("a", "b", "c")),),
        legal=legal,
        reference=_reference,
        flops=N,
        workload=(problem(N=4),),
        kernels=(Kernel("plain", "apply/plain.cpp.j2", generic=True),),
    )


def generic(folder: Path, name: str, mark: int, *requires: Expr) -> LinkedVariant:
    return linked.variant(folder, APPLY, name, generic=True, requires=requires, mark=str(mark))


def combinations(folder: Path) -> tuple[LinkedVariant, ...]:
    """Marks 1, 2 without a bias in mode a or in others, and 11, 12 with one."""
    folder.mkdir(exist_ok=True)
    made = []
    for bias, first in itertools.product((0, 1), (True, False)):
        mode = attribute("mode") == 0 if first else attribute("mode") != 0
        made.append(generic(folder, f"plain_{bias}{int(first)}", 10 * bias + 2 - first, present("bias") == bias, mode))
    return tuple(made)


def _table(folder: Path, operator: Operator, source: str) -> OperatorTable:
    """An operator whose generic kernel, one for each of its dtypes, is that source."""
    variants = []
    for dtypes in operator.dtype_choices(operator.kernels[0]) if operator.dtypes else [{}]:
        name = "_".join(["plain", operator.name, *dtypes.values()])
        variants.append(dataclasses.replace(linked.variant(folder, source, name, generic=True), dtypes=dtypes))
    return OperatorTable(operator=operator, variants=tuple(variants))


def library_spec(folder: Path) -> LibrarySpec:
    """All of them."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = [_table(folder, kinds(), KINDS)]
    for arguments, operator in BOUND.items():
        source = f"{linked.PRELUDE}#define ARGS {arguments}\n#define VALUE {VALUES.get(operator.name, '7')}\n{TAIL}"
        tables.append(_table(folder, operator, source))
    alone = ((tell(), TELL), (all_of_them(), BITS), (pieces(), PIECES), (copy(), COPY))
    tables += [_table(folder, operator, source) for operator, source in alone]
    fast = linked.variant(folder, APPLY, "fast_1", requires=(dim("N") % 8 == 0,), mark="50")
    tables.append(OperatorTable(operator=apply(), variants=(*combinations(folder / "apply"), fast)))
    return LibrarySpec(output="odd_ops", operators=tuple(tables))
