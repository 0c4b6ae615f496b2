"""One library of odd operators, for all tests of what a library makes of calls.

The fixtures `odd` (a `linked.Built`) and `odd_ops` (its Python module) have it. Its operators:

kinds        conditions of every kind in `legal`, two dtypes that depend on each other
top, fill, both    integers that tell a dim
halves, resize     extents that are solved for a dim
cast         a dtype that outputs alone have
tell, all_of_them          scalars of every kind, with and without defaults
pieces       extents that divide, and that overflow
copy         an output with the layout of an input, of four axes
pick         integers of an input that have a limit
rows         a copy of rows of f32 or bf16, for outputs that a call makes
apply        generic variants for combinations of an optional tensor and an attribute
narrow, lone generic variants for bf16 on higher levels alone, and for f32 alone
threads      the number of threads that its kernel has; tuned with 64
by_nearest, by_times_9, by_times_11 variants that fill in, behind nearest problems or expected times
likely       a choice by expected times, which are known of calls without an activation alone
"""

import dataclasses
import itertools
import random
from pathlib import Path
from typing import Any

import linked
import linked_cuda
import msgspec
import numpy as np
from compiled import PRELUDE

from aot_tune.expr.columns import Calls
from aot_tune.link import ExpectedTime, LibrarySpec, OperatorTable, RegimeCalls, TargetTable
from aot_tune.select import Judged, Rule
from aot_tune.select.decide import UNLIMITED
from aot_tune.select.terms import columns_of, terms_of
from aot_tune.select.time_model import TimeModel, Times, learn_times
from aot_tune.spec import (
    Attribute,
    Expr,
    Kernel,
    Operator,
    Problem,
    Scalar,
    Tensor,
    Tiling,
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


def source(arguments: str, launch: str) -> str:
    """A kernel without a workspace: its arguments in C, and what it does."""
    return f"""{PRELUDE}
EXPORT int32_t SYMBOL_workspace({arguments}, size_t* size) {{ return *size = 0, 0; }}
EXPORT int32_t SYMBOL_launch({arguments}, void*, size_t, void*) {{
{launch}
  return 0;
}}
"""


def fill(value: str) -> str:
    """A launch that writes a value to all of `out`."""
    return f"""
  int64_t count = 1;
  for (int i = 0; i < out->ndim; ++i) count *= out->shape[i];
  for (int64_t i = 0; i < count; ++i) {{
    const int64_t at = out->ndim == 1 ? i * out->strides[0] : i;
    if (out->dtype.bits == 32) static_cast<float*>(out->data)[at] = {value};
    if (out->dtype.bits == 64) static_cast<double*>(out->data)[at] = {value};
  }}"""


def operator(name: str, shape: dict[str, int], tensors: tuple[Tensor, ...], **fields: Any) -> Operator:
    """An operator whose workload is one problem of that shape; link computes nothing."""
    return Operator(
        name=name,
        dims=tuple(shape),
        tensors=tensors,
        **{
            "reference": lambda xp, call: {},
            "flops": 1,
            "workload": (problem(**shape),),
            "kernels": (Kernel("plain", f"{name}/plain.cpp.j2", generic=True),),
            **fields,
        },
    )


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


def kinds(**changes: Any) -> Operator:
    tensors = (
        Tensor("x", (M, N), "T"),
        Tensor("bias", (N,), "T", optional=True),
        Tensor("mask", (N,), "u8", optional=True),
        Tensor("out", (M,), "S", output=True),
    )
    fields: dict[str, Any] = {
        "dtypes": {"T": ("f32", "f64"), "S": ("f32", "f64")},
        "attributes": (Attribute("causal", ("no", "yes")), Attribute("mode", ("a", "b", "c", "d"))),
        "legal": LEGAL,
    }
    return operator("kinds", {"M": 2, "N": 4}, tensors, **{**fields, **changes})


WHOLE = ("i8", "i16", "i32", "u8", "u16", "u32", "u64")
"""Integers in the order of the operator `all_of_them`, behind a boolean."""
LARGE = 2**53 + 1  # no double

TELL = """
  const double found[] = {single, wide, double(small), double(large >> 32), double(large & 0xffffffff), needed};
  for (int64_t i = 0; i < 6; ++i) static_cast<double*>(out->data)[i * out->strides[0]] = found[i];"""
TELL_ALL = """
  const int64_t found[] = {flag, a, b, c, e, f, g, static_cast<int64_t>(h)};
  for (int64_t i = 0; i < 8; ++i) static_cast<int64_t*>(out->data)[i * out->strides[0]] = found[i];"""
COPY = """
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
  }"""
ROWS = """
  const int64_t bytes = x->dtype.bits / 8, size = x->shape[0] * x->shape[1] * bytes;
  for (int64_t at = 0; at < size; ++at) {
    const int64_t b = at % bytes, j = at / bytes % x->shape[1], i = at / bytes / x->shape[1];
    static_cast<char*>(out->data)[(i * out->strides[0] + j * out->strides[1]) * bytes + b] =
        static_cast<const char*>(x->data)[(i * x->strides[0] + j * x->strides[1]) * bytes + b];
  }"""


def plain_operators() -> list[tuple[Operator, str]]:
    """Those with one generic kernel, and its source."""
    made: list[tuple[Operator, str]] = []

    def add(one: Operator, names: str, scalars: str = "", launch: str = "") -> None:
        tensors = ", ".join(f"const DLTensor *{name}" for name in names.split())
        made.append((one, source(tensors + f", {scalars}" * bool(scalars), launch or fill("7"))))

    def out(*shape: Any, name: str = "out", dtype: str = "f32", **more: Any) -> Tensor:
        return Tensor(name, shape, dtype, output=True, **more)

    x, four = Tensor("x", (N,)), (B, H, M, D)
    add(kinds(), "x bias mask out", "int32_t causal, int32_t mode")
    top = {"scalars": (Scalar("top_k", "i64", binds="K"),), "legal": (K <= N,)}
    tensors: tuple[Tensor, ...] = (Tensor("x", (M, N)), out(M, K))
    add(operator("top", {"M": 4, "N": 4, "K": 4}, tensors, **top), "x out", "int64_t top_k", fill("top_k"))
    tensors = (Tensor("x", (M, 2 * N)), Tensor("scales", (M, ceildiv(N, 128) + 1)), out(M, N))
    add(operator("halves", {"M": 4, "N": 4}, tensors), "x scales out")
    add(operator("resize", {"M": 4, "N": 4}, (Tensor("x", (M,)), out(N))), "x out")
    scalars = (Scalar("n", "i32", binds="N"),)
    add(operator("fill", {"N": 4}, (out(N + 1),), scalars=scalars), "out", "int32_t n", fill("n"))
    tensors = (x, out(N, dtype="T"), out(N, name="other", dtype="T"))
    add(operator("cast", {"N": 4}, tensors, dtypes={"T": ("f32", "f64")}), "x out other")
    scalars = (Scalar("N", "i64", binds="N"),)
    add(operator("both", {"N": 4}, (x, out(N)), scalars=scalars), "x out", "int64_t N", fill("N"))
    scalars = (Scalar("single", "f32", 0.1), Scalar("wide", "f64", 0.1, least=-1.5), Scalar("small", "i32", -3))
    scalars += (Scalar("large", "i64", LARGE, least=-LARGE), Scalar("needed", "f64"))
    told = "float single, double wide, int32_t small, int64_t large, double needed"
    tensors = (Tensor("x", (N,), "f64"), out(N, dtype="f64"))
    add(operator("tell", {"N": 6}, tensors, scalars=scalars), "x out", told, TELL)
    scalars = (Scalar("flag", "bool", True),)
    scalars += tuple(Scalar(f"of_{d}", d, dtype(d).limits[0] if d != "u64" else 2**64 - 1) for d in WHOLE)
    told = "bool flag, int8_t a, int16_t b, int32_t c, uint8_t e, uint16_t f, uint32_t g, uint64_t h"
    tensors = (Tensor("x", (N,), "f64"), out(N, dtype="i64"))
    add(operator("all_of_them", {"N": 8}, tensors, scalars=scalars), "x out", told, TELL_ALL)
    tensors = (out(M * (N // G)), Tensor("x", (M, N)), Tensor("groups", (G,)))
    tensors += (out(next_power_of_2(M + 1), name="padded", optional=True),)
    legal = (where(G == 3, N == 0, N % G == 0),)
    add(operator("pieces", {"M": 2, "N": 4, "G": 2}, tensors, legal=legal), "out x groups padded")
    tensors = (Tensor("x", four), Tensor("like", four), out(*four, layout_of="like"), out(*four, name="plain"))
    add(operator("copy", {"B": 1, "H": 2, "M": 3, "D": 4}, tensors), "x like out plain", launch=COPY)
    tensors = (x, Tensor("places", (M, K), "i32", below=N), out(M))
    add(operator("pick", {"N": 4, "M": 2, "K": 2}, tensors), "x places out")
    tensors = (Tensor("x", (M, D), "T"), out(M, D, dtype="T"))
    rows = operator("rows", {"M": 8, "D": 8}, tensors, dtypes={"T": ("f32", "bf16")}, fold="M")
    add(rows, "x out", launch=ROWS)
    return made


def _plain(folder: Path, operator: Operator, text: str) -> OperatorTable:
    """An operator whose generic kernel, one for each of its dtypes, is that source."""
    variants = []
    for dtypes in operator.dtype_choices(operator.kernels[0]) if operator.dtypes else [{}]:
        name = "_".join(["plain", operator.name, *dtypes.values()])
        variants.append(linked.changed(linked.variant(folder, text, name, generic=True), dtypes=dtypes))
    varying = frozenset(v.name for v in variants if operator.name == "rows")
    return OperatorTable(operator=operator, variants=tuple(variants), varying=varying, uncaptured=varying)


# ---- Generic variants for combinations

APPLY = source("const DLTensor *x, const DLTensor *bias, const DLTensor *out, int32_t mode", fill("MARK"))


def apply(legal: tuple[Expr, ...] = ()) -> Operator:
    tensors = (Tensor("x", (N,)), Tensor("bias", (N,), optional=True), Tensor("out", (N,), output=True))
    return operator("apply", {"N": 4}, tensors, attributes=(Attribute("mode", ("a", "b", "c")),), legal=legal)


def generic(folder: Path, name: str, mark: int, *requires: Expr) -> linked.NamedVariant:
    return linked.variant(folder, APPLY, name, generic=True, requires=requires, mark=str(mark))


def combinations(folder: Path) -> tuple[linked.NamedVariant, ...]:
    """Marks 1, 2 without a bias in mode a or in others, and 11, 12 with one."""
    folder.mkdir(exist_ok=True)
    made = []
    for bias, first in itertools.product((0, 1), (True, False)):
        mode = attribute("mode") == 0 if first else attribute("mode") != 0
        made.append(generic(folder, f"plain_{bias}{int(first)}", 10 * bias + 2 - first, present("bias") == bias, mode))
    return tuple(made)


# ---- Levels of CPUs, and threads


def narrow(folder: Path) -> list[OperatorTable]:
    first = linked_cuda.host_variant(folder, "narrow_f32")
    second = linked_cuda.host_variant(folder, "narrow_bf16", "bf16", level=2)
    lone = linked_cuda.host_variant(folder, "lone_f32")
    rows = {"narrow": (first, second), "lone": (lone,)}
    scale = linked_cuda.operator()
    return [OperatorTable(operator=dataclasses.replace(scale, name=n), variants=v) for n, v in rows.items()]


COUNTED = (
    PRELUDE
    + """
#include <omp.h>
#include <unistd.h>
EXPORT int32_t SYMBOL_workspace(const DLTensor*, const DLTensor*, size_t* size) {
  *size = static_cast<size_t>(omp_get_max_threads()) * 64;
  return 0;
}
EXPORT int32_t SYMBOL_launch(const DLTensor* x, const DLTensor* y, void*, size_t size, void*) {
  int threads = 0;
#pragma omp parallel reduction(+ : threads)
  {
    threads += 1;
    if (*static_cast<const float*>(x->data) == -1 && omp_get_thread_num() > 0) usleep(20000);  // for want of a core
  }
  if (size != static_cast<size_t>(omp_get_max_threads()) * 64) return 90;
  float* const out = static_cast<float*>(y->data);
  for (int64_t i = 0; i < x->shape[0]; ++i) out[i * y->strides[0]] = static_cast<float>(threads);
  return 0;
}
"""
)


def threads(folder: Path) -> OperatorTable:
    counted = linked.variant(folder, COUNTED, "counted", generic=True, flags=["-fopenmp"])
    tuned = (problem(N=4), problem(N=6), problem(N=16))
    alone: tuple[tuple[int, ...], ...] = ((0,), (), ())
    exact, known = ((0,),) * 3, {"tuned": tuned, "alone": alone}
    table = TargetTable(target="cpu-x86-64", level=1, rest=(0,), exact=exact, processors=64, **known)
    tensors = (Tensor("x", (N,)), Tensor("y", (N,), output=True))
    return OperatorTable(operator=operator("threads", {"N": 4}, tensors), variants=(counted,), tables=(table,))


# ---- Choices by nearest problems and by expected times: products of which nobody asks for numbers

GENERIC, FILLS, MEASURED = 0, 1, 2
TUNED, SLOWER = problem(M=8, N=8, K=6), problem(M=32, N=8, K=8)
"""The generic variant was the fastest, and the slowest."""
PLAIN = (("attribute.activation", 0),)
LIKELY = problem(M=24, N=24, K=24)
TILES = {FILLS: Tiling({"M": 8, "N": 8}), MEASURED: Tiling({"M": 64, "N": 32, "K": 16}, 2)}
TARGET: dict[str, Any] = {"target": "cpu-x86-64-v2", "level": 2}


def _product(
    folder: Path,
    name: str,
    table: TargetTable,
    guards: dict[int, tuple[Expr, ...]],
    regimes: dict[str, tuple[Expr, ...]] | None = None,
    worth: tuple[Expr, ...] = (),
) -> OperatorTable:
    """Variants plain, small and packed of an operator. `worth` says which calls packed is meant for."""
    arguments = ", ".join(f"const DLTensor *{n}" for n in ("a", "b", "bias", "residual", "out"))
    variants = tuple(
        msgspec.structs.replace(
            linked.variant(
                folder, source(f"{arguments}, int32_t activation", ""), f"{name}_{own}", level=1 + (number > 0),
                generic=number == GENERIC, requires=guards.get(number, ()),
            ),
            name=own,
        )
        for number, own in enumerate(("plain", "small", "packed"))
    )  # fmt: skip
    named = dataclasses.replace(linked.gemm_operator(), name=name, regimes=regimes or {})
    return OperatorTable(operator=named, variants=variants, tables=(table,), worth={"packed": worth})


def filling_in(folder: Path) -> list[OperatorTable]:
    """small takes up to 100 columns, packed a K of whole fours and a b at whole 16 bytes."""
    guards = {FILLS: (N <= 100,), MEASURED: (K % 4 == 0, alignment("b") >= 16)}
    (terms,) = terms_of(linked.gemm_operator(), {"": None}, 4).values()

    def constant(variant: int, log2: int) -> ExpectedTime:
        model = TimeModel(terms=(0,), weights=(0,), base=4096 * log2 << 16, trees=())
        return ExpectedTime(variant=variant, terms=terms, model=model)

    shape = problem(M=10, N=8, K=8), (GENERIC, MEASURED)
    tables = {"by_nearest": TargetTable(**TARGET, rest=(MEASURED,), surveyed=(shape,))}
    for generic in (9, 11):  # packed is expected to take 2^10 ns
        expected = (constant(GENERIC, generic), constant(MEASURED, 10))
        regimes = (RegimeCalls(rule=Rule("expected")),)
        tables[f"by_times_{generic}"] = TargetTable(**TARGET, expected=expected, regimes=regimes)
    known = {"filling_in": (FILLS,), "tuned": (TUNED, SLOWER), "exact": ((GENERIC,), (MEASURED, GENERIC))}
    worth = {n: (M > 16,) if t.expected else () for n, t in tables.items()}
    return [_product(folder, n, dataclasses.replace(t, **known), guards, worth=worth[n]) for n, t in tables.items()]


def some_problems(count: int, seed: int) -> list[Problem]:
    draw = random.Random(seed)

    def extent() -> int:
        return max(1, round(2 ** draw.uniform(0, 14))) if draw.random() < 0.5 else 16 * draw.randint(1, 200)

    return [problem(M=extent(), N=extent(), K=extent()) for _ in range(count)]


def _learned(op: Operator, variant: int, *regimes: str, vendor: bool = False) -> ExpectedTime:
    """From times that have something of blocks and something of chance."""
    problems = some_problems(200, 1)
    (terms,) = terms_of(op, {variant: TILES[variant]}, 4).values()
    draw = random.Random(variant)
    logs = []
    for p in problems:
        m, n, k = (p.dims[d] for d in "MNK")
        work = -(-m // 64) * -(-n // 32) * k * 2048 if variant == MEASURED else 1.3 * m * n * k
        logs.append(round(4096 * np.log2(100 + work / 50 * draw.uniform(0.9, 1.1))))
    columns = columns_of(terms, Calls([op.facts(p) for p in problems]))
    times = Times([p.id for p in problems], columns, np.array(logs), np.full(len(logs), 32), terms.form)
    model, regimes_of = learn_times({"it": times})["it"], frozenset(regimes)
    return ExpectedTime(variant=variant, facts=PLAIN, terms=terms, model=model, regimes=regimes_of, vendor=vendor)


def likely(folder: Path) -> OperatorTable:
    """Regimes of all three rules, one in which a variant was not timed, and one of which nothing is known."""
    op = linked.gemm_operator()
    expected = (_learned(op, FILLS, "few", "short", "narrow", vendor=True), _learned(op, MEASURED, "few", "short"))
    judged = Judged({"M=1 N=1 K=1": 0.0124, "M=2 N=1 K=1": 0.5})
    rules = {"near": Rule("nearest"), "few": Rule("expected", 300, judged), "short": Rule("vendor", UNLIMITED)}
    rules["narrow"] = Rule("expected")
    draw = random.Random(9)
    near = [p for p in some_problems(60, 8) if p.dims["M"] > 512]
    ranked = [tuple(draw.sample(range(3), draw.randint(1, 3))) for _ in near]
    table = TargetTable(
        **TARGET,
        tuned=(LIKELY,),
        exact=((MEASURED, FILLS),),
        surveyed=tuple(zip(near, ranked, strict=True)),
        expected=expected,
        regimes=tuple(RegimeCalls(facts=PLAIN, regime=name, rule=rule) for name, rule in rules.items()),
    )
    regimes = {"near": (M > 512,), "few": (M <= 256, N > 1), "short": (K <= 64,), "narrow": (N <= 1000,)}
    refusing = (M <= 256) | (K <= 64) | (N % 2 == 0)  # in the regime in which only one variant was timed
    return _product(folder, "likely", table, {FILLS: (refusing,), MEASURED: (stride("b", 1) == 1, K % 4 == 0)}, regimes)


def some_calls(count: int, seed: int) -> list[Problem]:
    """Problems of all forms: with and without a bias, an activation, another order of b."""
    draw = random.Random(seed)
    return [
        problem(
            **{d: draw.choice((1, 2, 3, 4, 6, 8, 16, 24, 32, 100, 128, 200)) for d in "MNK"},
            order=draw.choice(({}, {"b": (1, 0)})),
            present=draw.choice(((), (), ("bias",))),
            attributes=draw.choice(({}, {"activation": "relu"})),
        )
        for _ in range(count)
    ]


def near(folder: Path) -> OperatorTable:
    """Some problems were tuned and some surveyed. On each, some of the variants were timed."""
    draw = random.Random(3)
    problems = {linked.gemm_operator().facts(p)["M"]: p for p in some_calls(200, 4)}
    ranked = [tuple(draw.sample(range(3), draw.randint(1, 3))) for _ in problems]
    rows = list(zip(problems.values(), ranked, strict=True))
    table = TargetTable(
        **TARGET,
        rest=(FILLS, GENERIC),
        tuned=tuple(p for p, _ in rows[::2]),
        exact=tuple(variants for _, variants in rows[::2]),
        surveyed=tuple(rows[1::2]),
    )
    guards = {FILLS: (N <= 100,), MEASURED: (stride("b", 1) == 1, K % 4 == 0)}
    return _product(folder, "near", table, guards, worth=(M > 16,))


GROW = """
  for (int64_t i = 0; i < x->shape[0]; ++i) static_cast<float*>(x->data)[i * x->strides[0]] += 1;"""


def grow(folder: Path) -> OperatorTable:
    """Two variants that add 1 to each element of their input."""
    names, tensors = ("grow_1", "grow_2"), (Tensor("x", (N,), inout=True),)
    text = source("const DLTensor *x", GROW)
    variants = tuple(linked.variant(folder, text, name, generic=name == "grow_1") for name in names)
    table = TargetTable(target="cpu-x86-64", level=1, rest=(0, 1))
    return OperatorTable(operator=operator("grow", {"N": 4}, tensors), variants=variants, tables=(table,))


def library_spec(folder: Path) -> LibrarySpec:
    folder.mkdir(parents=True, exist_ok=True)
    tables = [_plain(folder, operator, text) for operator, text in plain_operators()]
    fast = linked.variant(folder, APPLY, "fast_1", requires=(dim("N") % 8 == 0,), mark="50")
    tables.append(OperatorTable(operator=apply(), variants=(*combinations(folder / "apply"), fast)))
    tables += [*narrow(folder), threads(folder), *filling_in(folder), likely(folder), near(folder), grow(folder)]
    return LibrarySpec(output="odd_ops", operators=tuple(tables))
