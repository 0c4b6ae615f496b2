"""Attention over two halves of the keys, merged by their log-sum-exp of base 2: flashinfer's launcher."""

from aot_tune.spec import (
    CompileOptions,
    DTypeOf,
    Kernel,
    Launcher,
    Operator,
    Tensor,
    alignment,
    dims,
    problem,
    stride,
)

S, H, D = dims("S H D")
ROOT = "packages/flashinfer/data/include"


def reference(xp, call):
    most = xp.maximum(call.s_a, call.s_b)
    a, b = 2 ** (call.s_a - most), 2 ** (call.s_b - most)
    merged = call.v_a * (a / (a + b))[..., None] + call.v_b * (b / (a + b))[..., None]
    return {"v_merged": merged, "s_merged": xp.log2(a + b) + most}


operator = Operator(
    name="merge_states",
    dims=("S", "H", "D"),
    dtypes={"T": ("bf16", "f16")},
    tensors=(
        *(Tensor(name, (S, H, D), "T") for name in ("v_a", "v_b")),
        *(Tensor(name, (S, H), "f32") for name in ("s_a", "s_b")),
        Tensor("v_merged", (S, H, D), "T", output=True),
        Tensor("s_merged", (S, H), "f32", output=True),
    ),
    legal=(
        *(alignment(t) >= 16 for t in ("v_a", "v_b", "v_merged")),
        D == 128,
        H <= 64,
        *(stride(t, axis) == step for t in ("v_a", "v_b", "v_merged") for axis, step in enumerate((H * D, D, 1))),
        *(stride(t, axis) == step for t in ("s_a", "s_b", "s_merged") for axis, step in enumerate((H, 1))),
    ),
    reference=reference,
    flops=4 * S * H * D,
    workload=tuple(problem(S=s, H=32, D=128) for s in (16, 4096)),
    checks=(problem(S=3, H=5, D=128),),
    kernels=(
        Kernel(
            "generic",
            function=Launcher(
                f"{ROOT}/flashinfer/attention/cascade.cuh:flashinfer::MergeState",
                {"seq_len": S, "num_heads": H, "head_dim": D},
                template={"DTypeIn": DTypeOf("v_a"), "DTypeO": DTypeOf("v_merged")},
            ),
            compile=CompileOptions(include_directories=(ROOT,)),
            generic=True,
        ),
    ),
)
