"""The first half of a SwiGLU block of Liger-Kernel: one kernel computes both products of the input.

Its descriptors are made by the host. Hooks of its configs set their blocks, which are declared here. Offsets into
descriptors have 32 bits.
"""

from aot_tune.spec import (
    Descriptor,
    Kernel,
    Operator,
    Tensor,
    TritonFunction,
    ceildiv,
    dims,
    parameter,
    problem,
    stride,
)

B, S, D, H = dims("B S D H")
BLOCK_M, BLOCK_N, BLOCK_K = map(parameter, ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
TENSORS = {"x": 3, "gate": 2, "up": 2, "out": 3}
any_strides = {f"{t}_{i}": stride(t, i) for t, rank in TENSORS.items() for i in range(rank)}


def grid(meta):
    return (ceildiv(S, meta["BLOCK_M"]) * ceildiv(H, meta["BLOCK_N"]), B)


def any_grid(meta):
    return (ceildiv(H, meta["COLUMNS"]) * S, B)


def reference(xp, call):
    gate = xp.matmul(call.x, xp.permute_dims(call.gate, (1, 0)))
    return {"out": gate / (1 + xp.exp(-gate)) * xp.matmul(call.x, xp.permute_dims(call.up, (1, 0)))}


operator = Operator(
    name="swiglu_mlp",
    dims=("B", "S", "D", "H"),
    dtypes={"T": ("bf16", "f16")},
    tensors=(
        Tensor("x", (B, S, D), "T"),
        Tensor("gate", (H, D), "T", cold=True),
        Tensor("up", (H, D), "T", cold=True),
        Tensor("out", (B, S, H), "T", output=True),
    ),
    reference=reference,
    flops=4 * B * S * D * H,
    workload=(problem(B=1, S=1024, D=4096, H=14336),),
    kernels=(
        Kernel(
            "liger",
            backend="triton",
            triton=TritonFunction(
                "liger_kernel.ops.mlp:_swiglu_kernel_forward_inference",
                {
                    "desc_input": Descriptor("x", (1, BLOCK_M, BLOCK_K)),
                    "desc_Wg": Descriptor("gate", (BLOCK_N, BLOCK_K)),
                    "desc_Wu": Descriptor("up", (BLOCK_N, BLOCK_K)),
                    "desc_A": Descriptor("out", (1, BLOCK_M, BLOCK_N)),
                    "dim": D,
                    "hidden_dim": H,
                    "bucket_M": 0,  # only a key of its autotuner
                    "gate_multiplier": 1.0,
                },
                grid,
                narrow=("S", "dim", "hidden_dim"),
                hooks_declared=True,
            ),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(
                "kernels.py:gated_any",
                {**any_strides, "hidden": H, "depth": D, "COLUMNS": 32, "DEPTH": 128},
                any_grid,
                {"num_warps": 4},
            ),
            generic=True,
        ),
    ),
)
