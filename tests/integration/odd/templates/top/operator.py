from aot_tune.spec import Kernel, Operator, Parameter, Scalar, Tensor, dims, parameter, problem, stride

M, N, K = dims("M N K")
operator = Operator(
    name="top",
    dims=("M", "N", "K"),
    tensors=(Tensor("x", (M, 2 * N), read=M * K), Tensor("out", (M, K), output=True)),
    scalars=(Scalar("count", "i64", binds="K"),),
    legal=(K <= N,),
    reference=lambda xp, call: {"out": call.x[:, : call.count]},
    flops=M * K,
    workload=(problem(M=64, N=512, K=64),),
    kernels=(
        Kernel("generic", "top/generic.cpp.j2", generic=True),
        Kernel(
            "unrolled",
            "top/unrolled.cpp.j2",
            parameters=(Parameter("U", (4, 8)),),
            requires=(K % parameter("U") == 0, stride("x", 1) == 1, stride("out", 1) == 1),
        ),
    ),
)
