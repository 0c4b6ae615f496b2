from aot_tune.spec import (
    CudaFunction,
    DTypeOf,
    Kernel,
    Operator,
    Parameter,
    Scalar,
    Tensor,
    dims,
    parameter,
    problem,
    stride,
    table,
)

R, D = dims("R D")
add_rms_norm = CudaFunction(
    "csrc/add_rms_norm.cu:add_rms_norm",
    {"x_stride": stride("x", 0), "residual_stride": stride("residual", 0), "width": D},
    grid=R,
    block=parameter("BLOCK"),
    template={"T": DTypeOf("x")},
)


def reference(xp, call):
    residual = call.residual + call.x
    scale = 1 / xp.sqrt(xp.mean(residual * residual, axis=1, keepdims=True) + call.eps)
    return {"x": residual * scale * call.weight, "residual": residual}


operator = Operator(
    name="add_rms_norm",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f32")},
    tensors=(
        Tensor("x", (R, D), "T", inout=True),
        Tensor("residual", (R, D), "T", inout=True),
        Tensor("weight", (D,), "T"),
    ),
    scalars=(Scalar("eps", default=1e-5, other=0.25),),
    legal=(D >= 1, stride("x", 1) == 1, stride("residual", 1) == 1, stride("weight", 0) == 1),
    reference=reference,
    flops=6 * R * D,
    workload=tuple(problem(R=r, D=4096) for r in (1, 64, 4096)),
    kernels=(
        Kernel("rows", function=add_rms_norm, parameters=(Parameter("BLOCK", (128, 256, 512, 1024)),)),
        Kernel("generic", function=add_rms_norm, listed=table("BLOCK", (256,)), generic=True),
    ),
)
