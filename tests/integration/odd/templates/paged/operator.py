from aot_tune.spec import Kernel, Operator, Tensor, dims, drawn, integers, problem

B, P = dims("B P")


def lengths(rng, call):
    return rng.integers(call.least, 16 * (call.P // call.B), endpoint=True)


def table(rng, call):
    return rng.permutation(call.P)[: call.B * call.shape[1]].reshape(call.shape)


def reference(xp, call):
    at = xp.arange(16 * call.table.shape[1], dtype=call.lengths.dtype)
    rows = xp.reshape(call.pages[call.table], (call.table.shape[0], -1))
    return {"out": xp.sum(xp.where(at < call.lengths[:, None], rows, 0 * rows), axis=1)}


operator = Operator(
    name="paged",
    dims=("B", "P"),
    tensors=(
        Tensor("least", (B,), "i32", values=integers(1, 17)),
        Tensor("lengths", (B,), "i32", values=drawn(lengths)),
        Tensor("pages", (P, 16)),
        Tensor("table", (B, P // B), "i32", values=drawn(table)),
        Tensor("out", (B,), output=True),
    ),
    legal=(P >= B,),
    reference=reference,
    flops=16 * P,
    workload=(problem(B=4, P=200),),
    kernels=(Kernel("generic", "paged/generic.cpp.j2", generic=True),),
)
