"""Outputs that a call makes: of the framework that its first tensor is of, and with the layout of an input."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from dltensors import OnDevice


@pytest.fixture
def copy(odd_ops: Any) -> Callable[..., Any]:
    """A function that copies rows of f32 or bf16."""
    function: Callable[..., Any] = odd_ops.rows
    return function


class Framework:
    """The functions of a framework of its own, as the array API has them; bf16 beside."""

    float32, bfloat16 = "own f32", "own bf16"

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def empty(self, shape: tuple[int, ...], *, dtype: object, device: object) -> OwnArray:
        self.asked.append((shape, dtype, device))
        return OwnArray(np.empty(shape, {"own f32": "f4", "own bf16": "u2"}[str(dtype)]), self)


class OwnArray(OnDevice):
    def __init__(self, array: np.ndarray, framework: Framework) -> None:
        super().__init__(array, (1, 0), 4 if array.dtype == np.uint16 else 2)
        self.framework = framework
        self.device = "here"  # type: ignore[assignment]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __array_namespace__(self, api_version: str | None = None) -> Framework:
        del api_version
        return self.framework


@pytest.mark.parametrize(("kind", "dtype"), [("f4", "own f32"), ("u2", "own bf16")])
def test_a_framework_is_asked_by_the_names_that_it_has(copy: Callable[..., Any], kind: str, dtype: str) -> None:
    for shape in ((4, 6), (6,), (2, 3, 6)):
        own = Framework()
        x = np.arange(np.prod(shape)).reshape(shape).astype(kind)
        made = copy(OwnArray(x, own))
        assert own.asked == [(shape, dtype, "here")]
        assert isinstance(made, OwnArray)
        np.testing.assert_array_equal(made.array, x)


def test_others_get_arrays_of_numpy_on_the_cpu_alone(copy: Callable[..., Any]) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert type(copy(OnDevice(x, (1, 0)))) is np.ndarray
    with pytest.raises(TypeError, match="pass out=, a tensor of a framework that has that dtype and device"):
        copy(OnDevice(x, (2, 0)), stream=0)
    with pytest.raises(TypeError, match="pass out=, a tensor of a framework that has that dtype and device"):
        copy(OnDevice(x.view(np.uint16), (1, 0), 4))


def test_numpy_makes_what_a_dtype_of_another_package_needs(copy: Callable[..., Any]) -> None:
    """FAULTS.md, row 94: of ml_dtypes, which JAX brings."""
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4).astype(bfloat16)
    for given in (x, x[..., ::2], x.view(np.recarray)):
        made = copy(given)
        assert (type(made), made.dtype, made.shape) == (np.ndarray, x.dtype, given.shape)
        np.testing.assert_array_equal(made, given)
    with pytest.raises(TypeError, match="'x' has dtype float8_e5m2, wanted"):
        copy(x.astype(pytest.importorskip("ml_dtypes").float8_e5m2))


def test_jax_makes_its_own(copy: Callable[..., Any]) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    for turn, dtype in enumerate(["float32", "bfloat16"] * 5):
        x = jax.numpy.arange(24, dtype=dtype).reshape(2, 3, 4) + turn
        made = copy(x)
        assert (type(made), made.dtype, made.shape) == (type(x), x.dtype, x.shape)
        assert bool((made == x).all())


SHAPE = (2, 3, 4, 5)


def made(order: tuple[int, ...], shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Numbers whose axes are in memory in an order, slowest first."""
    inverse = [order.index(axis) for axis in range(4)]
    return torch.randn([shape[axis] for axis in order]).permute(inverse)


def test_axes_lie_as_those_of_the_input(odd_ops: ModuleType) -> None:
    for order in itertools.permutations(range(4)):
        x, like = torch.randn(SHAPE), made(order)
        assert like.shape == SHAPE
        out, plain = odd_ops.copy(x, like)
        assert torch.equal(out, x)
        assert torch.equal(plain, x)
        assert (out.stride(), plain.stride()) == (like.stride(), x.stride())
        out, plain = odd_ops.copy(x.numpy(), like.numpy())
        assert isinstance(out, np.ndarray)
        np.testing.assert_array_equal(out, x.numpy())
        assert (out.strides, plain.strides) == (like.numpy().strides, x.numpy().strides)


def test_gaps_are_left_out_and_reversed_axes_are_not_reversed(odd_ops: ModuleType) -> None:
    x = torch.randn(SHAPE)
    wide = torch.randn(2, 4, 3, 11).transpose(1, 2)[..., 2:7]
    assert odd_ops.copy(x, wide)[0].stride() == (60, 5, 15, 1)
    turned = made((0, 2, 1, 3)).numpy()[:, ::-1]
    assert [s // 4 for s in odd_ops.copy(x.numpy(), turned)[0].strides] == [60, 5, 15, 1]
