"""The mean of 3 x 3 neighbours."""

from aot_tune.spec import Kernel, Operator, Parameter, Tensor, dims, problem, stride

H, W = dims("H W")


def reference(_, call):
    rows = call.x[:-2] + call.x[1:-1] + call.x[2:]
    return {"y": (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]) / 9}


operator = Operator(
    name="blur",
    dims=("H", "W"),
    tensors=(Tensor("x", (H + 2, W + 2)), Tensor("y", (H, W), output=True)),
    reference=reference,
    flops=9 * H * W,
    workload=(problem(H=64, W=1920), problem(H=270, W=480)),
    kernels=(
        Kernel("generic", "blur/generic.cpp.j2", generic=True),
        Kernel(
            "halide",
            "blur/halide.cpp.j2",
            backend="halide",
            parameters=(Parameter("ROWS", (8, 32)), Parameter("LANES", (16,))),
            requires=(stride("x", 1) == 1, stride("y", 1) == 1),
        ),
    ),
)
