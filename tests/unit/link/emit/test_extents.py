"""Extents that are computed from others, where that divides by zero, overflows, or needs more than arithmetic."""

from __future__ import annotations

import ctypes
from types import ModuleType

import linked
import numpy as np
import pytest
from linked_cuda import OnDevice

from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.spec import Kernel, Operator, Tensor, dims, next_power_of_2, problem, where

M, N, G = dims("M N G")

SOURCE = (
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


def _reference(_xp: object, _call: object) -> dict[str, object]:
    raise AssertionError("link computes nothing")


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A library whose `out` has M * (N // G) elements."""
    folder = tmp_path_factory.mktemp("extents")
    operator = Operator(
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
    table = OperatorTable(operator=operator, variants=(linked.variant(folder, SOURCE, "plain_pieces", generic=True),))
    return linked.load_module(linked.link_library(LibrarySpec(output="pieces", operators=(table,)), folder).module)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_extents_are_computed(ops: ModuleType) -> None:
    assert ops.pieces(zeros(3, 4), zeros(2)).tolist() == [7] * 6
    out, padded = ops.pieces(zeros(3, 4), zeros(2), padded=True)
    assert (out.shape, padded.shape) == ((6,), (4,))
    assert ops.pieces(zeros(0, 4), zeros(2)).shape == (0,)
    with pytest.raises(ValueError, match=r"axis 0 has extent 5, wanted \(M \* \(N // G\)\) = 6"):
        ops.pieces(zeros(3, 4), zeros(2), out=zeros(5))
    with pytest.raises(ValueError, match=r"where\(\(G == 3\), \(N == 0\), \(\(N % G\) == 0\)\) must hold"):
        ops.pieces(zeros(3, 5), zeros(2), out=zeros(6))


def test_an_input_of_a_wrong_rank_is_told_before_the_output_that_it_should_size(ops: ModuleType) -> None:
    with pytest.raises(ops.ArgumentValueError, match=r"'x' has 1 axes, wanted 2"):
        ops.pieces(zeros(3), zeros(2))


def test_a_division_by_zero(ops: ModuleType) -> None:
    with pytest.raises(ops.ArgumentValueError, match="output 'out' has no shape here: an extent is negative, divides"):
        ops.pieces(zeros(3, 4), zeros(0))
    told = r"'out': axis 0 wanted \(M \* \(N // G\)\) as in \[\(M \* \(N // G\)\)\], which divides by zero here"
    with pytest.raises(ops.ArgumentValueError, match=told):
        ops.pieces(zeros(3, 4), zeros(0), out=zeros(6))
    for ask in (ops.is_tuned, ops.explain):
        with pytest.raises(ops.ArgumentValueError, match="'out': axis 0 has the extent -1"):
            ask("pieces", M=3, N=4, G=0)


def test_an_extent_that_exceeds_64_bits(ops: ModuleType) -> None:
    """A broadcast tensor of 2^62 + 1 rows of 4 is small, and the product of its extents is 4 in 64 bits."""
    wide = OnDevice(zeros(3, 4), (1, 0))
    wide.shape[0] = 2**62 + 1
    wide.strides[:] = (ctypes.c_int64 * 2)(0, 1)
    out = zeros(4)
    with pytest.raises(ops.ArgumentValueError, match="needs more than 64 bits"):
        ops.pieces(wide, zeros(1), out=out)
    assert out.tolist() == [0] * 4
    with pytest.raises(ops.ArgumentValueError, match="needs more than 64 bits"):
        ops.pieces(wide, zeros(1))
