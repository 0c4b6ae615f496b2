"""The Triton kernels of attention over ragged batches and over pages: one for each width of heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aot_tune.spec import (
    Buffer,
    Config,
    Descriptor,
    Expr,
    Kernel,
    KernelArgument,
    TritonFunction,
    alignment,
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
BLOCK_M, BLOCK_N, SPLIT = (parameter(name) for name in ("BLOCK_M", "BLOCK_N", "SPLIT"))
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

_HOPPER = target("capability") == 90
_SIZES = ((M * H < 2**30) & (B < 2**20) & (H % HK == 0), B * M * H * D * DV > 0)
_UNIT: tuple[Expr, ...] = (stride("q", 2) == 1, stride("out", 2) == 1)
_STRIDES: dict[str, KernelArgument] = {
    **{f"{t}_{axis}": stride(t, i) for t in ("q", "out") for i, axis in enumerate(("row", "head"))},
    **{f"lse_{axis}": where(LSE, stride("lse", i), 0) for i, axis in enumerate(("row", "head"))},
    "cu_q_step": stride("cu_q", 0),
    "causal": attribute("causal"),
}
_OF_KEYS = {
    **{f"{t}_{axis}": stride(t, i) for t in ("k", "v") for i, axis in enumerate(("row", "head"))},
    "SAME": stride("k", 0) == stride("v", 0),
}
_RAGGED: dict[str, KernelArgument] = {
    "cu_k_step": stride("cu_k", 0),
    **dict.fromkeys(("k_page", "v_page", "table_row", "table_step", "lens_step"), 0),
    **dict.fromkeys(("P", "PAGE", "W"), 1),
    **dict.fromkeys(("k_scale", "v_scale"), 1.0),
    **dict.fromkeys(("page_table", "seq_lens")),
}
_PAGED: dict[str, KernelArgument] = {
    "SAME": (stride("k_pages", 0) == stride("v_pages", 0)) & (stride("k_pages", 1) == stride("v_pages", 1)),
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
    constants: dict[str, KernelArgument] = {"WHOLE": whole, "REST": width.rest, "BLOCK_D": width.keys, "TMA": False}
    constants |= {"BLOCK_V": width.values, "partial": partial, "k_rest": None} | ({} if split else {"SPLIT": 1})
    given = _STRIDES | constants | arguments
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
        tile={"M": BLOCK_M, "H": 1},
        **more,
    )


def _table(names: str, rows: tuple[tuple[int, ...], ...]) -> tuple[Config, ...]:
    """Configs, at whose end may be how many registers a thread has at most: with 128, twice as many programs run."""
    return table(f"{names} maxnreg", *((*row, 255)[: names.count(" ") + 2] for row in rows))


def ragged(width: Width, hopper: Expr, *configs: tuple[int, ...]) -> Kernel:
    """The kernel for keys one after another. On Hopper it is for what descriptors cannot take, and has few configs."""
    return _attend(
        width,
        _RAGGED | _OF_KEYS,
        table("BLOCK_M BLOCK_N num_warps num_stages", *configs),
        name=f"triton_{width.name}",
        dtypes={"T": ("bf16", "f16")},
        constraints=(~_HOPPER | hopper,),
        requires=(*_SIZES, *_UNIT, stride("k", 2) == 1, stride("v", 2) == 1, *width.requires, N < 2**30),
    )


def ragged_tma(width: Width, *configs: tuple[int, ...]) -> Kernel:
    """As `ragged`, with descriptors of keys and values that the host makes; columns behind their last are zeros."""
    arguments = _RAGGED | dict.fromkeys(_OF_KEYS, 0) | {"TMA": True, "k": Descriptor("k", (BLOCK_N, 1, width.keys))}
    arguments |= {"v": Descriptor("v", (BLOCK_N, 1, width.values))}
    if width.rest:
        arguments["k_rest"] = Descriptor("k", (BLOCK_N, 1, width.rest))
    aligned = [e for t in ("k", "v") for axis in (0, 1) for e in (stride(t, axis) % 8 == 0, stride(t, axis) > 0)]
    aligned += [alignment("k") >= 16, alignment("v") >= 16, stride("k", 2) == 1, stride("v", 2) == 1]
    return _attend(
        width,
        arguments,
        _table("BLOCK_M BLOCK_N num_warps num_stages", configs),
        name=f"triton_tma_{width.name}",
        dtypes={"T": ("bf16", "f16")},
        constraints=(target("capability") >= 90, target("shared_bytes") >= 227 * 1024),
        requires=(*_SIZES, *_UNIT, *aligned, D % 8 == 0, DV % 8 == 0, *width.requires, (N > 0) & (N < 2**30)),
    )


def paged(
    width: Width, configs: tuple[tuple[int, ...], ...], eight: tuple[tuple[int, ...], ...], *, split: bool = False
) -> tuple[Kernel, ...]:
    """Kernels for pages of q's dtype and of 8 bits. Those that share keys are for few queries of each sequence."""
    names = f"BLOCK_M BLOCK_N {'SPLIT ' if split else ''}num_warps num_stages"
    strides = [stride(f"{t}_pages", axis) for t in ("k", "v") for axis in range(3)]
    requires = (*_SIZES, *_UNIT, stride("k_pages", 3) == 1, stride("v_pages", 3) == 1, *width.requires)
    requires += ((W * PAGE < 2**21) & (P < 2**30), *((M * H * SPLIT <= 2**18,) if split else ()))
    # Offsets within a page have 32 bits.
    requires += tuple((s < 2**31) & (s > -(2**31)) for s in strides)
    requires += tuple((PAGE * s < 2**31) & (PAGE * s > -(2**31)) for s in (strides[1], strides[4]))
    # Columns of 8 bits are read in pairs.
    pairs = (D % 2 == 0, DV % 2 == 0, alignment("k_pages") >= 2, alignment("v_pages") >= 2)
    pairs += tuple(s % 2 == 0 for s in strides)
    return tuple(
        _attend(
            width,
            _PAGED,
            _table(names, listed),
            name=f"triton_{'split_' if split else ''}{width.name}{ending}",
            dtypes={"T": ("bf16", "f16"), "C": cache},
            requires=(*requires, *(pairs if ending and split else ())),
            constraints=(target("capability") >= 89,) if ending else (),
            worthwhile=(M <= 16 * B,) if split else (M >= 4 * B,),
            **({"split": SPLIT} if split else {}),
        )
        for ending, cache, listed in (("", ("bf16", "f16"), configs), ("_f8", ("f8e4m3",), eight))
    )


