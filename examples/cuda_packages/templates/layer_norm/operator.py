"""LayerNorm from exllamav2. Its launcher picks a kernel by the row's length, and launches 1024 threads for each row."""

from aot_tune.spec import (
    CompileOptions,
    Kernel,
    Launcher,
    Operator,
    Scalar,
    Tensor,
    alignment,
    dims,
    problem,
    stride,
)

R, D = dims("R D")
layer_norm = Launcher("sources/layer_norm.cu:layer_norm_cuda", {"epsilon": "eps", "rows": R, "dim": D})


def reference(xp, call):
    centred = call.x - xp.mean(call.x, axis=1, keepdims=True)
    square = xp.mean(centred * centred, axis=1, keepdims=True)
    return {"y": centred / xp.sqrt(square + call.eps) * call.w + call.b}


operator = Operator(
    name="layer_norm",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D), "f16", finite=True),  # the kernel makes NaN and infinities the largest number
        Tensor("w", (D,), "f16"),
        Tensor("b", (D,), "f16"),
        Tensor("y", (R, D), "f16", output=True),
    ),
    scalars=(Scalar("eps", default=1e-5),),
    legal=(
        D % 2 == 0,
        D <= 32768,
        *(stride(t, axis) == step for t in "xy" for axis, step in ((0, D), (1, 1))),
        *(stride(t, 0) == 1 for t in "wb"),
        *(alignment(t) >= 4 for t in "xwby"),
    ),
    reference=reference,
    flops=8 * R * D,
    workload=tuple(problem(R=r, D=d) for r in (1, 4096) for d in (4096, 8192)),
    checks=(problem(R=3, D=100), problem(R=2, D=2050)),
    kernels=(
        Kernel(
            "generic",
            function=layer_norm,
            compile=CompileOptions(include_directories=("shims/torch_types",)),
            generic=True,
        ),
    ),
)
