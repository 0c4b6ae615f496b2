"""Outputs of gated linear attention from the states of chunks, from flash-linear-attention: `chunk_fwd_kernel_o`.

Shapes are the package's: q and k `(B, T, H, K)`, v and out `(B, T, HV, V)`, the states h `(B, chunks, HV, K, V)`. The
gates g `(B, T, HV)` are optional; they are summed within chunks, and of base 2.
"""

from aot_tune.spec import (
    Kernel,
    Operator,
    Scalar,
    Tensor,
    TritonFunction,
    ceildiv,
    dims,
    present,
    problem,
    stride,
    uniform,
    where,
)

B, T, H, K, HV, V = dims("B T H K HV V")
CHUNK = 64
chunks = ceildiv(T, CHUNK)
SHAPES = {
    "q": (B, T, H, K),
    "k": (B, T, H, K),
    "v": (B, T, HV, V),
    "h": (B, chunks, HV, K, V),
    "out": (B, T, HV, V),
}


def contiguous(tensor, shape):
    step = 1
    for axis in reversed(range(len(shape))):
        yield stride(tensor, axis) == step
        step = shape[axis] * step


def contiguous_gates():
    return (where(present("g"), stride("g", 2), 1) == 1, where(present("g"), stride("g", 1), HV) == HV,
            where(present("g"), stride("g", 0), T * HV) == T * HV)  # fmt: skip


def grid(meta):
    return (ceildiv(V, meta["BV"]) * chunks, B * HV)


def reference(xp, call):
    heads, values = call.q.shape[2], call.v.shape[2]
    shared = [head // (values // heads) for head in range(values)]

    def by_head(x, part):
        return xp.permute_dims(x[:, part], (0, 2, 1, 3))

    parts = []
    for number, start in enumerate(range(0, call.q.shape[1], CHUNK)):
        part = slice(start, start + CHUNK)
        q, k = by_head(call.q[:, :, shared], part), by_head(call.k[:, :, shared], part)
        scores = xp.matmul(q, xp.permute_dims(k, (0, 1, 3, 2)))
        carried = xp.matmul(q, call.h[:, number])
        if call.g is not None:
            g = xp.permute_dims(call.g[:, part], (0, 2, 1))
            scores, carried = scores * 2 ** (g[..., :, None] - g[..., None, :]), carried * 2 ** g[..., None]
        out = carried + xp.matmul(xp.tril(scores), by_head(call.v, part))
        parts.append(xp.permute_dims(out * call.scale, (0, 2, 1, 3)))
    return {"out": xp.concat(parts, axis=1)}


operator = Operator(
    name="chunk_output",
    dims=("B", "T", "H", "K", "HV", "V"),
    dtypes={"E": ("bf16", "f16")},
    tensors=(
        *(Tensor(name, SHAPES[name], "E") for name in "qkvh"),
        Tensor("g", (B, T, HV), "f32", optional=True, values=uniform(-2.0, 0.0)),
        Tensor("out", SHAPES["out"], "E", output=True),
    ),
    scalars=(Scalar("scale", default=0.0883883),),
    legal=(where(H > 0, HV % H, 1) == 0,),
    reference=reference,
    flops=2 * B * T * HV * (K * V + CHUNK * K + CHUNK * V),
    tolerance=16.0,  # the kernel rounds scores to the tensors' dtype, and the package's users expect that
    workload=tuple(problem(B=1, T=t, H=16, K=128, HV=16, V=128, present=p) for t in (1024, 8192) for p in ((), ("g",))),
    checks=(
        problem(B=2, T=100, H=2, K=40, HV=4, V=24, present=("g",)),
        problem(B=1, T=65, H=1, K=64, HV=1, V=128),
    ),
    kernels=(
        Kernel(
            "fla",
            backend="triton",
            triton=TritonFunction(
                "fla.ops.common.chunk_o:chunk_fwd_kernel_o",
                {
                    **dict.fromkeys(("g_gamma", "cu_seqlens", "chunk_indices")),
                    "o": "out",
                    "BT": CHUNK,
                    "STATE_V_FIRST": False,
                },
                grid,
            ),
            requires=(*(r for t, shape in SHAPES.items() for r in contiguous(t, shape)), *contiguous_gates()),
        ),
        # A Triton function with an optional pointer becomes two codes, but the generic kernel must be one.
        Kernel("generic", "chunk_output/generic.cu.j2", backend="nvcc", generic=True),
    ),
)
