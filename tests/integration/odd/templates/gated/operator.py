from aot_tune.spec import Kernel, Operator, Parameter, Tensor, dims, problem

R, D = dims("R D")
operator = Operator(
    name="gated",
    dims=("R", "D"),
    tensors=(
        Tensor("gate", (R, D)),
        Tensor("up", (R, D)),
        Tensor("out", (R, D), output=True, may_alias=("gate", "up")),
        Tensor("total", (R,), output=True),
    ),
    reference=lambda xp, call: {"out": call.gate * call.gate + call.up, "total": xp.sum(call.gate, axis=1)},
    flops=3 * R * D,
    workload=(problem(R=64, D=1000),),
    kernels=(
        Kernel("generic", "gated/rows.cpp.j2", generic=True),
        Kernel("rows", "gated/rows.cpp.j2", parameters=(Parameter("LATE", (0, 1)),)),
    ),
)
