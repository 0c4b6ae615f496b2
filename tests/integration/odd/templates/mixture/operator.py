from aot_tune.spec import Epilogue, Fragment, Kernel, Operator, Scalar, Tensor, dims, problem, stride
from aot_tune.spec import elementwise as el

M, N, K = dims("M N K")
x = el.value()


def reference(xp, call):
    product = xp.matmul(call.a, call.b)
    return {"out": call.epilogue(call.fragment("slanted", product))}


operator = Operator(
    name="mixture",
    dims=("M", "N", "K"),
    tensors=(
        Tensor("a", (M, K)),
        Tensor("b", (K, N)),
        Tensor("bias", (N,), optional=True),
        Tensor("slopes", (M,)),
        Tensor("out", (M, N), output=True),
    ),
    scalars=(Scalar("alpha", default=0.75),),
    epilogue=Epilogue("out", expression=x * el.sigmoid(x) + el.element("bias", 1) * el.scalar("alpha")),
    fragments={"slanted": Fragment({"i": M, "j": N}, x + el.element("slopes", "i") * (el.index("j") % 5))},
    reference=reference,
    flops=2 * M * N * K,
    workload=(problem(M=32, N=256, K=16, present=("bias",)),),
    kernels=(
        Kernel("generic", "mixture/generic.cpp.j2", generic=True),
        *(
            Kernel(
                name,
                "mixture/lanes.cpp.j2",
                listed=({"W": 4, "FORGETS": name},),
                requires=tuple(stride(t, 1) == 1 for t in ("b", "out")),
            )
            for name in ("whole", "forgets_epilogue", "forgets_fragment")
        ),
    ),
)
