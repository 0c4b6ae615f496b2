"""RMSNorm of Liger-Kernel (a whole row at once) and of xformers (in blocks). The faster one of both serves."""

from aot_tune.spec import (
    Buffer,
    Kernel,
    Operator,
    Parameter,
    Scalar,
    Tensor,
    TritonFunction,
    dims,
    next_power_of_2,
    problem,
    stride,
    where,
)

R, D = dims("R D")
FUNCTION = "liger_kernel.ops.rms_norm:_rms_norm_forward_kernel"
LONGEST = 65536
block = next_power_of_2(D)
warps = where(block >= 32768, 32, where(block >= 8192, 16, where(block >= 2048, 8, 4)))
arguments = {
    "Y_ptr": "out",
    "Y_row_stride": stride("out", 0),
    "X_ptr": "x",
    "X_row_stride": stride("x", 0),
    "W_ptr": "weight",
    "W_row_stride": stride("weight", 0),
    "RSTD_ptr": Buffer("f32", R),  # for the backward pass, which is not used here
    "RSTD_row_stride": 1,
    "n_cols": D,
    "offset": 0.0,
    "casting_mode": 0,  # as in Llama: the product with the weight is in the tensors' dtype
    "elementwise_affine": True,
}
of_xformers = {
    "x_ptr": "x",
    "h1_ptr": "out",
    "w_ptr": "weight",
    "stride": stride("x", 0),
    "N_COLS": D,
    "INCLUDE_WEIGHT": True,
}


def reference(xp, call):
    return {"out": call.x / xp.sqrt(xp.mean(call.x * call.x, axis=1, keepdims=True) + call.eps) * call.weight}


operator = Operator(
    name="rms_norm",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(Tensor("x", (R, D), "T"), Tensor("weight", (D,), "T"), Tensor("out", (R, D), "T", output=True)),
    scalars=(Scalar("eps", default=1e-6),),
    legal=(stride("x", 1) == 1, stride("weight", 0) == 1, stride("out", 1) == 1, D <= LONGEST),
    reference=reference,
    flops=4 * R * D,
    workload=tuple(problem(R=r, D=4096) for r in (1, 4096)),
    kernels=(
        Kernel(
            "liger",
            backend="triton",
            triton=TritonFunction(FUNCTION, {**arguments, "BLOCK_SIZE": block}, (R,), {"num_warps": warps}),
        ),
        Kernel(
            "xformers",
            backend="triton",
            triton=TritonFunction("xformers.ops._triton.rmsnorm_kernels:_rms_norm_kernel", of_xformers, (R,)),
            parameters=(Parameter("BLOCK_SIZE", (1024, 2048, 4096, 8192)), Parameter("num_warps", (4, 8))),
            requires=(stride("x", 0) == stride("out", 0),),  # the kernel has one stride for both
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(FUNCTION, {**arguments, "BLOCK_SIZE": LONGEST}, (R,), {"num_warps": 16}),
            generic=True,
        ),
    ),
)
