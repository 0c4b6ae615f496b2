"""Causal depthwise convolution with SiLU, from flash-linear-attention: `causal_conv1d_fwd_kernel`.

`x` may have any strides. The kernel needs everything else contiguous. Its residual, its initial state and sequences of
different lengths are left out.
"""

from aot_tune.spec import Kernel, Operator, Tensor, TritonFunction, ceildiv, dims, next_power_of_2, problem, stride

B, T, D, W = dims("B T D W")
CHUNK = 64  # tokens of a program, as in the package
in_order = {"stride_x_n": stride("x", 0), "stride_x_t": stride("x", 1), "stride_x_d": stride("x", 2)}
any_strides = {f"{t}_{i}": stride(t, i) for t in ("x", "y") for i in range(3)}
any_strides |= {"weight_0": stride("weight", 0), "weight_1": stride("weight", 1), "bias_0": stride("bias", 0)}


def grid(meta):
    return (ceildiv(D, meta["BD"]), ceildiv(T, CHUNK), B)


def any_grid(meta):
    return (ceildiv(D, meta["BD"]) * T, B)


def reference(xp, call):
    tokens, taps = call.x.shape[1], call.weight.shape[1]
    padded = xp.concat([xp.zeros_like(call.x[:, :1])] * (taps - 1) + [call.x], axis=1)
    y = sum(padded[:, i : i + tokens] * call.weight[:, i] for i in range(taps)) + call.bias
    return {"y": y / (1 + xp.exp(-y))}


operator = Operator(
    name="causal_conv",
    dims=("B", "T", "D", "W"),
    dtypes={"E": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("x", (B, T, D), "E"),
        Tensor("weight", (D, W), "E"),
        Tensor("bias", (D,), "E"),
        Tensor("y", (B, T, D), "E", output=True),
    ),
    reference=reference,
    flops=2 * B * T * D * W,
    workload=tuple(problem(B=1, T=t, D=2048, W=4) for t in (64, 8192)),
    kernels=(
        Kernel(
            "fla",
            backend="triton",
            triton=TritonFunction(
                "fla.modules.causal_conv1d.ops:causal_conv1d_fwd_kernel",
                {
                    **dict.fromkeys(("residual", "cu_seqlens", "initial_state", "chunk_indices")),
                    **in_order,
                    "BT": CHUNK,
                    "BW": next_power_of_2(W),
                    "ACTIVATION": "silu",
                },
                grid,
            ),
            requires=(
                *(stride("y", axis) == step for axis, step in enumerate((T * D, D, 1))),
                *(stride("weight", axis) == step for axis, step in enumerate((W, 1))),
                stride("bias", 0) == 1,
            ),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction("kernels.py:conv_any", {**any_strides, "BD": 128}, any_grid, {"num_warps": 4}),
            generic=True,
        ),
    ),
)
