"""RMSNorm from flashinfer. Its launcher chooses the block and the vector by the row, so there is nothing to tune."""

from aot_tune.spec import (
    CompileOptions,
    DTypeOf,
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
ROOT = "packages/flashinfer/data/include"


def reference(xp, call):
    square = xp.mean(call.input * call.input, axis=1, keepdims=True)
    return {"output": call.input / xp.sqrt(square + call.eps) * call.weight}


operator = Operator(
    name="rms_norm",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16")},
    tensors=(Tensor("input", (R, D), "T"), Tensor("weight", (D,), "T"), Tensor("output", (R, D), "T", output=True)),
    scalars=(Scalar("eps", default=1e-6),),
    legal=(
        D % 8 == 0,
        *(stride(t, axis) == 1 for t, axis in (("input", 1), ("weight", 0), ("output", 1))),
        *(stride(t, 0) % 8 == 0 for t in ("input", "output")),
        *(alignment(t) >= 16 for t in ("input", "weight", "output")),
    ),
    reference=reference,
    flops=4 * R * D,
    workload=tuple(problem(R=r, D=d) for r in (1, 4096) for d in (4096, 8192)),
    kernels=(
        Kernel(
            "generic",
            function=Launcher(
                f"{ROOT}/flashinfer/norm.cuh:flashinfer::norm::RMSNorm",
                {
                    "batch_size": R,
                    "d": D,
                    "stride_input": stride("input", 0),
                    "stride_output": stride("output", 0),
                },
                template={"T": DTypeOf("input")},
            ),
            compile=CompileOptions(include_directories=("shims/toolkit", ROOT)),
            generic=True,
        ),
    ),
)
