"""Rotary embedding of Liger-Kernel, which changes queries and keys of `(batch, token, head, width)` in place."""

from aot_tune.spec import Kernel, Operator, Tensor, TritonFunction, dims, next_power_of_2, problem, stride

B, S, HQ, HK, D = dims("B S HQ HK D")
TENSORS = ("q", "k")

in_rows = {"q_ptr": "q", "k_ptr": "k", **{f"{t}_row_stride": stride(t, 1) for t in TENSORS}}
in_rows |= {f"{t}_row_stride": stride(t, 0) for t in ("cos", "sin")}
in_rows |= {"sl": S, "bs": 1, "cos_bs": 1, "n_qh": HQ, "n_kh": HK, "hd": D, "rd": D, "BLOCK_SIZE": 1}
in_rows |= {"pad_n_qh": next_power_of_2(HQ), "pad_n_kh": next_power_of_2(HK)}
in_rows |= {"pad_hd": next_power_of_2(D), "pad_rd": next_power_of_2(D)}
any_strides = {f"{t}_{i}": stride(t, i) for t in TENSORS for i in range(4)}
any_strides |= {f"{t}_{i}": stride(t, i) for t in ("cos", "sin") for i in range(2)}


def rows(tensor):
    """A token's heads follow each other, and all tokens have the same distance."""
    return (stride(tensor, 3) == 1, stride(tensor, 2) == D, stride(tensor, 0) == S * stride(tensor, 1))


def reference(xp, call):
    half = call.q.shape[3] // 2
    cos, sin = call.cos[None, :, None, :half], call.sin[None, :, None, :half]

    def turn(x):
        left, right = x[..., :half], x[..., half:]
        return xp.concat([left * cos - right * sin, right * cos + left * sin], axis=3)

    return {"q": turn(call.q), "k": turn(call.k)}


operator = Operator(
    name="rope",
    dims=("B", "S", "HQ", "HK", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("q", (B, S, HQ, D), "T", inout=True),
        Tensor("k", (B, S, HK, D), "T", inout=True),
        Tensor("cos", (S, D), "T"),
        Tensor("sin", (S, D), "T"),
    ),
    legal=(D % 2 == 0,),
    reference=reference,
    flops=3 * B * S * (HQ + HK) * D,
    workload=tuple(problem(B=1, S=s, HQ=32, HK=8, D=128) for s in (1, 4096)),
    kernels=(
        Kernel(
            "liger",
            backend="triton",
            triton=TritonFunction("liger_kernel.ops.rope:_triton_rope", in_rows, (B * S,)),
            requires=(
                *(r for t in TENSORS for r in rows(t)),
                *(stride(t, 1) == 1 for t in ("cos", "sin")),
                next_power_of_2(HQ) * next_power_of_2(D) <= 16384,
                next_power_of_2(HK) * next_power_of_2(D) <= 16384,
            ),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction(
                "kernels.py:rope_any",
                {**any_strides, "tokens": S, "query_heads": HQ, "half": D // 2, "BLOCK": 64},
                (B * S, HQ + HK),
                {"num_warps": 2},
            ),
            generic=True,
        ),
    ),
)
