from aot_tune.spec import Kernel, Operator, Parameter, Scalar, Tensor, dims, problem, stride

(N,) = dims("N")
space = (Parameter("LANES", (4, 8, 16)), Parameter("THREADS", (1, 2)))
dense = (stride("x", 0) == 1, stride("y", 0) == 1)
operator = Operator(
    name="affine", dims=("N",), flops=2 * N, workload=(problem(N=4096), problem(N=1 << 20)),
    tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)), scalars=(Scalar("a"), Scalar("b")),
    reference=lambda _, call: {"y": call.a * call.x + call.b},
    kernels=(Kernel("tuned", "affine/affine.cpp.j2", parameters=space, requires=dense),
             Kernel("generic", "affine/affine.cpp.j2", generic=True)))
