"""The Triton function of grouped products, in Triton's interpreter: prints by how much it is off for each call.

`TRITON_INTERPRET=1 python grouped_interpreted.py`
"""

import itertools
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from aot_tune.spec.load_operators import bundled_templates
from aot_tune.triton.interpreter import interpreted

ROWS, EXPERTS, N, K = 50, 5, 144, 144  # two blocks of scales along N and K
BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128}
ENDS = ([0, 20, 20, 21, 33], [-5, 40, 10, 2**31 - 1, 45])
COUNTS = ([-4, 2**31 - 1, 20, 0, 3],)


def descriptor(tensor: Any, block: list[int]) -> Any:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def error(kernel: Any, sizes: list[int], *, masked: bool, scaled: bool, by_columns: bool, swap: bool) -> float:
    """The largest difference to the definition, of results whose size is about 16; NaN if an element is not right."""
    torch.manual_seed(len(sizes) + sum(sizes) % 1000)
    rows, room = ((EXPERTS, 20), 20) if masked else ((ROWS,), ROWS)
    dtype, out_dtype = (torch.float8_e4m3fn, torch.float32) if scaled else (torch.float16, torch.float16)
    a, b = torch.randn(*rows, K).to(dtype), torch.randn(EXPERTS, N, K).to(dtype)
    scale_a, scale_b = torch.rand(*rows, -(-K // 128)) + 0.5, torch.rand(EXPERTS, -(-K // 128), -(-N // 128)) + 0.5
    out = torch.full((*rows, N), 7.0, dtype=out_dtype)
    bm, bn, bk = BLOCKS.values()
    strides = {f"scale_a_{n}": 0 for n in ("expert", "row", "k")} | {f"scale_b_{n}": 0 for n in ["expert", "k", "n"]}
    if scaled:
        strides |= dict(zip(("scale_a_row", "scale_a_k"), scale_a.stride()[-2:], strict=True))
        strides |= {"scale_a_expert": scale_a.stride(0) if masked else 0}
        strides |= dict(zip(("scale_b_expert", "scale_b_k", "scale_b_n"), scale_b.stride(), strict=True))
    kernel[(3,)](
        a=descriptor(a, [1, bm, bk] if masked else [bm, bk]),
        b=descriptor(b, [1, bn, bk]) if by_columns else descriptor(b.mT.contiguous(), [1, bk, bn]),
        sizes=torch.tensor(sizes, dtype=torch.int32),
        scale_a=scale_a if scaled else None,
        scale_b=scale_b if scaled else None,
        out=out,
        out_expert=out.stride(0) if masked else 0,
        out_row=N,
        E=EXPERTS,
        M=room,
        N=N,
        K=K,
        MASKED=masked,
        BY_COLUMNS=by_columns,
        SWAP=swap,
        **strides,
        **BLOCKS,
    )
    x, w = a.double(), b.double()
    if scaled:
        x = x * scale_a.repeat_interleave(128, -1)[..., :K]
        w = w * scale_b.mT.repeat_interleave(128, 1)[:, :N].repeat_interleave(128, 2)[..., :K]
    wanted, end = torch.full((*rows, N), 7.0 if masked else 0.0, dtype=torch.double), 0
    for e, size in enumerate(sizes):
        begin, end = (0, min(max(size, 0), room)) if masked else (end, min(max(size, end), room))
        at = (e, slice(begin, end)) if masked else slice(begin, end)
        wanted[at] = x[at] @ w[e].T
    return float((out.double() - wanted).abs().max())


def main() -> None:
    kernel = interpreted("grouped_gemm/triton.py:grouped", [str(bundled_templates())])
    for masked, scaled, swap in itertools.product((False, True), repeat=3):
        for sizes in COUNTS if masked else ENDS:
            form = {"masked": masked, "scaled": scaled, "by_columns": scaled or masked != swap, "swap": swap}
            print(error(kernel, sizes, **form), sizes, form)


if __name__ == "__main__":
    main()
