"""What type checkers say of calls with arrays of numpy and of torch; it also runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import ops
import torch
from typing_extensions import assert_type

if TYPE_CHECKING:
    from ops import Tensor

Floats = npt.NDArray[np.float32]


class Own:
    def __init__(self, array: Floats) -> None:
        self._array = array

    def __dlpack__(self, *, stream: int | None = None) -> object:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def product(a: Tensor, b: Tensor) -> Tensor:
    return ops.gemm(a, b)


def on_a_stream(x: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    return ops.rms_norm(x, x[0], stream=stream, workspace=torch.empty(64, dtype=torch.uint8))


def main() -> None:
    a: Floats = np.ones((2, 3), np.float32)
    b: Floats = np.ones((3, 4), np.float32)
    out: Floats = np.empty((2, 4), np.float32)
    assert_type(ops.gemm(a, b), Floats)
    assert_type(ops.gemm(a, b, None, out, activation="relu", workspace=None), Floats)
    assert_type(ops.gemm(a, b, out=out), Floats)
    residual: Floats | None = None
    assert_type(ops.gemm(a, b, residual=residual), Floats)

    x, weight = torch.ones(2, 3), torch.ones(3)
    assert_type(ops.gemm(x, weight.view(3, 1), out=torch.empty(2, 1)), torch.Tensor)
    assert_type(ops.rms_norm(x, weight), torch.Tensor)
    assert_type(ops.rms_norm(x, weight, eps=1, residual_out=None), torch.Tensor)
    y, total = ops.rms_norm(x, weight, x, residual_out=True)
    assert_type(total, torch.Tensor)
    assert_type(ops.rms_norm(x, weight, x, out=y, residual_out=total), tuple[torch.Tensor, torch.Tensor])
    ops.rms_norm(torch.nn.Parameter(x, requires_grad=False), weight, stream=0)

    product(a, x.T)
    product(Own(a), b)
    activation: Literal["none", "relu"] = "relu"
    ops.gemm(a, b, activation=activation)
    names: list[str] = []
    for name in ops.operators:
        assert_type(name, Literal["gemm", "rms_norm"])
        names.append(name)
    assert_type(ops.is_tuned("gemm", M=1, N=2, K=3), bool)
    assert_type(ops.is_tuned(names[0], a, b, None, residual=None), bool)
    print(ops.explain("gemm", a, b)["variant"], ops.manifest()["library"])
    ops.preload("cpu")
    ops.set_num_threads(0)
    assert_type(ops.get_num_threads(), int)
    try:
        ops.gemm(a, a)
    except ops.ArgumentValueError as error:
        assert_type(error, ops.ArgumentValueError)
        refused: ops.Error = error
        print(refused)


if __name__ == "__main__":
    main()
