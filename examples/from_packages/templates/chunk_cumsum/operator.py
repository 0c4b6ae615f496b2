"""Sums of gates within chunks, from flash-linear-attention: @triton.autotune and @triton.heuristics as they are."""

from aot_tune.spec import Kernel, Operator, Scalar, Tensor, TritonFunction, ceildiv, dims, problem, stride

B, T, H, S = dims("B T H S")
CHUNK = 64


def contiguous(tensor):
    return (
        stride(tensor, 3) == 1,
        stride(tensor, 2) == S,
        stride(tensor, 1) == H * S,
        stride(tensor, 0) == T * H * S,
    )


def grid(meta):
    return (ceildiv(S, meta["BS"]) * ceildiv(T, CHUNK), B * H)


def reference(xp, call):
    tokens = call.s.shape[1]
    parts = [xp.cumsum(call.s[:, t : t + CHUNK], axis=1) for t in range(0, tokens, CHUNK)]
    return {"o": xp.concat(parts, axis=1) * call.scale}


operator = Operator(
    name="chunk_cumsum",
    dims=("B", "T", "H", "S"),
    dtypes={"G": ("f32", "bf16")},
    tensors=(Tensor("s", (B, T, H, S), "G"), Tensor("o", (B, T, H, S), "f32", output=True)),
    scalars=(Scalar("scale", default=1.0),),
    reference=reference,
    flops=B * T * H * S,
    workload=tuple(problem(B=1, T=t, H=16, S=128) for t in (1024, 8192)),
    kernels=(
        Kernel(
            "fla",
            backend="triton",
            triton=TritonFunction(
                "fla.ops.utils.cumsum:chunk_local_cumsum_vector_kernel",
                {"cu_seqlens": None, "chunk_indices": None, "BT": CHUNK, "REVERSE": False},
                grid,
            ),
            requires=(*contiguous("s"), *contiguous("o")),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(
                "kernels.py:cumsum_any",
                {**{f"{t}_{i}": stride(t, i) for t in "so" for i in range(4)}, "BT": CHUNK, "BS": 128},
                grid,
            ),
            generic=True,
        ),
    ),
)
