"""An operator: what is computed, with everything needed to call, verify, time and tune it."""

from __future__ import annotations

from dataclasses import dataclass

from aot_tune.spec.check_operator import check_operator
from aot_tune.spec.operator_fields import OperatorFields

__all__ = ["Operator"]


@dataclass(frozen=True, kw_only=True)
class Operator(OperatorFields):
    """An operator and its kernels; checked as a whole when it is made.

    Args:
        name: unique in a library; the C function is `<prefix>_<name>`.
        dims: names of the symbolic dims, each bound by the shape of a tensor that is always present, or by an integer.
        tensors: inputs and outputs in the order of the C arguments.
        scalars, attributes: further arguments, in order.
        reference: `reference(xp, call)` returns a dict of output name to array, computed by array-API functions of `xp`
            in the dtype of the arrays it is given (float64 for the truth, the operator's own for the tolerance).
        flops: floating-point operations of a problem.
        epilogue: applied by `store_output` to one output.
        fragments: formulas that kernels apply by their names, such as a change of the scores of attention.
        workload: problems worth tuning: a tuple, or one by family of devices (`cpu`, `cuda`).
        dtypes: dtype variables that tensors name, with their choices; the first is the default.
        checks: problems to verify beside those of the workload and the derived odd ones.
        ranges: dim to the least and the largest extent that calls are expected to have; without, half the least and
            twice the largest of the workload. Surveys draw shapes from them.
        expected: what calls are expected to meet beside that, such as `H % HK == 0`. Surveys draw no other shapes;
            other calls are answered all the same.
        tolerance: how many times the error of the yardstick a result may be off, 4 by default: a number, `off_by` for
            integers, or a dict of output to one of them. The yardstick is the reference computed as kernels of these
            dtypes do: products accumulated in f32, and each intermediate result rounded.
        intermediates: the dtype that intermediate results are rounded to in the yardstick, such as "f32"; by default
            the narrowest floating dtype among the tensors.
        baselines: what users would call otherwise.
        legal: over dims, strides, alignments, presence, attributes and dtypes: what every call must meet, such as
            `stride("x", 1) == 1`.
            Other calls get an error; all kernels, the generic ones too, may rely on it.
        exact: that on small integers results are exact in any order of summation; candidates are verified so too.
        deterministic: whether equal calls must give equal bits: a candidate whose repeated runs differ is wrong.
        kernels: exactly one of them generic per backend that has generic variants, and at least one in all.
        documentation: what it computes, for `help` and the C header.
        fold: a dim that stands for any number of leading dims in Python: with `fold="R"`, a call takes x of shape
            [2, 3, D], or [D], for one declared (R, D), and makes outputs of that kind. It is so of all tensors that
            have the dim as their first axis.
        folder: where files of `from_file` are; set when the operator is loaded.
        weights: how much problems of the workload count, by their ids, 1 by default; set from AOT_TUNE_WORKLOAD.
    """

    def _check(self) -> None:
        check_operator(self)
