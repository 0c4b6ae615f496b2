"""Problems for tests of the bundled Triton kernels: sizes that no block divides, padded rows, epilogues."""

from __future__ import annotations

from collections.abc import Iterator

from aot_tune.spec import Kernel, Operator, Problem, all_of, problem

PRESENT: dict[str, tuple[tuple[str, ...], ...]] = {
    "rms_norm": (
        ("weight",),
        (),
        ("weight", "residual", "residual_out"),
        ("weight", "residual"),
        ("residual", "residual_out"),
    ),
    "layer_norm": (("weight", "bias"), (), ("weight",), ("bias",)),
}
"""Which optional tensors are passed."""


def rows_problems(op: Operator, kernel: Kernel, dtype: str) -> Iterator[Problem]:
    wide = "long" in kernel.name or "twice" in kernel.name
    for r, d in ((3, 20001), (1, 8200)) if wide else ((1, 1000), (5, 517), (37, 40)):
        for present in PRESENT.get(op.name, ((),)):
            yield problem(R=r, D=d, present=present, dtypes={"T": dtype})
    if "twice" in kernel.name:  # in one block
        for present in PRESENT[op.name][:2]:
            yield problem(R=2, D=3001, present=present, dtypes={"T": dtype})
    if kernel.name != "triton_flat":
        first, out = op.tensors[0].name, op.tensors[-1].name if op.name != "rms_norm" else "out"
        d = 9000 if wide else 1000
        yield problem(R=3, D=d, strides={first: (d + 21, 1), out: (d + 3, 1)}, dtypes={"T": dtype})


def gemm_problems(kernel: Kernel, dtype: str) -> Iterator[Problem]:
    order = {} if kernel.name.endswith("_kn") else {"b": (1, 0)}
    math = {"math": "tf32"} if dtype == "f32" else {}
    few = "gemv" in kernel.name  # rows and columns: some of them, or one, have programs of their own
    free = few or "split" in kernel.name  # others clip at whole 16 bytes
    for activation in ("none", "relu", "gelu_tanh"):
        deep = activation in ("none", "relu")  # and of several tiles in each direction
        m, n, k = (77, 136, 328) if deep else (21, 72, 40)
        if free:
            m, n, k = (m, n - 3, k + 5) if not few else (3, 13, 1333 if deep else 45)
        yield problem(
            M=m,
            N=n,
            K=k,
            order=order,
            attributes={"activation": activation} | math,
            present=["bias"] if activation == "none" else ["bias", "residual"],
            dtypes={"T": dtype},
        )
    m, n = (3, 22) if few else (77, 264) if free else (300, 264)
    yield problem(M=m, N=n, K=72, order=order, attributes=math, dtypes={"T": dtype})
    yield problem(
        M=2, N=19 if few else 72, K=1032, order=order, attributes=math, present=["residual"], dtypes={"T": dtype}
    )
    if "tail" in kernel.name:  # the second part of a tile that is cut up
        yield problem(M=2, N=200, K=72, order=order, attributes=math, dtypes={"T": dtype})


def attention_problems(kernel: Kernel, dtype: str) -> Iterator[Problem]:
    width = int(kernel.name.rpartition("_")[2])
    free = kernel.name in (f"triton_{width}", f"triton_split_{width}")
    split_keys = "split" in kernel.name  # they have few queries a block: many would be many blocks
    some, many, more = (7, 9, 11) if split_keys else (70, 133, 150)
    groups = [("none", 1, 300, 4, 2)] if split_keys else []
    for causal, m, n, h, hk in (
        ("upper_left", more, 133, 1, 1),
        ("lower_right", more, 133, 1, 1),
        ("none", 1, 257, 3, 2),
        *groups,
    ):
        chosen = {} if causal == "none" else {"causal": causal}
        d = width - (7 if free else 8) if m == more else width
        yield problem(B=1, H=h, HK=hk, M=m, N=n, D=d, attributes=chosen, dtypes={"T": dtype})
    split = dict.fromkeys(("q", "k", "v", "out"), (3 * 40 * width, width, 3 * width, 1))  # heads between rows
    yield problem(B=2, H=3, HK=3, M=5 if split_keys else 40, N=40, D=width, strides=split, dtypes={"T": dtype})
    d = width - (7 if free else 8)
    none, upper, lower = {}, {"causal": "upper_left"}, {"causal": "lower_right"}
    masked = (
        (some, 200, ["mask"], {"mask": (200, 0, 0, 1)}, none),
        (many, 70, ["bias"], {"bias": (0, many * 70, 70, 1)}, lower),
        (some, 133, ["bias", "mask"], {"bias": (0, 0, 2, 144)}, upper),
        (3, 400, ["bias", "mask"], {}, lower),
    )
    for m, n, present, strides, causal in masked[:2] if split_keys else masked:
        yield problem(
            B=2,
            H=2,
            HK=1,
            M=m,
            N=n,
            D=d,
            strides=strides,
            present=present,
            attributes=causal,
            dtypes={"T": dtype},
        )


def odd_problems(op: Operator, kernel: Kernel, dtype: str) -> list[Problem]:
    """Problems that the kernel's guards let through."""
    if op.name == "gemm":
        found = list(gemm_problems(kernel, dtype))
    elif op.name == "flash_attention":
        found = list(attention_problems(kernel, dtype))
    else:
        found = list(rows_problems(op, kernel, dtype))
    facts = [op.facts(p) for p in found]
    return [p for p, f in zip(found, facts, strict=True) if all_of(kernel.requires, f)]
