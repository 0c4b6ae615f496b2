"""Outputs that are made with the layout of an input: by numpy and by torch, of any order of axes."""

from __future__ import annotations

import gc
import itertools
import weakref
from types import ModuleType

import linked
import numpy as np
import pytest
import torch

from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

B, H, M, D = dims("B H M D")

SOURCE = (
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


def _reference(_xp: object, _call: object) -> dict[str, object]:
    raise AssertionError("link computes nothing")


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A library whose `out` is a copy of `x` with the layout of `like`, and `plain` one without."""
    folder = tmp_path_factory.mktemp("layouts")
    shape = (B, H, M, D)
    operator = Operator(
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
    table = OperatorTable(operator=operator, variants=(linked.variant(folder, SOURCE, "plain_copy", generic=True),))
    return linked.load_module(linked.link_library(LibrarySpec(output="copy", operators=(table,)), folder).module)


SHAPE = (2, 3, 4, 5)
ORDERS = list(itertools.permutations(range(4)))


def made(order: tuple[int, ...], shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Numbers whose axes are in memory in an order, slowest first."""
    inverse = [order.index(axis) for axis in range(4)]
    return torch.randn([shape[axis] for axis in order]).permute(inverse)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_axes_lie_as_those_of_the_input(ops: ModuleType, order: tuple[int, ...]) -> None:
    x, like = torch.randn(SHAPE), made(order)
    assert like.shape == SHAPE
    out, plain = ops.copy(x, like)
    assert torch.equal(out, x)
    assert torch.equal(plain, x)
    assert (out.stride(), plain.stride()) == (like.stride(), x.stride())
    out, plain = ops.copy(x.numpy(), like.numpy())
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, x.numpy())
    assert (out.strides, plain.strides) == (like.numpy().strides, x.numpy().strides)


def test_gaps_are_left_out_and_reversed_axes_are_not_reversed(ops: ModuleType) -> None:
    x = torch.randn(SHAPE)
    wide = torch.randn(2, 4, 3, 11).transpose(1, 2)[..., 2:7]
    assert ops.copy(x, wide)[0].stride() == (60, 5, 15, 1)
    turned = made((0, 2, 1, 3)).numpy()[:, ::-1]
    assert [s // 4 for s in ops.copy(x.numpy(), turned)[0].strides] == [60, 5, 15, 1]


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 5), (1, 1, 1, 1), (2, 0, 4, 5)])
def test_axes_of_one_element_have_no_place(ops: ModuleType, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    out = ops.copy(x, made((0, 2, 1, 3), shape))[0]
    assert torch.equal(out, x)
    assert out.transpose(1, 2).is_contiguous()


def test_of_a_broadcast_input_it_is_row_major(ops: ModuleType) -> None:
    x = torch.randn(SHAPE)
    for like in (torch.randn(1, 3, 1, 5).expand(SHAPE), torch.randn(2, 1, 3, 5).transpose(1, 2).expand(SHAPE)):
        assert ops.copy(x, like)[0].is_contiguous()


def test_what_is_passed_stays_as_it_is(ops: ModuleType) -> None:
    x, out = torch.randn(SHAPE), torch.empty(SHAPE)
    assert ops.copy(x, made((3, 2, 1, 0)), out=out)[0] is out
    assert torch.equal(out, x)


def test_memory_is_given_back(ops: ModuleType) -> None:
    x, like = torch.randn(SHAPE), made((0, 2, 1, 3))
    for given in ((x, like), (x.numpy(), like.numpy())):
        out = ops.copy(*given)[0]
        gone = weakref.ref(out if isinstance(out, torch.Tensor) else out.base)
        del out
        gc.collect()
        assert gone() is None
    kept = [ops.copy(x, like)[0] for _ in range(100)]
    del like
    assert all(torch.equal(one, x) for one in kept)
