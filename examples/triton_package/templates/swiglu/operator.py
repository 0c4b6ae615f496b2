from aot_tune.spec import Kernel, Operator, Tensor, TritonFunction, dims, next_power_of_2, problem, stride, where

R, D = dims("R D")
rows = {"out_ptr": "out", "gate_ptr": "gate", "up_ptr": "up", "columns": D}
rows |= {f"{name}_stride": stride(name, 0) for name in ("out", "gate", "up")}


def reference(xp, call):
    return {"out": call.gate / (1 + xp.exp(-call.gate)) * call.up}


operator = Operator(
    name="swiglu",
    dims=("R", "D"),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(Tensor("gate", (R, D), "T"), Tensor("up", (R, D), "T"), Tensor("out", (R, D), "T", output=True)),
    legal=tuple(stride(name, 1) == 1 for name in ("gate", "up", "out")),
    reference=reference,
    flops=5 * R * D,
    workload=tuple(problem(R=r, D=14336) for r in (1, 64, 4096)),
    kernels=(
        Kernel(
            "whole_row",
            backend="triton",
            triton=TritonFunction(
                "kernels.py:swiglu",
                {**rows, "BLOCK": next_power_of_2(D)},
                grid=(R,),
                options={"num_warps": where(D > 4096, 16, 4)},
            ),
            requires=(D <= 16384,),
        ),
        Kernel(
            "generic",
            backend="triton",
            triton=TritonFunction("kernels.py:swiglu", {**rows, "BLOCK": 1024}, grid=(R,)),
            generic=True,
        ),
    ),
)
