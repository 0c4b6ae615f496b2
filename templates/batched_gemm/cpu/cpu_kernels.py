"""Batches of matrix products on CPUs, by the blocks and tiles of gemm's kernels."""

from __future__ import annotations

from aot_tune.spec import Expr, Kernel, dims, parameter, stride, table, target

M, N, K = dims("M N K")
VW, MR, NR, NV, KR = (parameter(name) for name in ("VW", "MR", "NR", "NV", "KR"))
BF16 = {"T": ("bf16",)}
CPU_DTYPES = {"T": ("f32", "bf16", "f16")}

NATIVE: Expr = target("vector_bytes") == VW * 4
"""Floats per vector: as many as the target's."""

BF16_DOT: Expr = target("bf16_dot") == 1
"""Whether there is an instruction that multiplies pairs of bf16 and adds their products, in whole vectors."""

ROWS_OF_A: Expr = (parameter("PACK_A") == 1) | (stride("a", 2) == 1)
"""What is not packed is read along K."""

ROWS_FILL: tuple[Expr, ...] = ((2 * M > MR) | ((parameter("PACK_A") == 1) & (M > 1)), M <= 4 * MR)
"""A tile computes all of its rows, those beyond the edge too. B is read anew for each tile's rows."""

_TILES = "VW MR NV KC MC NC KU PACK_A PACK_B PF"

