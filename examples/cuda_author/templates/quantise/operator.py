from aot_tune.spec import (
    CudaFunction,
    DTypeOf,
    Kernel,
    Operator,
    Parameter,
    Tensor,
    dims,
    parameter,
    problem,
    stride,
    table,
)

R, D = dims("R D")
quantise = CudaFunction(
    "csrc/quantise.cu:quantise",
    {"q_stride": stride("q", 0), "x_stride": stride("x", 0), "width": D},
    grid=R,
    block=parameter("BLOCK"),
    template={"T": DTypeOf("x")},
)


def reference(xp, call):
    largest = xp.max(xp.abs(call.x), axis=1, keepdims=True)
    scale = xp.maximum(largest, xp.full_like(largest, 1e-12)) / 448
    return {"q": call.x / scale, "scale": scale[:, 0]}


operator = Operator(
    name="quantise",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f32")},
    tensors=(
        Tensor("x", (R, D), "T", finite=True),
        Tensor("q", (R, D), "f8e4m3", output=True),
        Tensor("scale", (R,), "f32", output=True),
    ),
    legal=(D >= 1, stride("x", 1) == 1, stride("q", 1) == 1, stride("scale", 0) == 1),
    reference=reference,
    flops=3 * R * D,
    workload=tuple(problem(R=r, D=4096) for r in (1, 64, 4096)),
    kernels=(
        Kernel("rows", function=quantise, parameters=(Parameter("BLOCK", (128, 256, 512, 1024)),)),
        Kernel("generic", function=quantise, listed=table("BLOCK", (256,)), generic=True),
    ),
)
