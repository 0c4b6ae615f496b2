"""Rotary embedding of queries and keys in place, from vllm: one block for each token. Its threads are a parameter."""

from aot_tune.spec import (
    CompileOptions,
    CudaFunction,
    DTypeOf,
    Kernel,
    Operator,
    Parameter,
    Tensor,
    dims,
    integers,
    parameter,
    problem,
    stride,
    table,
)

N, HQ, HK, D, P = dims("N HQ HK D P")
sizes = {"rot_dim": D, "head_size": D, "num_heads": HQ, "num_kv_heads": HK, "rope_dim_offset": 0, "inverse": False}
strides = {"query_stride": stride("query", 0), "key_stride": stride("key", 0), "head_stride": stride("query", 1)}
rotary = CudaFunction(
    "packages/vllm-0.33.0/csrc/pos_encoding_kernels.cu:vllm::rotary_embedding_kernel",
    {**sizes, **strides},
    grid=N,
    block=parameter("THREADS"),
    template={"scalar_t": DTypeOf("query"), "cache_t": DTypeOf("cos_sin_cache"), "IS_NEOX": True},
)


def reference(xp, call):
    half = call.query.shape[2] // 2
    table = call.cos_sin_cache[call.positions]
    cos, sin = table[:, None, :half], table[:, None, half:]

    def turned(x):
        left, right = x[..., :half], x[..., half:]
        return xp.concat([left * cos - right * sin, right * cos + left * sin], axis=2)

    return {"query": turned(call.query), "key": turned(call.key)}


compiled = CompileOptions(include_directories=("shims/torch_stable", "shims/toolkit"))
operator = Operator(
    name="rope_in_place",
    dims=("N", "HQ", "HK", "D", "P"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("positions", (N,), "i64", values=integers(0, P)),
        Tensor("query", (N, HQ, D), "T", inout=True),
        Tensor("key", (N, HK, D), "T", inout=True),
        Tensor("cos_sin_cache", (P, D), "f32", read=D),
    ),
    legal=(
        D % 2 == 0,
        *(stride(t, 2) == 1 for t in ("query", "key")),
        stride("query", 1) == stride("key", 1),  # the kernel has one stride for both
        *(stride("cos_sin_cache", axis) == step for axis, step in ((0, D), (1, 1))),
        stride("positions", 0) == 1,
    ),
    reference=reference,
    flops=3 * N * (HQ + HK) * D,
    workload=tuple(problem(N=n, HQ=32, HK=8, D=128, P=8192) for n in (1, 64, 4096)),
    checks=(problem(N=5, HQ=3, HK=1, D=20, P=40),),
    kernels=(
        Kernel(
            "threads", function=rotary, compile=compiled, parameters=(Parameter("THREADS", (64, 128, 256, 512, 1024)),)
        ),
        Kernel("generic", function=rotary, compile=compiled, listed=table("THREADS", (256,)), generic=True),
    ),
)