CPU_KERNELS = (
    Kernel("generic", "batched_gemm/generic.cpp.j2", generic=True, dtypes=CPU_DTYPES),
    Kernel(
        "skinny_nk",
        "batched_gemm/cpu/dot.cpp.j2",
        dtypes=CPU_DTYPES,
        follows={"f16": "bf16"},
        listed=table(
            "VW MR NR KC MC NC PF PACK_A",
            (16, 1, 8, 2048, 16, 48, 0, False),
            (16, 2, 8, 2048, 16, 48, 0, False),
            (16, 4, 4, 2048, 16, 48, 0, False),
            (16, 4, 4, 2048, 16, 48, 0, True),
            (8, 1, 8, 2048, 16, 48, 0, False),
            (8, 4, 3, 2048, 16, 48, 0, False),
            (8, 4, 3, 2048, 16, 48, 0, True),
            (4, 1, 8, 2048, 16, 48, 0, False),
            (4, 4, 3, 2048, 16, 48, 0, False),
            (4, 4, 3, 2048, 16, 48, 0, True),
        ),
        constraints=(NATIVE,),
        requires=(ROWS_OF_A, stride("b", 1) == 1, stride("out", 2) == 1),
        worthwhile=ROWS_FILL,
        tile={"B": 1, "M": MR, "N": NR, "K": parameter("KC")},
    ),
    Kernel(
        "skinny_kn",
        "batched_gemm/cpu/skinny_kn.cpp.j2",
        dtypes=CPU_DTYPES,
        follows={"f16": "bf16"},
        listed=table(
            "VW MR KR NC PF",
            (16, 1, 8, 1024, 0),
            (16, 4, 4, 1024, 0),
            (8, 1, 8, 1024, 0),
            (8, 2, 4, 1024, 0),
            (4, 1, 8, 1024, 0),
            (4, 2, 4, 1024, 0),
        ),
        constraints=(NATIVE,),
        requires=(stride("b", 2) == 1, stride("out", 2) == 1),
        worthwhile=(M <= 2,),
        tile={"B": 1, "M": MR, "N": VW, "K": KR},
    ),
    Kernel(
        "packed",
        "batched_gemm/cpu/packed.cpp.j2",
        dtypes=CPU_DTYPES,
        follows={"f16": "bf16"},
        listed=table(
            _TILES,
            (16, 8, 2, 512, 64, 768, 1, False, True, 0),
            (16, 6, 4, 512, 128, 768, 4, False, True, 0),
            (16, 8, 3, 512, 64, 768, 4, True, True, 0),
            (16, 14, 2, 512, 64, 768, 4, True, True, 0),
            (8, 4, 3, 256, 64, 768, 1, False, True, 0),
            (8, 6, 2, 256, 64, 768, 4, False, True, 0),
            (8, 6, 2, 512, 64, 768, 4, True, True, 0),
            (4, 6, 2, 256, 64, 768, 1, True, True, 0),
            (4, 4, 2, 256, 64, 768, 1, False, True, 0),
        ),
        constraints=(NATIVE,),
        requires=(stride("out", 2) == 1,),
        worthwhile=(M > 8,),
        tile={"B": 1, "M": MR, "N": NV * VW, "K": parameter("KC")},
    ),
    Kernel(
        "direct_kn",
        "batched_gemm/cpu/packed.cpp.j2",
        dtypes=CPU_DTYPES,
        follows={"f16": "bf16"},
        listed=table(
            _TILES,
            (16, 8, 2, 256, 64, 768, 4, False, False, 0),
            (16, 8, 3, 256, 64, 768, 1, True, False, 0),
            (16, 6, 4, 256, 64, 768, 1, False, False, 1),
            (8, 4, 3, 256, 64, 768, 1, False, False, 0),
            (8, 6, 2, 256, 64, 768, 4, True, False, 0),
            (4, 6, 2, 256, 64, 768, 1, True, False, 0),
            (4, 4, 2, 256, 64, 768, 1, False, False, 0),
        ),
        constraints=(NATIVE,),
        requires=(stride("b", 2) == 1, stride("out", 2) == 1),
        worthwhile=(M > 1,),
        tile={"B": 1, "M": MR, "N": NV * VW, "K": parameter("KC")},
    ),
    Kernel(
        "skinny_pairs",
        "batched_gemm/cpu/dot_pairs.cpp.j2",
        dtypes=BF16,
        listed=table(
            "VW MR NR KC MC NC PF PACK_A",
            (16, 1, 8, 1024, 16, 48, 0, False),
            (16, 4, 4, 1024, 16, 48, 0, False),
            (16, 4, 6, 1024, 64, 48, 0, False),
            (16, 4, 4, 1024, 16, 48, 0, True),
        ),
        constraints=(BF16_DOT,),
        requires=(ROWS_OF_A, stride("b", 1) == 1, stride("out", 2) == 1),
        worthwhile=ROWS_FILL,
        tile={"B": 1, "M": MR, "N": NR, "K": 2 * parameter("KC")},
    ),
    Kernel(
        "packed_pairs",
        "batched_gemm/cpu/packed_pairs.cpp.j2",
        dtypes=BF16,
        listed=table(
            _TILES,
            (16, 8, 3, 512, 64, 768, 4, True, True, 0),
            (16, 12, 2, 512, 64, 768, 4, True, True, 0),
            (16, 6, 4, 512, 128, 768, 4, True, True, 0),
            (16, 8, 2, 512, 64, 768, 4, True, True, 0),
        ),
        constraints=(BF16_DOT,),
        requires=(stride("out", 2) == 1,),
        worthwhile=(M >= 4,),
        tile={"B": 1, "M": MR, "N": NV * VW, "K": 2 * parameter("KC")},
    ),
    Kernel(
        "rows_pairs",
        "batched_gemm/cpu/packed_pairs.cpp.j2",
        dtypes=BF16,
        listed=table(
            _TILES,
            (16, 6, 4, 512, 128, 768, 4, False, True, 0),
            (16, 8, 3, 512, 64, 768, 4, False, True, 0),
            (16, 8, 2, 512, 64, 768, 4, False, True, 0),
        ),
        constraints=(BF16_DOT,),
        requires=(stride("a", 2) == 1, K % 2 == 0, stride("out", 2) == 1),
        worthwhile=(M >= 4,),
        tile={"B": 1, "M": MR, "N": NV * VW, "K": 2 * parameter("KC")},
    ),
)
"""With vectors of floats as wide as the target has them."""
