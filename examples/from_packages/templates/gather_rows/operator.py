"""Rows by index, from xformers. Its kernel uses the strides of its input for its output, too."""

from aot_tune.spec import Kernel, Operator, Parameter, Tensor, TritonFunction, ceildiv, dims, integers, problem, stride

N, R, D = dims("N R D")
FUNCTION = "xformers.ops._triton.k_index_select_cat:index_select_cat_fwd_kernel"
arguments = {
    "output_ptr": "out",
    "source_ptr": "source",
    "index_ptr": "index",
    "num_indices": N,
    "num_cols": D,
    "stride0": stride("source", 0),
    "stride1": stride("source", 1),
}


def grid(meta):
    return (ceildiv(N, meta["BLOCK_SIZE_INDEX"]), ceildiv(D, meta["BLOCK_SIZE_COL"]))


operator = Operator(
    name="gather_rows",
    dims=("N", "R", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("source", (R, D), "T", read=N * D // 2),  # some rows are read more than once
        Tensor("index", (N,), "i64", values=integers(0, R)),
        Tensor("out", (N, D), "T", output=True),
    ),
    legal=(stride("index", 0) == 1, *(stride("source", axis) == stride("out", axis) for axis in (0, 1))),
    reference=lambda _, call: {"out": call.source[call.index]},
    flops=N * D,
    workload=tuple(problem(N=n, R=32768, D=4096) for n in (64, 8192)),
    kernels=(
        Kernel(
            "xformers",
            backend="triton",
            triton=TritonFunction(FUNCTION, arguments, grid),
            parameters=(
                Parameter("BLOCK_SIZE_INDEX", (1, 2, 4)),
                Parameter("BLOCK_SIZE_COL", (256, 512, 1024)),
                Parameter("num_warps", (2, 4, 8)),
            ),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(
                FUNCTION, {**arguments, "BLOCK_SIZE_INDEX": 1, "BLOCK_SIZE_COL": 512}, grid, {"num_warps": 4}
            ),
            generic=True,
        ),
    ),
)
