"""Softmax of logits at a temperature: flashinfer's launcher, which uses two kernels if rows are few and long."""

from aot_tune.spec import (
    Buffer,
    CompileOptions,
    DTypeOf,
    Kernel,
    Launcher,
    Operator,
    Scalar,
    Tensor,
    alignment,
    ceildiv,
    dims,
    problem,
    stride,
)

R, V = dims("R V")
ROOT = "packages/flashinfer/data/include"
CCCL = tuple(f"packages/flashinfer/data/cccl/{folder}" for folder in ("libcudacxx/include", "cub", "thrust"))
workspace = R * ceildiv(V, 8192) * 8 + 256  # a maximum and a sum for each slice of a row


def reference(xp, call):
    scaled = call.logits / call.temperature
    powers = xp.exp(scaled - xp.max(scaled, axis=1, keepdims=True))
    return {"output": powers / xp.sum(powers, axis=1, keepdims=True)}


operator = Operator(
    name="softmax",
    dims=("R", "V"),
    tensors=(Tensor("logits", (R, V), finite=True), Tensor("output", (R, V), output=True)),
    scalars=(Scalar("temperature", default=0.7),),
    legal=(
        *(alignment(t) >= 16 for t in ("logits", "output")),
        V % 4 == 0,
        *(stride(t, axis) == step for t in ("logits", "output") for axis, step in ((0, V), (1, 1))),
    ),
    reference=reference,
    flops=4 * R * V,
    workload=tuple(problem(R=r, V=v) for r, v in ((1, 128256), (64, 128256), (1024, 32000))),
    checks=(problem(R=3, V=100),),
    kernels=(
        Kernel(
            "generic",
            function=Launcher(
                f"{ROOT}/flashinfer/sampling.cuh:flashinfer::sampling::OnlineSoftmax",
                {
                    "batch_size": R,
                    "d": V,
                    "temperature_arr": None,
                    "temperature_val": "temperature",
                    "workspace_buffer": Buffer("u8", workspace),
                    "workspace_buffer_size_in_bytes": workspace,
                    "enable_pdl": False,
                },
                template={"DType": DTypeOf("logits")},
            ),
            compile=CompileOptions(include_directories=("shims/toolkit", ROOT, *CCCL)),
            generic=True,
        ),
    ),
)
