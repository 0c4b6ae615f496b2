"""Attention of vendors' libraries."""

from __future__ import annotations

from aot_tune.spec import Expr, Kernel, Problem, alignment, attribute, dims, present, stride

B, H, HK, M, N, D = dims("B H HK M N D")

_TENSORS = ("q", "k", "v", "out")
_OUTER: tuple[Expr, ...] = tuple(stride(t, axis) for t in _TENSORS for axis in range(3))


def no_algorithms(problem: Problem) -> None:
    """The library tells of no algorithms: its heuristic alone chooses."""
    del problem


CUDNN = Kernel(
    "cudnn",
    "flash_attention/vendor/cudnn.cpp.j2",
    backend="cudnn",
    algorithms=no_algorithms,
    dtypes={"T": ("bf16", "f16")},
    follows={"f16": "bf16"},
    # A plan takes 35 ms for each new shape. Keys that grow with every token would make one for each.
    worthwhile=(M > 32,),
    requires=(
        (present("mask") == 0) & (present("bias") == 0),
        B * H * HK * M * N > 0,
        # Beyond these the library has no plan, on any device.
        H % HK == 0,
        (D % 8 == 0) & (D <= 256),
        *(stride(t, 3) == 1 for t in _TENSORS),
        *(s % 8 == 0 for s in _OUTER),
        *(s > 0 for s in _OUTER),
        *(alignment(t) >= 16 for t in _TENSORS),
        # Of queries that see no key the library promises nothing.
        (attribute("causal") != 2) | (M <= N),
    ),
)
