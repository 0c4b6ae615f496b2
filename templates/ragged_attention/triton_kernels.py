"""The Triton kernels of attention over ragged batches and over pages: one for each width of heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aot_tune.spec import (
    Buffer,
    Config,
    Expr,
    Kernel,
    KernelArgument,
    TritonFunction,
    attribute,
    ceildiv,
    dims,
    parameter,
    present,
    stride,
    table,
    target,
    where,
)

B, H, HK, M, N, P, PAGE, W, D, DV = dims("B H HK M N P PAGE W D DV")
BLOCK_M, SPLIT = parameter("BLOCK_M"), parameter("SPLIT")
BLOCKS = M * (H // HK) // BLOCK_M + B + 1
"""Blocks of queries for a head of keys, which are enough for any lengths: see triton.py."""
LSE = present("lse") == 1


@dataclass(frozen=True)
class Width:
    """Heads of up to `keys` + `rest` columns of keys and `values` of values, and none that `narrower` widths serve."""

    name: str
    keys: int
    rest: int
    values: int
    narrower: tuple[Width, ...] = ()

    @property
    def fits(self) -> Expr:
        return (self.keys + self.rest >= D) & (self.values >= DV)

    @property
    def requires(self) -> tuple[Expr, ...]:
        return (self.fits, *(~other.fits for other in self.narrower))


W64 = Width("64", 64, 0, 64)
W128 = Width("128", 128, 0, 128, (W64,))
W192 = Width("192", 128, 64, 128, (W128,))
W256 = Width("256", 256, 0, 256, (W192,))
W576 = Width("576", 512, 64, 512, (W256,))

_SIZES = ((M * H < 2**30) & (B < 2**20) & (H % HK == 0), B * M * H * D * DV > 0)
_UNIT: tuple[Expr, ...] = (stride("q", 2) == 1, stride("out", 2) == 1)
_STRIDES: dict[str, KernelArgument] = {
    **{f"{t}_{axis}": stride(t, i) for t in ("q", "out") for i, axis in enumerate(("row", "head"))},
    **{f"lse_{axis}": where(LSE, stride("lse", i), 0) for i, axis in enumerate(("row", "head"))},
    "cu_q_step": stride("cu_q", 0),
    "causal": attribute("causal"),
}
_RAGGED: dict[str, KernelArgument] = {
    **{f"{t}_{axis}": stride(t, i) for t in ("k", "v") for i, axis in enumerate(("row", "head"))},
    "cu_k_step": stride("cu_k", 0),
    **dict.fromkeys(("k_page", "v_page", "table_row", "table_step", "lens_step"), 0),
    **dict.fromkeys(("P", "PAGE", "W"), 1),
    **dict.fromkeys(("k_scale", "v_scale"), 1.0),
    **dict.fromkeys(("page_table", "seq_lens")),
}
_PAGED: dict[str, KernelArgument] = {
    **{f"{t}_{axis}": stride(f"{t}_pages", i) for t in ("k", "v") for i, axis in enumerate(("page", "row", "head"))},
    "k": "k_pages",
    "v": "v_pages",
    "table_row": stride("page_table", 0),
    "table_step": stride("page_table", 1),
    "lens_step": stride("seq_lens", 0),
    "cu_k": None,
    "cu_k_step": 0,
    "N": 0,
}


def _attend(width: Width, arguments: dict[str, KernelArgument], configs: tuple[Config, ...], **more: Any) -> Kernel:
    """The kernel for a width. With SPLIT in its configs, programs share keys, and another function merges results."""
    split = "SPLIT" in configs[0]
    partial = Buffer("f32", M * H * SPLIT * (width.values + 2)) if split else None
    whole = (width.keys + width.rest == D) & (width.values == DV)
    constants: dict[str, KernelArgument] = {"WHOLE": whole, "REST": width.rest, "BLOCK_D": width.keys}
    constants |= {"BLOCK_V": width.values, "partial": partial} | ({} if split else {"SPLIT": 1})
    given = _STRIDES | arguments | constants
    functions = [
        TritonFunction("ragged_attention/triton.py:attend", given, (BLOCKS * HK * (SPLIT if split else 1),)),
    ]
    if split:
        kept = ("out_row", "out_head", "lse_row", "lse_head", "BLOCK_V", "partial")
        told = {n: given[n] for n in kept} | {"COLUMNS": 64, "EARLY": target("capability") >= 90}
        grid = (M * H, ceildiv(DV, 64))
        functions.append(TritonFunction("ragged_attention/triton.py:merge", told, grid, launch_pdl=True))
    return Kernel(
        backend="triton",
        triton=tuple(functions) if split else functions[0],
        listed=configs,
        follows={"f16": "bf16"},
        compile_seconds=6.0,
        **more,
    )


def ragged(width: Width, *configs: tuple[int, ...]) -> Kernel:
    """The kernel for keys one after another. Offsets within a block have 32 bits."""
    near = [e for t in ("k", "v") for e in (stride(t, 2) == 1, (stride(t, 0) < 2**23) & (stride(t, 0) > -(2**23)))]
    return _attend(
        width,
        _RAGGED,
        table("BLOCK_M BLOCK_N num_warps num_stages", *configs),
        name=f"triton_{width.name}",
        dtypes={"T": ("bf16", "f16")},
        requires=(*_SIZES, *_UNIT, *near, *width.requires, N < 2**30),
        tile={"M": BLOCK_M, "H": 1},
    )


def paged(width: Width, *configs: tuple[int, ...]) -> tuple[Kernel, ...]:
    """Kernels for pages of q's dtype and of 8 bits. Those that share keys are for few queries of each sequence."""
    split = len(configs[0]) == 5
    names = "BLOCK_M BLOCK_N SPLIT num_warps num_stages" if split else "BLOCK_M BLOCK_N num_warps num_stages"
    requires = (*_SIZES, *_UNIT, stride("k_pages", 3) == 1, stride("v_pages", 3) == 1, *width.requires)
    requires += ((W * PAGE < 2**21) & (P < 2**30), *((M * H * SPLIT <= 2**18,) if split else ()))
    return tuple(
        _attend(
            width,
            _PAGED,
            table(names, *configs),
            name=f"triton_{'split_' if split else ''}{width.name}{ending}",
            dtypes={"T": ("bf16", "f16"), "C": cache},
            requires=requires,
            constraints=(target("capability") >= 89,) if ending else (),
            worthwhile=(M <= 16 * B,) if split else (M >= 4 * B,),
            tile={"M": BLOCK_M, "H": 1},
            **({"split": SPLIT} if split else {}),
        )
        for ending, cache in (("", ("bf16", "f16")), ("_f8", ("f8e4m3",)))
    )


