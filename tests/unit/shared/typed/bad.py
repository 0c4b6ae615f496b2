"""Calls that type checkers refuse, each in a line that ends in `# wrong`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import ops
import torch

a: npt.NDArray[np.float32] = np.ones((2, 3), np.float32)
x, weight = torch.ones(2, 3), torch.ones(3)

ops.gemm(a)  # wrong
ops.gemm([[1.0]], a)  # wrong
ops.gemm(a, None)  # wrong
ops.gemm(a, a, activation="gelu")  # wrong
ops.gemm(a, a, alpha=2)  # wrong
ops.gemm(a, a, None, None, a)  # wrong
ops.gemm(a, a, stream="default")  # wrong
ops.rms_norm(x, weight, eps="small")  # wrong
print(ops.rms_norm(x, weight)[0].foo)  # wrong
y, total = ops.rms_norm(x, weight, residual_out=1)  # wrong
ops.is_tuned()  # wrong
ops.is_tuned(operator="gemm")  # wrong
ops.preload()  # wrong
ops.softmax(x)  # wrong
ops.set_num_threads("4")  # wrong
ops.set_num_threads(threads=4)  # wrong
