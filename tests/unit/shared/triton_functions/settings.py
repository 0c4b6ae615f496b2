"""A module that sets a variable of Triton when it is imported, as packages do: for all kernels of the process."""

# ruff: noqa: N803 - constexprs are written in capitals

import os

import triton
import triton.language as tl

os.environ["TRITON_F32_DEFAULT"] = "ieee"


@triton.jit
def exact(a, BLOCK: tl.constexpr):
    at = a + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(at, tl.dot(tl.load(at), tl.load(at)))
