"""A product in f32 that has no kernel of speed beside the CBLAS of the process."""

from aot_tune.spec import AddTensor, Baseline, Epilogue, Kernel, Operator, Tensor, dims, present, problem, stride, table

M, N, K = dims("M N K")
BY_ROWS = tuple(c for t, n in (("a", K), ("b", N), ("out", N)) for c in (stride(t, 1) == 1, stride(t, 0) >= n))
PLAIN = present("bias") == 0


def kernel(name, epilogue, *requires, **more):
    given = {"backend": "cblas", "listed": table("EPILOGUE", (epilogue,)), "requires": (*BY_ROWS, *requires)}
    return Kernel(name, "gemm/vendor/cblas.cpp.j2", **given, **more)


def theirs(numpy, call):
    def product():
        numpy.matmul(call.a, call.b, out=call.out)
        if call.bias is not None:
            numpy.add(call.out, call.bias, out=call.out)

    return product


operator = Operator(
    name="product",
    dims=("M", "N", "K"),
    tensors=(
        Tensor("a", (M, K)),
        Tensor("b", (K, N)),
        Tensor("bias", (N,), optional=True),
        Tensor("out", (M, N), output=True),
    ),
    epilogue=Epilogue("out", (AddTensor("bias", (1,)),)),
    reference=lambda xp, call: {"out": xp.matmul(call.a, call.b) + (0 if call.bias is None else call.bias)},
    flops=2 * M * N * K,
    workload=(problem(M=96, N=256, K=512), problem(M=96, N=256, K=512, present=["bias"])),
    baselines=(Baseline("numpy.matmul", "numpy", theirs),),
    kernels=(
        Kernel("generic", "product/generic.cpp.j2", generic=True),
        kernel("cblas", False, PLAIN, algorithms=lambda problem: None),
        kernel("cblas_then_epilogue", True, stages=("cblas", "epilogue"), worthwhile=(present("bias") == 1,)),
    ),
)
