from aot_tune.spec import Kernel, Launcher, Operator, Parameter, Tensor, dims, problem, stride

M, K = dims("M K")
sizes = {"rows": M, "columns": K}


def reference(xp, call):
    return {"y": xp.matmul(call.matrix, call.x)}


operator = Operator(
    name="gemv",
    dims=("M", "K"),
    tensors=(Tensor("matrix", (M, K), cold=True), Tensor("x", (K,)), Tensor("y", (M,), output=True)),
    legal=(stride("matrix", 1) == 1, stride("matrix", 0) == K, stride("x", 0) == 1, stride("y", 0) == 1),
    reference=reference,
    flops=2 * M * K,
    workload=(problem(M=4096, K=4096), problem(M=14336, K=4096)),
    kernels=(
        Kernel(
            "warps",
            function=Launcher("csrc/gemv.cu:launch_gemv", sizes),
            parameters=(Parameter("WARPS", (1, 2, 4, 8)),),
        ),
        Kernel("generic", function=Launcher("csrc/gemv.cu:launch_gemv", sizes), generic=True),
    ),
)
