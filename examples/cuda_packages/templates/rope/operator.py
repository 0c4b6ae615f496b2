"""Rotary embedding of queries and keys in one launch, by a table of cosines and sines: flashinfer's launcher."""

from aot_tune.spec import (
    CompileOptions,
    DTypeOf,
    Kernel,
    Launcher,
    Operator,
    Tensor,
    alignment,
    dims,
    integers,
    problem,
    stride,
)

N, HQ, HK, D, P = dims("N HQ HK D P")
ROOT = "packages/flashinfer/data/include"
CCCL = tuple(f"packages/flashinfer/data/cccl/{folder}" for folder in ("libcudacxx/include", "cub", "thrust"))
HEADS = ("q", "k", "q_rope", "k_rope")
sizes = {"nnz": N, "num_qo_heads": HQ, "num_kv_heads": HK, "rotary_dim": D, "head_dim": D}


def reference(xp, call):
    half = call.q.shape[2] // 2
    table = call.cos_sin_cache[call.pos_ids]
    cos, sin = table[:, None, :half], table[:, None, half:]

    def turned(x):
        left, right = x[..., :half], x[..., half:]
        return xp.concat([left * cos - right * sin, right * cos + left * sin], axis=2)

    return {"q_rope": turned(call.q), "k_rope": turned(call.k)}


operator = Operator(
    name="rope",
    dims=("N", "HQ", "HK", "D", "P"),
    dtypes={"T": ("bf16", "f16")},
    tensors=(
        Tensor("q", (N, HQ, D), "T"),
        Tensor("k", (N, HK, D), "T"),
        Tensor("cos_sin_cache", (P, D), "f32", read=D),
        Tensor("pos_ids", (N,), "i32", values=integers(0, P)),
        Tensor("q_rope", (N, HQ, D), "T", output=True),
        Tensor("k_rope", (N, HK, D), "T", output=True),
    ),
    legal=(
        *(alignment(t) >= 16 for t in (*HEADS, "cos_sin_cache")),
        D == 128,
        *(stride(t, 2) == 1 for t in HEADS),
        *(stride(t, axis) % 8 == 0 for t in HEADS for axis in (0, 1)),
        *(stride("cos_sin_cache", axis) == step for axis, step in ((0, D), (1, 1))),
        stride("pos_ids", 0) == 1,
    ),
    reference=reference,
    flops=3 * N * (HQ + HK) * D,
    workload=tuple(problem(N=n, HQ=32, HK=8, D=128, P=8192) for n in (1, 64, 4096)),
    checks=(problem(N=5, HQ=3, HK=1, D=128, P=40),),
    kernels=(
        Kernel(
            "generic",
            function=Launcher(
                f"{ROOT}/flashinfer/pos_enc.cuh:flashinfer::BatchQKApplyRotaryPosIdsCosSinCache",
                {
                    **sizes,
                    **{f"{t}_stride_{axis}": stride(t, i) for t in HEADS for i, axis in enumerate("nh")},
                    "interleave": False,
                },
                template={"DType": DTypeOf("q"), "IdType": DTypeOf("pos_ids")},
            ),
            compile=CompileOptions(include_directories=("shims/toolkit", ROOT, *CCCL)),
            generic=True,
        ),
    ),
)
