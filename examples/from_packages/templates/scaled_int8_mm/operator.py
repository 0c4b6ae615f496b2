"""Products of int8 with a scale for each row and column, from torchao, with its configs and its heuristics."""

from aot_tune.spec import Kernel, Operator, Tensor, TritonFunction, ceildiv, dims, problem, stride, table

M, N, K = dims("M N K")
FUNCTION = "torchao.prototype.quantized_training.int8_mm:_scaled_int8_mm_kernel"
arguments = {
    "A_ptr": "a",
    "B_ptr": "b",
    "C_ptr": "out",
    "row_scale_ptr": "row_scale",
    "col_scale_ptr": "col_scale",
    "stride_am": stride("a", 0),
    "stride_ak": stride("a", 1),
    "stride_bk": stride("b", 0),
    "stride_bn": stride("b", 1),
    "stride_cm": stride("out", 0),
    "stride_cn": stride("out", 1),
}


def grid(meta):
    return (ceildiv(M, meta["BLOCK_M"]) * ceildiv(N, meta["BLOCK_N"]),)


def reference(xp, call):
    return {"out": xp.matmul(1.0 * call.a, 1.0 * call.b) * call.row_scale[:, None] * call.col_scale}


operator = Operator(
    name="scaled_int8_mm",
    dims=("M", "N", "K"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("a", (M, K), "i8"),
        Tensor("b", (K, N), "i8"),
        Tensor("row_scale", (M,), "T"),
        Tensor("col_scale", (N,), "T"),
        Tensor("out", (M, N), "T", output=True),
    ),
    legal=(stride("row_scale", 0) == 1, stride("col_scale", 0) == 1),
    reference=reference,
    flops=2 * M * N * K,
    workload=tuple(problem(M=m, N=4096, K=4096, strides={"b": (1, 4096)}) for m in (64, 4096)),
    kernels=(
        Kernel("torchao", backend="triton", triton=TritonFunction(FUNCTION, arguments, grid)),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(FUNCTION, {**arguments, "EVEN_K": False}, grid),
            listed=table("BLOCK_M BLOCK_N BLOCK_K num_warps num_stages", (64, 64, 64, 4, 3)),
            generic=True,
        ),
    ),
)