RAGGED_KERNELS = (
    ragged(W64, (128, 64, 4, 3), (128, 128, 8, 3), (64, 64, 4, 3)),
    ragged(W128, (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3)),
    ragged(W192, (128, 64, 8, 2), (64, 64, 4, 2)),
    ragged(W256, (128, 64, 8, 2), (128, 32, 8, 2)),
)
# To look up a page takes stages of its own: with 3 or 4, one block of keys is on its way, with 5 there are two.
PAGED_KERNELS = (
    *paged(W64, (128, 64, 4, 3), (64, 64, 4, 3)),
    *paged(W128, (128, 64, 8, 3), (64, 64, 4, 3)),
    *paged(W256, (128, 32, 8, 3), (64, 32, 4, 3)),
    *paged(W64, (16, 128, 16, 4, 3), (16, 128, 4, 4, 5), (16, 128, 64, 4, 3)),
    *paged(W128, (16, 64, 16, 4, 5), (16, 64, 4, 4, 5), (16, 64, 64, 4, 5), (16, 128, 16, 4, 3), (64, 64, 16, 4, 3)),
    *paged(W256, (16, 32, 16, 4, 5), (16, 64, 32, 4, 3)),
    *paged(W576, (16, 32, 16, 8, 3), (16, 32, 64, 8, 3), (32, 32, 16, 8, 2)),
)
