"""Hadamard transform of rows of 4096, from sglang, which took it from fast-hadamard-transform: a kernel with traits."""

from aot_tune.spec import (
    Code,
    CompileOptions,
    CudaFunction,
    DTypeOf,
    Kernel,
    Operator,
    Parameter,
    Scalar,
    Struct,
    Tensor,
    alignment,
    dims,
    parameter,
    problem,
    stride,
    table,
    target,
)

R, D = dims("R D")
tensors = ("x", "out")
ROOT = "packages/sglang/kernels/jit"
known = {"THREADS": parameter("THREADS"), "T": DTypeOf("x")}
traits = "sglang::FastHadamardKernelTraits<{THREADS}, 12, {T}>"
sizes = {"batch": R, "dim": D, "log_N": 12, "scale": "scale"}
transform = CudaFunction(
    f"{ROOT}/csrc/fast-hadamard-transform/hadamard_jit.cuh:sglang::fast_hadamard_transform_kernel",
    (
        Struct(
            "HadamardParamsBase",
            {**sizes, **{f"{t}_ptr": t for t in tensors}, **{f"{t}_batch_stride": stride(t, 0) for t in tensors}},
        ),
    ),
    grid=R,
    block=parameter("THREADS"),
    shared=Code(f"{traits}::kSmemSize", known),
    template={"Ktraits": Code(traits, known)},
    macros={"SGL_CUDA_ARCH": target("capability") * 10},
)


def reference(xp, call):
    """Sums and differences of halves, level by level."""
    rows, width = call.x.shape
    out = call.x
    for _ in range(12):
        pairs = xp.reshape(out, (rows, width // 2, 2))
        out = xp.concat([pairs[..., 0] + pairs[..., 1], pairs[..., 0] - pairs[..., 1]], axis=1)
    return {"out": out * call.scale}


compiled = CompileOptions(include_directories=(f"{ROOT}/include", "packages/tvm_ffi/include"), options=("-std=c++20",))
operator = Operator(
    name="hadamard",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(Tensor("x", (R, D), "T"), Tensor("out", (R, D), "T", output=True)),
    scalars=(Scalar("scale", default=1 / 64),),
    legal=(
        D == 4096,
        *(stride(t, 1) == 1 for t in tensors),
        *(stride(t, 0) % 8 == 0 for t in tensors),
        *(alignment(t) >= 16 for t in tensors),
    ),
    reference=reference,
    flops=12 * R * D,
    workload=tuple(problem(R=r, D=4096) for r in (1, 64, 4096)),
    checks=(problem(R=3, D=4096),),
    kernels=(
        Kernel(
            "threads", function=transform, compile=compiled, parameters=(Parameter("THREADS", (64, 128, 256, 512)),)
        ),
        Kernel("generic", function=transform, compile=compiled, listed=table("THREADS", (256,)), generic=True),
    ),
)