RAGGED_KERNELS = (
    ragged_tma(W64, (128, 128, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3, 128), (64, 64, 4, 3)),
    ragged_tma(W128, (128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2)),
    ragged_tma(W192, (128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 2)),
    ragged_tma(W256, (128, 64, 8, 2), (128, 32, 8, 3)),
    ragged(W64, BLOCK_M == 128, (128, 64, 4, 3), (64, 64, 4, 3)),
    ragged(W128, BLOCK_M == 128, (128, 64, 8, 3), (64, 64, 4, 3)),
    ragged(W192, BLOCK_M == 128, (128, 64, 8, 2), (64, 64, 4, 2)),
    ragged(W256, BLOCK_N == 64, (128, 64, 8, 2), (128, 32, 8, 2)),
)
PAGED_KERNELS = (
    *paged(W64, ((128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3)), ((128, 128, 8, 3), (128, 64, 4, 3))),
    *paged(W128, ((128, 128, 8, 3), (128, 64, 8, 3), (64, 64, 4, 3)), ((128, 128, 8, 3), (128, 64, 8, 3))),
    *paged(W256, ((128, 64, 8, 2), (128, 32, 8, 3)), ((128, 32, 8, 3), (64, 32, 8, 3))),
    *paged(
        W64,
        ((16, 128, 16, 4, 3), (16, 64, 16, 2, 4), (16, 128, 4, 4, 3), (16, 64, 64, 2, 4)),
        ((16, 128, 16, 4, 3), (16, 64, 16, 2, 4), (16, 128, 4, 4, 3), (16, 64, 64, 2, 4), (16, 32, 16, 1, 4)),
        split=True,
    ),
    *paged(
        W128,
        ((16, 64, 16, 4, 3), (16, 64, 4, 4, 3), (16, 64, 32, 4, 3), (16, 64, 128, 4, 3), (64, 64, 16, 4, 3)),
        ((16, 64, 16, 4, 4, 128), (16, 64, 4, 4, 4, 128), (16, 64, 64, 2, 3), (16, 64, 128, 4, 3), (64, 64, 16, 4, 3)),
        split=True,
    ),
    *paged(
        W256,
        ((16, 32, 16, 4, 3), (16, 32, 16, 4, 4), (16, 32, 64, 4, 3)),
        ((16, 64, 16, 4, 3), (16, 32, 16, 4, 4), (16, 64, 64, 4, 3)),
        split=True,
    ),
    *paged(
        W576,
        ((16, 32, 8, 8, 3), (16, 16, 8, 4, 3), (16, 32, 64, 8, 3), (16, 16, 128, 4, 3), (32, 32, 16, 8, 2)),
        ((16, 64, 8, 8, 3), (16, 32, 8, 4, 3), (16, 32, 64, 4, 3), (16, 32, 128, 4, 3)),
        split=True,
    ),
)
