"""An operator: what is computed, with everything needed to call, verify, time and tune it."""

from __future__ import annotations

from dataclasses import dataclass

from aot_tune.spec.check_operator import check_operator
from aot_tune.spec.operator_fields import OperatorFields

__all__ = ["Operator"]


@dataclass(frozen=True, kw_only=True)
class Operator(OperatorFields):
    """An operator and its kernels. It is checked as a whole when it is made.

    Args:
        name: unique in a library. The C function is `<prefix>_<name>`.
        dims: names of the symbolic dims. Each is bound by the shape of a tensor that is always present, or by an
            integer.
        tensors: inputs and outputs in the order of the C arguments.
        scalars, attributes: further arguments, in order.
        reference: `reference(xp, call)` returns a dict of output name to array. It computes with array-API functions of
            `xp`, in the dtype of the arrays that it gets: float64 for the truth, the operator's own dtypes for the
            tolerance.
        flops: number of floating-point operations of a problem.
        epilogue: what `store_output` applies to one output.
        fragments: formulas that kernels apply by name, such as a change of attention scores.
        workload: problems worth tuning: a tuple, or one tuple for each family of devices (`cpu`, `cuda`).
        dtypes: dtype variables that tensors name, with their choices. The first choice is the default.
        checks: problems to verify, in addition to the workload and to derived odd problems.
        ranges: dim to the least and the largest extent that calls are expected to have. Without it, the range is from
            half the least to twice the largest extent of the workload. Surveys draw shapes from it.
        expected: further conditions that calls are expected to meet, such as `H % HK == 0`. Surveys draw only such
            shapes. Other calls work as well.
        tolerance: how many times the yardstick's error a result may be off, 4 by default. It is a number, `off_by` for
            integers, or a dict of output to one of them. The yardstick is the reference, computed as kernels of these
            dtypes do: products are accumulated in f32, and each intermediate result is rounded.
        intermediates: the dtype that intermediate results are rounded to in the yardstick, such as "f32". The default
            is the narrowest floating dtype among the tensors.
        baselines: what users would call otherwise.
        legal: conditions over dims, strides, alignments, presence, attributes and dtypes that every call must meet,
            such as `stride("x", 1) == 1`. Other calls get an error. All kernels may rely on the conditions, the generic
            ones too.
        exact: declares that results on small integers are exact in any order of summation. Candidates are verified so
            too.
        deterministic: whether equal calls must give equal bits. Then a candidate whose repeated runs differ is wrong.
        kernels: at least one kernel, and exactly one generic kernel for each backend that has generic variants.
        documentation: what it computes, for `help` and the C header.
        fold: a dim that stands for any number of leading dims in Python. With `fold="R"`, a call takes an x of shape
            [2, 3, D], or [D], where (R, D) is declared, and makes outputs alike. This holds for all tensors that have
            the dim as their first axis.
        folder: the folder with the files of `from_file`. It is set when the operator is loaded.
        weights: how much each problem of the workload counts, by id, 1 by default. It is set from AOT_TUNE_WORKLOAD.
    """

    def _check(self) -> None:
        check_operator(self)
