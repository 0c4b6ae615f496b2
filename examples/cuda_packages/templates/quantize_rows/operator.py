"""Rows to int8, each with its own scale, from vllm. Only the kernel's number of threads can be chosen."""

from aot_tune.spec import (
    Code,
    CompileOptions,
    CudaFunction,
    DTypeOf,
    Kernel,
    Operator,
    Parameter,
    Tensor,
    dims,
    off_by,
    parameter,
    problem,
    stride,
    table,
)

R, D = dims("R D")
quantize = CudaFunction(
    "packages/vllm-0.33.0/csrc/quantization/w8a8/int8/scaled_quant.cu:vllm::dynamic_scaled_int8_quant_kernel",
    {"scale_out": "scale", "hidden_size": D},
    grid=R,
    block=parameter("THREADS"),
    template={"scalar_t": DTypeOf("input"), "scale_t": Code("float")},
)


def reference(xp, call):
    most = xp.max(xp.abs(call.input), axis=1, keepdims=True)
    rounded = xp.round(call.input * (127 / xp.where(most > 0, most, 1.0)))
    return {"output": rounded, "scale": most[:, 0] / 127}


compiled = CompileOptions(include_directories=("shims/torch_stable", "shims/toolkit"), options=("--extended-lambda",))
operator = Operator(
    name="quantize_rows",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("input", (R, D), "T", finite=True),  # no integer stands for NaN
        Tensor("output", (R, D), "i8", output=True),
        Tensor("scale", (R,), "f32", output=True),
    ),
    legal=(
        *(stride(t, axis) == step for t in ("input", "output") for axis, step in ((0, D), (1, 1))),
        stride("scale", 0) == 1,
    ),
    reference=reference,
    flops=3 * R * D,
    tolerance={"output": off_by(1)},
    workload=tuple(problem(R=r, D=d) for r, d in ((1, 4096), (4096, 4096), (4096, 14336))),
    kernels=(
        Kernel("threads", function=quantize, compile=compiled, parameters=(Parameter("THREADS", (64, 128, 256)),)),
        Kernel("generic", function=quantize, compile=compiled, listed=table("THREADS", (256,)), generic=True),
    ),
)
