"""Causal depthwise convolution with SiLU, from causal-conv1d. Its launcher takes a struct by reference.

Its block size is an argument of its template. The package sets it to 128.
"""

from aot_tune.spec import (
    CompileOptions,
    DTypeOf,
    Kernel,
    Launcher,
    Operator,
    Parameter,
    Struct,
    Tensor,
    alignment,
    dims,
    parameter,
    problem,
    stride,
)

B, D, L, W = dims("B D L W")
axes = ("batch_stride", "c_stride", "l_stride")
params = Struct(
    "ConvParamsBase",
    {
        "batch": B,
        "dim": D,
        "seqlen": L,
        "width": W,
        "silu_activation": True,
        **{f"{t}_ptr": t for t in ("x", "weight", "bias", "out")},
        **{f"{t}_{axis}": stride(t, i) for t in ("x", "out") for i, axis in enumerate(axes)},
        **{f"weight_{axis}_stride": stride("weight", i) for i, axis in enumerate(("c", "width"))},
    },
)


def launcher(threads):
    return Launcher(
        "packages/causal_conv1d-1.7.0/csrc/causal_conv1d_fwd.cu:causal_conv1d_fwd_launch",
        {"params": params},
        template={"kNThreads": threads, "kWidth": 4, "input_t": DTypeOf("x"), "weight_t": DTypeOf("weight")},
    )


def reference(xp, call):
    tokens, taps = call.x.shape[2], call.weight.shape[1]
    padded = xp.concat([xp.zeros_like(call.x[:, :, :1])] * (taps - 1) + [call.x], axis=2)
    y = sum(padded[:, :, i : i + tokens] * call.weight[:, i, None] for i in range(taps)) + call.bias[:, None]
    return {"out": y / (1 + xp.exp(-y))}


compiled = CompileOptions(include_directories=("shims/torch_types",))
operator = Operator(
    name="causal_conv",
    dims=("B", "D", "L", "W"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("x", (B, D, L), "T"),
        Tensor("weight", (D, W), "T"),
        Tensor("bias", (D,), "T"),
        Tensor("out", (B, D, L), "T", output=True),
    ),
    legal=(
        *(alignment(t) >= 16 for t in ("x", "out")),
        W == 4,
        *(stride(t, 2) == 1 for t in ("x", "out")),
        *(stride(t, axis) % 8 == 0 for t in ("x", "out") for axis in (0, 1)),
        stride("bias", 0) == 1,
    ),
    reference=reference,
    flops=2 * B * D * L * W,
    workload=tuple(problem(B=1, D=2048, L=n, W=4) for n in (64, 1024, 8192)),
    checks=(
        problem(B=2, D=3, L=40, W=4),
        problem(B=2, D=3, L=37, W=4, strides=dict.fromkeys(("x", "out"), (120, 40, 1))),
    ),
    kernels=(
        Kernel(
            "threads",
            function=launcher(parameter("THREADS")),
            compile=compiled,
            parameters=(Parameter("THREADS", (32, 64, 128, 256)),),
        ),
        Kernel("generic", function=launcher(128), compile=compiled, generic=True),
    ),
)
