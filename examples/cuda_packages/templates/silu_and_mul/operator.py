"""SiLU of the first half of a row times the second half, from vllm. Its kernel's template takes functions."""

from aot_tune.spec import (
    Code,
    CompileOptions,
    CudaFunction,
    DTypeOf,
    Kernel,
    Operator,
    Parameter,
    Tensor,
    alignment,
    dims,
    parameter,
    problem,
    stride,
    table,
)

R, W = dims("R W")
D = W // 2
element = {"T": DTypeOf("input")}
scalar = "torch::headeronly::Of<{T}>"
packed = f"vllm::PackedTypeConverter<{scalar}>::Type"
act_and_mul = CudaFunction(
    "packages/vllm-0.33.0/csrc/activation_kernels.cu:vllm::act_and_mul_kernel",
    {"d": D, "limit": 0.0, "alpha": 1.0, "beta": 0.0},
    grid=R,
    block=parameter("THREADS"),
    template={
        "scalar_t": Code(scalar, element),
        "packed_t": Code(packed, element),
        "ACT_FN": Code(f"vllm::silu_kernel<{scalar}>", element),
        "PACKED_ACT_FN": Code(f"vllm::packed_silu_kernel<{packed}>", element),
        "act_first": True,
        "HAS_CLAMP": False,
    },
)


def reference(xp, call):
    half = call.input.shape[1] // 2
    gate = call.input[:, :half]
    return {"out": gate / (1 + xp.exp(-gate)) * call.input[:, half:]}


compiled = CompileOptions(include_directories=("shims/torch_stable", "shims/toolkit"))
operator = Operator(
    name="silu_and_mul",
    dims=("R", "W"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(Tensor("input", (R, W), "T"), Tensor("out", (R, D), "T", output=True)),
    legal=(
        W % 2 == 0,
        *(stride(t, axis) == step for t, n in (("input", W), ("out", D)) for axis, step in ((0, n), (1, 1))),
    ),
    reference=reference,
    flops=5 * R * D,
    workload=tuple(problem(R=r, W=28672) for r in (1, 64, 4096)),
    checks=(problem(R=3, W=74),),
    kernels=(
        Kernel(
            "vectors",
            function=act_and_mul,
            compile=compiled,
            parameters=(Parameter("THREADS", (128, 256, 512, 1024)), Parameter("use_vec", (True,))),
            requires=(D % 8 == 0, alignment("input") >= 16, alignment("out") >= 16),
        ),
        Kernel(
            "generic",
            function=act_and_mul,
            compile=compiled,
            listed=table("THREADS use_vec", (256, False)),
            generic=True,
        ),
    ),
)
