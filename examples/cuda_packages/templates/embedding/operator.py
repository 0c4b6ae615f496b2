"""Rows of an embedding, from vllm. Its kernel copies vectors of bytes: rows in vectors of 16, or of one element."""

from aot_tune.spec import (
    Code,
    CompileOptions,
    CudaFunction,
    DTypeOf,
    Kernel,
    Operator,
    Parameter,
    Tensor,
    alignment,
    ceildiv,
    dims,
    integers,
    minimum,
    parameter,
    problem,
    stride,
)

N, V, D = dims("N V D")
none = {f"added_{what}": 0 for what in ("vocab_start_index", "vocab_end_index", "row_offset")}


def gather(elements, vector, threads):
    vectors = D // elements
    return CudaFunction(
        "packages/vllm-0.33.0/csrc/vocab_parallel_embedding_kernels.cu:vllm::vocab_embedding::vocab_parallel_embedding_kernel",
        {"num_tokens": N, "vecs_per_row": vectors, "org_vocab_start_index": 0, "org_vocab_end_index": V, **none},
        grid=(ceildiv(vectors, threads), minimum(N, 65535)),
        block=threads,
        template={"idx_t": DTypeOf("input_ids"), "vec_t": Code(vector)},
    )


def reference(_, call):
    return {"out": call.weight[call.input_ids]}


compiled = CompileOptions(include_directories=("shims/torch_stable", "shims/toolkit"))
operator = Operator(
    name="embedding",
    dims=("N", "V", "D"),
    dtypes={"I": ("i32", "i64")},
    tensors=(
        Tensor("input_ids", (N,), "I", values=integers(0, V)),
        Tensor("weight", (V, D), "bf16", read=N * D),
        Tensor("out", (N, D), "bf16", output=True),
    ),
    legal=(
        *(stride(t, axis) == step for t in ("weight", "out") for axis, step in ((0, D), (1, 1))),
        stride("input_ids", 0) == 1,
    ),
    reference=reference,
    flops=N * D,
    workload=tuple(problem(N=n, V=128256, D=4096) for n in (1, 256, 8192)),
    checks=(problem(N=5, V=11, D=37),),
    kernels=(
        Kernel(
            "vectors",
            function=gather(8, "uint4", parameter("THREADS")),
            compile=compiled,
            parameters=(Parameter("THREADS", (64, 128, 256, 512)),),
            requires=(D % 8 == 0, alignment("weight") >= 16, alignment("out") >= 16),
        ),
        Kernel("generic", function=gather(1, "uint16_t", 256), compile=compiled, generic=True),
    ),
)
