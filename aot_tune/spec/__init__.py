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
    device,
    dim,
    dims,
    dtype_index,
    maximum,
    minimum,
    next_power_of_2,
    parameter,
    present,
    stride,
    target,
    where,
)
from aot_tune.spec.kernel import Config, ConfigValue, Kernel, Parameter, among, table
from aot_tune.spec.operator import Baseline, Call, Operator
from aot_tune.spec.problem import DEFAULT_ALIGNMENT, Problem, problem
from aot_tune.spec.strides import canonical_strides, row_major
from aot_tune.spec.targets import Target
from aot_tune.spec.tensors import Attribute, Generator, Scalar, Tensor, normal, uniform
from aot_tune.spec.trace import trace
from aot_tune.spec.triton import (
    OPTIONS,
    Buffer,
    Descriptor,
    DTypeOf,
    Inspection,
    KernelArgument,
    KernelParameter,
    TritonFunction,
)

__all__ = [
    "DEFAULT_ALIGNMENT",
    "DTYPES",
    "OPTIONS",
    "Activate",
    "AddTensor",
    "Attribute",
    "Baseline",
    "Buffer",
    "Call",
    "Config",
    "ConfigValue",
    "DType",
    "DTypeOf",
    "Descriptor",
    "Epilogue",
    "Expr",
    "Facts",
    "Generator",
    "Inspection",
    "Kernel",
    "KernelArgument",
    "KernelParameter",
    "Operator",
    "Parameter",
    "Problem",
    "Scalar",
    "Target",
    "Tensor",
    "TritonFunction",
    "alignment",
    "all_of",
    "among",
    "attribute",
    "canonical_strides",
    "ceildiv",
    "device",
    "dim",
    "dims",
    "dtype",
    "dtype_index",
    "maximum",
    "minimum",
    "next_power_of_2",
    "normal",
    "parameter",
    "present",
    "problem",
    "row_major",
    "stride",
    "table",
    "target",
    "trace",
    "uniform",
    "where",
]
