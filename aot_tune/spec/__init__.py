"""What kernel authors write: operators, tensors, kernels, parameter spaces and workloads, checked on entry."""

from __future__ import annotations

from aot_tune.spec.dtypes import DTYPES, DType, dtype
from aot_tune.spec.epilogue import Activate, AddTensor, Epilogue
from aot_tune.spec.expr import (
    Expr,
    Facts,
    alignment,
    all_of,
    attribute,
    ceildiv,
    dim,
    dims,
    dtype_index,
    maximum,
    minimum,
    parameter,
    present,
    stride,
    target,
)
from aot_tune.spec.kernel import Config, ConfigValue, Kernel, Parameter, table
from aot_tune.spec.operator import Baseline, Call, Operator
from aot_tune.spec.problem import DEFAULT_ALIGNMENT, Problem, problem
from aot_tune.spec.strides import canonical_strides, row_major
from aot_tune.spec.targets import Target
from aot_tune.spec.tensors import Attribute, Generator, Scalar, Tensor, normal, uniform

__all__ = [
    "DEFAULT_ALIGNMENT",
    "DTYPES",
    "Activate",
    "AddTensor",
    "Attribute",
    "Baseline",
    "Call",
    "Config",
    "ConfigValue",
    "DType",
    "Epilogue",
    "Expr",
    "Facts",
    "Generator",
    "Kernel",
    "Operator",
    "Parameter",
    "Problem",
    "Scalar",
    "Target",
    "Tensor",
    "alignment",
    "all_of",
    "attribute",
    "canonical_strides",
    "ceildiv",
    "dim",
    "dims",
    "dtype",
    "dtype_index",
    "maximum",
    "minimum",
    "normal",
    "parameter",
    "present",
    "problem",
    "row_major",
    "stride",
    "table",
    "target",
    "uniform",
]
