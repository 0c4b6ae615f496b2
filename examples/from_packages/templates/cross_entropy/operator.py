"""Forward cross-entropy of Liger-Kernel, with a loss for each row. Its kernel is right for every shape as it is.

Labels must be in `[0, V)`. For a row whose label is `ignore_index`, the kernel would write zeros over the logits, but
an operator's kernel must not change an input.
"""

from aot_tune.spec import (
    Kernel,
    Operator,
    Parameter,
    Tensor,
    TritonFunction,
    dims,
    minimum,
    next_power_of_2,
    problem,
    stride,
    uniform,
)

R, V = dims("R V")
FUNCTION = "liger_kernel.ops.cross_entropy:liger_cross_entropy_kernel"
CLASSES = 8
absent = ("weight_ptr", "z_loss_ptr", "token_accuracy_ptr", "predicted_tokens_ptr", "softcap")
off = ("RETURN_Z_LOSS", "RETURN_TOKEN_ACCURACY", "RETURN_PREDICTED_TOKENS", "HAS_WEIGHT", "HAS_SOFTCAPPING")
arguments = {
    **dict.fromkeys(absent),
    **dict.fromkeys((*off, "HAS_GRADIENTS"), False),
    **dict.fromkeys(("n_non_ignore", "sum_non_ignore_weight", "token_accuracy_stride", "predicted_tokens_stride"), 0),
    "X_ptr": "logits",
    "X_stride": stride("logits", 0),
    "Y_ptr": "target",
    "Y_stride": stride("target", 0),
    "loss_ptr": "loss",
    "loss_stride": stride("loss", 0),
    "n_cols": V,
    "weight_sum": 0.0,
    "ignore_index": -100,
    "lse_square_scale": 0.0,
    "label_smoothing": 0.0,
    "reduction": "none",
}


def reference(xp, call):
    most = xp.max(call.logits, axis=1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(call.logits - most), axis=1)) + most[:, 0]
    return {"loss": total - call.logits[xp.arange(call.logits.shape[0]), call.target]}


operator = Operator(
    name="cross_entropy",
    dims=("R", "V"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("logits", (R, V), "T"),
        Tensor("target", (R,), "i64", values=uniform(0, CLASSES)),
        Tensor("loss", (R,), "T", output=True),
    ),
    legal=(stride("logits", 1) == 1, V >= CLASSES),
    reference=reference,
    flops=5 * R * V,
    workload=tuple(problem(R=r, V=128256) for r in (1, 4096)),
    kernels=(
        Kernel(
            "liger",
            backend="triton",
            parameters=(Parameter("num_warps", (8, 16, 32)),),
            triton=TritonFunction(FUNCTION, {**arguments, "BLOCK_SIZE": minimum(32768, next_power_of_2(V))}, (R,)),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(FUNCTION, {**arguments, "BLOCK_SIZE": 4096}, (R,), {"num_warps": 8}),
            generic=True,
        ),
    ),
)
