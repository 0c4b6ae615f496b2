"""SwiGLU of Liger-Kernel: its kernel with one row for each program, and its tiled one, which serves every shape."""

from aot_tune.spec import (
    Kernel,
    Operator,
    Scalar,
    Tensor,
    TritonFunction,
    ceildiv,
    dims,
    next_power_of_2,
    problem,
    stride,
    where,
)

R, D = dims("R D")
MODULE = "liger_kernel.ops.swiglu"
LONGEST = 65536
block = next_power_of_2(D)
warps = where(block >= 32768, 32, where(block >= 8192, 16, where(block >= 2048, 8, 4)))
arguments = {"a_ptr": "gate", "b_ptr": "up", "c_ptr": "out", "stride": stride("out", 0), "n_cols": D}


def reference(xp, call):
    gate = call.gate * call.gate_multiplier
    return {"out": gate / (1 + xp.exp(-gate)) * call.up}


def tiles(meta):
    return (R, ceildiv(D, meta["BLOCK_SIZE"]))


operator = Operator(
    name="swiglu",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(Tensor("gate", (R, D), "T"), Tensor("up", (R, D), "T"), Tensor("out", (R, D), "T", output=True)),
    scalars=(Scalar("gate_multiplier", default=1.0),),
    # the kernels take one stride for all three tensors
    legal=(
        *(stride(t, 1) == 1 for t in ("gate", "up", "out")),
        *(stride(t, 0) == stride("out", 0) for t in ("gate", "up")),
    ),
    reference=reference,
    flops=6 * R * D,
    workload=tuple(problem(R=r, D=14336) for r in (1, 4096)),
    kernels=(
        Kernel(
            "liger",
            backend="triton",
            triton=TritonFunction(
                f"{MODULE}:_swiglu_forward_kernel", {**arguments, "BLOCK_SIZE": block}, (R,), {"num_warps": warps}
            ),
            requires=(D <= LONGEST,),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(
                f"{MODULE}:_swiglu_forward_kernel_tiled", {**arguments, "BLOCK_SIZE": 1024}, tiles, {"num_warps": 4}
            ),
            generic=True,
        ),
    ),
)
