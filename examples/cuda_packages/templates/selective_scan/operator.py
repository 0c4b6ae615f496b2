"""The selective scan of mamba-ssm, with varying b and c, a gate and a skip connection. Its launcher takes a struct.

Threads, and items of a thread, are arguments of its template. The package chooses them only by the length.
"""

from aot_tune.spec import (
    Buffer,
    Code,
    CompileOptions,
    DTypeOf,
    Kernel,
    Launcher,
    Operator,
    Parameter,
    Struct,
    Tensor,
    alignment,
    ceildiv,
    dims,
    maximum,
    parameter,
    problem,
    stride,
    uniform,
)

B, D, L, N, G = dims("B D L N G")
ROWS = ("u", "delta", "z", "out", "out_z")
NAMES = {"A": "a", "B": "b", "C": "c", "D": "skip", "delta_bias": "delta_bias", **{t: t for t in ROWS}}
sizes = {"batch": B, "dim": D, "seqlen": L, "dstate": N, "n_groups": G, "dim_ngroups_ratio": D // maximum(G, 1)}
switches = dict.fromkeys(("is_variable_B", "is_variable_C", "delta_softplus"), True)


def launcher(threads, items):
    chunks = ceildiv(L, threads * items)
    params = {
        **(sizes | switches),
        "n_chunks": chunks,
        "x_ptr": Buffer("f32", B * D * chunks * N * 2),
        **{f"{name}_ptr": tensor for name, tensor in NAMES.items()},
        **{f"{t}_{axis}_stride": stride(t, i) for t in ROWS for i, axis in enumerate(("batch", "d"))},
        **{f"A_{axis}_stride": stride("a", i) for i, axis in enumerate(("d", "dstate"))},
        **{f"{t}_{by}_stride": stride(t.lower(), i) for t in "BC" for i, by in enumerate(("batch", "group", "dstate"))},
    }
    return Launcher(
        "packages/mamba_ssm-2.3.2.post1/csrc/selective_scan/selective_scan_fwd_kernel.cuh:selective_scan_fwd_launch",
        {"params": Struct("SSMParamsBase", params)},
        template={"kNThreads": threads, "kNItems": items, "input_t": DTypeOf("u"), "weight_t": Code("float")},
    )


def reference(xp, call):
    """Token by token."""
    delta = xp.log1p(xp.exp(call.delta + call.delta_bias[:, None]))
    copies = call.u.shape[1] // call.b.shape[1]
    groups = [channel // copies for channel in range(call.u.shape[1])]
    b, c = call.b[:, groups], call.c[:, groups]
    state = xp.zeros_like(b[..., 0])
    out = []
    for t in range(call.u.shape[2]):
        step, token = delta[:, :, t, None], call.u[:, :, t, None]
        state = xp.exp(step * call.a) * state + step * b[..., t] * token
        out.append(xp.sum(state * c[..., t], axis=2) + call.skip * call.u[:, :, t])
    out = xp.stack(out, axis=2)
    return {"out": out, "out_z": out * call.z / (1 + xp.exp(-call.z))}


compiled = CompileOptions(include_directories=("shims/torch_types",))
operator = Operator(
    name="selective_scan",
    dims=("B", "D", "L", "N", "G"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        # A scan joins tokens in another order than one after the other, so infinities meet others.
        *(Tensor(t, (B, D, L), "T", finite=True) for t in ("u", "delta", "z")),
        Tensor("a", (D, N), "f32", values=uniform(-1.0, -0.05), finite=True),
        *(Tensor(t, (B, G, N, L), "T", finite=True) for t in "bc"),
        *(Tensor(t, (D,), "f32", finite=True) for t in ("skip", "delta_bias")),
        *(Tensor(t, (B, D, L), "T", output=True) for t in ("out", "out_z")),
    ),
    legal=(
        *(alignment(t) >= 16 for t in (*ROWS, "b", "c")),
        L >= 1,
        G >= 1,
        D % maximum(G, 1) == 0,
        N >= 1,
        N <= 256,
        *(stride(t, 2) == 1 for t in ROWS),
        *(stride(t, axis) % 8 == 0 for t in ROWS for axis in (0, 1)),
        *(stride(t, axis) % 8 == 0 for t in "bc" for axis in range(3)),
        *(stride(t, 3) == 1 for t in "bc"),
        *(stride(t, 0) == 1 for t in ("skip", "delta_bias")),
        # the struct has them as unsigned numbers
        *(stride(t, axis) >= 0 for t in ROWS for axis in (0, 1)),
        *(stride(t, axis) >= 0 for t in "bc" for axis in range(3)),
        *(stride("a", axis) >= 0 for axis in (0, 1)),
    ),
    reference=reference,
    flops=9 * B * D * L * N,
    tolerance={"out": 8, "out_z": 8},  # the kernel's exponentials and its division are the fast ones
    workload=tuple(problem(B=1, D=1536, L=n, N=16, G=1) for n in (128, 1024, 4096)),
    checks=(problem(B=2, D=4, L=40, N=3, G=2), problem(B=1, D=3, L=600, N=16, G=1)),
    kernels=(
        Kernel(
            "threads",
            function=launcher(parameter("THREADS"), parameter("ITEMS")),
            parameters=(Parameter("THREADS", (32, 64, 128)), Parameter("ITEMS", (4, 8, 16))),
            compile=compiled,
        ),
        Kernel("generic", function=launcher(64, 8), compile=compiled, generic=True),
    ),
)
