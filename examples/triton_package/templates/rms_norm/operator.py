from aot_tune.spec import Kernel, Operator, Scalar, Tensor, TritonFunction, ceildiv, dims, problem, stride

R, D = dims("R D")
arguments = {"out_ptr": "out", "x_ptr": "x", "weight_ptr": "weight", "rows": R, "columns": D}
arguments |= {"out_stride": stride("out", 0), "x_stride": stride("x", 0)}


def grid(meta):
    return (ceildiv(meta["rows"], meta["ROWS"]),)


def reference(xp, call):
    return {"out": call.x / xp.sqrt(xp.mean(call.x * call.x, axis=1, keepdims=True) + call.eps) * call.weight}


operator = Operator(
    name="rms_norm",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(Tensor("x", (R, D), "T"), Tensor("weight", (D,), "T"), Tensor("out", (R, D), "T", output=True)),
    scalars=(Scalar("eps", default=1e-5, other=0.25),),
    legal=(stride("x", 1) == 1, stride("weight", 0) == 1, stride("out", 1) == 1),
    reference=reference,
    flops=4 * R * D,
    workload=tuple(problem(R=r, D=4096) for r in (1, 64, 4096)),
    kernels=(
        Kernel("rows", backend="triton", triton=TritonFunction("kernels.py:rms_norm", arguments, grid)),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction("kernels.py:rms_norm", {**arguments, "BLOCK": 1024}, grid),
            generic=True,
        ),
    ),
)
