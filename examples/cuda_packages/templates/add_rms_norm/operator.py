"""flashinfer's addition to a residual, and RMSNorm of the sum. Both tensors are changed in place."""

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
sizes = {"batch_size": R, "d": D, "stride_input": stride("input", 0), "stride_residual": stride("residual", 0)}


def reference(xp, call):
    total = call.input + call.residual
    square = xp.mean(total * total, axis=1, keepdims=True)
    return {"input": total / xp.sqrt(square + call.eps) * call.weight, "residual": total}


operator = Operator(
    name="add_rms_norm",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16")},
    tensors=(
        Tensor("input", (R, D), "T", inout=True),
        Tensor("residual", (R, D), "T", inout=True),
        Tensor("weight", (D,), "T"),
    ),
    scalars=(Scalar("eps", default=1e-6),),
    legal=(
        D % 8 == 0,
        D <= 16384,  # the sum of a row is in shared memory
        *(stride(t, axis) == 1 for t, axis in (("input", 1), ("weight", 0), ("residual", 1))),
        *(stride(t, 0) % 8 == 0 for t in ("input", "residual")),
        *(alignment(t) >= 16 for t in ("input", "weight", "residual")),
    ),
    reference=reference,
    flops=5 * R * D,
    workload=tuple(problem(R=r, D=d) for r in (1, 4096) for d in (4096, 8192)),
    kernels=(
        Kernel(
            "generic",
            function=Launcher(
                f"{ROOT}/flashinfer/norm.cuh:flashinfer::norm::FusedAddRMSNorm",
                sizes,
                template={"T": DTypeOf("input")},
            ),
            compile=CompileOptions(include_directories=("shims/toolkit", ROOT)),
            generic=True,
        ),
    ),
)
