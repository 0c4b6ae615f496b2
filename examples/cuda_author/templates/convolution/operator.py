from aot_tune.spec import (
    CudaFunction,
    Kernel,
    Operator,
    Parameter,
    Tensor,
    ceildiv,
    dims,
    parameter,
    problem,
    stride,
    table,
)

H, W, F = dims("H W F")
BLOCK_X, BLOCK_Y, ROWS = (parameter(name) for name in ("BLOCK_X", "BLOCK_Y", "ROWS"))


def reference(xp, call):
    size = call.filter.shape[0]
    height, width = (extent - size + 1 for extent in call.image.shape)
    out = xp.zeros_like(call.image[:height, :width])
    for i in range(size):
        for j in range(size):
            out = out + call.image[i : i + height, j : j + width] * call.filter[i, j]
    return {"out": out}


convolution = CudaFunction(
    "csrc/convolution.cu:convolution",
    {"height": H, "width": W, "size": F},
    grid=(ceildiv(W - F + 1, BLOCK_X), ceildiv(H - F + 1, BLOCK_Y * ROWS)),
    block=(BLOCK_X, BLOCK_Y),
)

operator = Operator(
    name="convolution",
    dims=("H", "W", "F"),
    tensors=(
        Tensor("image", (H, W)),
        Tensor("filter", (F, F)),
        Tensor("out", (H - F + 1, W - F + 1), output=True),
    ),
    legal=(
        F >= 1,
        F <= 64,  # a larger filter is a task for a Fourier transform
        H >= F,
        W >= F,
        *(stride(name, 1) == 1 for name in ("image", "filter", "out")),
        *(stride(name, 0) == width for name, width in (("image", W), ("filter", F), ("out", W - F + 1))),
    ),
    reference=reference,
    flops=2 * F * F * (H - F + 1) * (W - F + 1),
    workload=(problem(H=1024, W=1024, F=7), problem(H=4096, W=4096, F=15)),
    kernels=(
        Kernel(
            "tiled",
            function=convolution,
            parameters=(
                Parameter("BLOCK_X", (32, 64, 128)),
                Parameter("BLOCK_Y", (1, 2, 4, 8)),
                Parameter("ROWS", (1, 2, 4, 8)),
            ),
            constraints=(BLOCK_X * BLOCK_Y >= 64, BLOCK_X * BLOCK_Y <= 512),
        ),
        Kernel("generic", function=convolution, listed=table("BLOCK_X BLOCK_Y ROWS", (32, 4, 1)), generic=True),
    ),
)
