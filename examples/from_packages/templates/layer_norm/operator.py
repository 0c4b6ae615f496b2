"""LayerNorm of Liger-Kernel, with the mean and the reciprocal deviation that its backward pass needs."""

from aot_tune.spec import (
    Kernel,
    Operator,
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
FUNCTION = "liger_kernel.ops.layer_norm:_layer_norm_forward_kernel"
LONGEST = 65536
block = next_power_of_2(D)
warps = where(block >= 32768, 32, where(block >= 8192, 16, where(block >= 2048, 8, 4)))
names = {"Y": "out", "X": "x", "W": "weight", "B": "bias", "Mean": "mean", "RSTD": "rstd"}
arguments = {f"{argument}_ptr": tensor for argument, tensor in names.items()}
arguments |= {f"{argument}_row_stride": stride(tensor, 0) for argument, tensor in names.items()}
arguments |= {"n_cols": D}


def reference(xp, call):
    mean = xp.mean(call.x, axis=1, keepdims=True)
    centred = call.x - mean
    rstd = 1 / xp.sqrt(xp.mean(centred * centred, axis=1, keepdims=True) + call.eps)
    return {"out": centred * rstd * call.weight + call.bias, "mean": mean[:, 0], "rstd": rstd[:, 0]}


operator = Operator(
    name="layer_norm",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("x", (R, D), "T"),
        Tensor("weight", (D,), "T"),
        Tensor("bias", (D,), "T"),
        Tensor("out", (R, D), "T", output=True),
        Tensor("mean", (R,), "f32", output=True),
        Tensor("rstd", (R,), "f32", output=True),
    ),
    scalars=(Scalar("eps", default=1e-5),),
    legal=(
        *(stride(t, 1) == 1 for t in ("x", "out")),
        *(stride(t, 0) == 1 for t in ("weight", "bias")),
        D <= LONGEST,
    ),
    reference=reference,
    flops=7 * R * D,
    workload=tuple(problem(R=r, D=4096) for r in (1, 4096)),
    kernels=(
        Kernel(
            "liger",
            backend="triton",
            triton=TritonFunction(FUNCTION, {**arguments, "BLOCK_SIZE": block}, (R,), {"num_warps": warps}),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(FUNCTION, {**arguments, "BLOCK_SIZE": LONGEST}, (R,), {"num_warps": 16}),
            generic=True,
        ),
    ),
)
