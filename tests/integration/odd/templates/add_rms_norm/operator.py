from aot_tune.spec import (
    Baseline,
    Kernel,
    Launcher,
    Operator,
    Parameter,
    Scalar,
    Tensor,
    dims,
    present,
    problem,
    stride,
)

R, D = dims("R D")
dense = tuple(c for t in ("x", "residual") for c in (stride(t, 1) == 1, stride(t, 0) == D))


def reference(xp, call):
    residual = call.residual + call.x
    scale = 1 / xp.sqrt(xp.mean(residual * residual, axis=-1, keepdims=True) + call.eps)
    new = {"x": residual * scale * call.w, "residual": residual}
    return new if call.calls is None else {**new, "calls": call.calls + 1}


def in_numpy(np, call):
    def run():
        np.add(call.residual, call.x, out=call.residual)
        scale = 1 / np.sqrt(np.mean(call.residual**2, axis=-1, keepdims=True) + call.eps)
        np.multiply(call.residual * scale, call.w, out=call.x)
        if call.calls is not None:
            call.calls += 1

    return run


operator = Operator(
    name="add_rms_norm",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D), inout=True),
        Tensor("residual", (R, D), inout=True),
        Tensor("w", (D,)),
        Tensor("calls", (R,), "i32", inout=True, optional=True),
    ),
    scalars=(Scalar("eps", default=1e-5),),
    reference=reference,
    flops=5 * R * D,
    workload=(problem(R=16, D=1024), problem(R=300, D=500)),
    baselines=(Baseline("numpy", "numpy", in_numpy),),
    kernels=(
        Kernel("generic", "add_rms_norm/rows.cpp.j2", generic=True),
        Kernel("dense", "add_rms_norm/rows.cpp.j2", requires=(stride("x", 1) == 1, stride("residual", 1) == 1)),
        Kernel(
            "own",
            function=Launcher("csrc/add_rms_norm.cpp:add_rms_norm", {"rows": R, "columns": D}),
            requires=(*dense, stride("w", 0) == 1, ~present("calls")),
        ),
        Kernel("wrong", "add_rms_norm/rows.cpp.j2", parameters=(Parameter("WRONG", ("idle", "twice", "gap")),)),
    ),
)
