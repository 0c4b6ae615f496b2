"""Results of PyTorch's TunableOp, or calls that it recorded for tuning, as problems of gemm and batched_gemm.

Each line has a call of BLAS: C = op(A) op(B). All three are column-major; op(A) is m x k and op(B) is k x n. Read as
row-major, the same memory is out = a b with M = n and N = m: a is in B, and b is in A.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import msgspec

from aot_tune.spec import Problem, problem
from aot_tune.support.errors import SpecError
from aot_tune.workloads.mapped_calls import MappedCalls

_OPERATION = re.compile(r"(Gemm|GemmAndBias|GemmStridedBatched|ScaledGemm)TunableOp_(\S+)_[NTC]{2}")
_PARAMETERS = re.compile(r"([ntc])([ntc])_(\d+)_(\d+)_(\d+)(?:_B_(\d+))?(?:_ld_(\d+)_(\d+)_(\d+))?")
_DTYPES = {"float": ("f32", {}), "tf32": ("f32", {"math": "tf32"}), "BFloat16": ("bf16", {}), "Half": ("f16", {})}


class BlasCall(msgspec.Struct, frozen=True, kw_only=True):
    """A product in the form that BLAS takes. The matrices of a batch follow each other in memory."""

    transposed_a: bool
    transposed_b: bool
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    batch: int | None = None


def map_tunableop(text: str, name: str, calls: MappedCalls) -> None:
    """Count the calls of a CSV file, with weight 1: it has no counts. Raises SpecError with the line."""
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not row or row[0] == "Validator":
            continue
        operation = _OPERATION.fullmatch(row[0])
        if operation is None or len(row) < 2:
            raise SpecError(
                f"{name}:{number}: {','.join(row)[:80]!r} is not a line of TunableOp's results",
                why="lines begin with Validator, or with the name of an operation, such as GemmTunableOp_float_NT",
                fix="name a file that TunableOp wrote (PYTORCH_TUNABLEOP_FILENAME), such as tunableop_results0.csv",
            )
        kind, dtype = operation.groups()
        if kind == "ScaledGemm" or dtype not in _DTYPES:
            calls.leave(row[0], "no bundled operator has such dtypes, or scales")
            continue
        call = _call(row[1], kind, f"{name}:{number}")
        operator, asked = blas_problem(call, dtype=_DTYPES[dtype][0], bias=kind == "GemmAndBias", **_DTYPES[dtype][1])
        calls.add(row[0], operator, asked)


def _call(text: str, kind: str, where: str) -> BlasCall:
    parameters = _PARAMETERS.fullmatch(text)
    if parameters is None or (parameters[6] is not None) != (kind == "GemmStridedBatched"):
        raise SpecError(
            f"{where}: {text!r} are not parameters of {kind}",
            why="the form is tn_M_N_K_ld_LDA_LDB_LDC; a batch has _B_ and its number of matrices before _ld_",
            fix="record the file again, or remove the line",
        )
    if "c" in (parameters[1], parameters[2]):
        raise SpecError(f"{where}: {text!r} is conjugated, but there are only real numbers", fix="remove the line")
    across, down = parameters[1] == "t", parameters[2] == "t"
    m, n, k = (int(parameters[i]) for i in (3, 4, 5))
    dense = (k if across else m, n if down else k, m)
    lda, ldb, ldc = dense if parameters[7] is None else (int(parameters[i]) for i in (7, 8, 9))
    _check_leading((lda, ldb, ldc), dense, f"{where}: {text!r}")
    return BlasCall(
        transposed_a=across, transposed_b=down, m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc,
        batch=None if parameters[6] is None else int(parameters[6]),
    )  # fmt: skip


def _check_leading(given: Sequence[int], dense: Sequence[int], what: str) -> None:
    for name, leading, rows in zip(("lda", "ldb", "ldc"), given, dense, strict=True):
        if leading < rows:
            raise SpecError(
                f"{what}: {name} is {leading}, but a column of that matrix has {rows} elements",
                fix="record the file again, or remove the line",
            )


def blas_problem(call: BlasCall, *, dtype: str, bias: bool = False, math: str = "ieee") -> tuple[str, Problem]:
    """The operator and the problem that equal this call of BLAS, on the same memory."""
    a = (1, call.ldb) if call.transposed_b else (call.ldb, 1)
    b = (1, call.lda) if call.transposed_a else (call.lda, 1)
    strides = {"a": a, "b": b, "out": (call.ldc, 1)}
    attributes = {"math": math} if math != "ieee" else {}
    present = ("bias",) if bias else ()
    if call.batch is None:
        return "gemm", problem(
            M=call.n, N=call.m, K=call.k, strides=strides, present=present, attributes=attributes, dtypes={"T": dtype}
        )
    leading = {"a": call.ldb, "b": call.lda, "out": call.ldc}
    columns = {
        "a": call.k if call.transposed_b else call.n,
        "b": call.m if call.transposed_a else call.k,
        "out": call.n,
    }
    batched = {name: (leading[name] * columns[name], *strides[name]) for name in strides}
    return "batched_gemm", problem(
        B=call.batch, M=call.n, N=call.m, K=call.k, strides=batched, attributes=attributes, dtypes={"T": dtype}
    )
