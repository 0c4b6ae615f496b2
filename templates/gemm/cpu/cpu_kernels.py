"""Matrix products on CPUs."""

from __future__ import annotations

from aot_tune.spec import (
    Expr,
    Kernel,
    Parameter,
    dims,
    minimum,
    parameter,
    stride,
    table,
    target,
)

M, N, K = dims("M N K")
VW, MR, NR, NV, KR, KU, PACK_A = (parameter(name) for name in ("VW", "MR", "NR", "NV", "KR", "KU", "PACK_A"))
BYTES, REGISTERS = target("vector_bytes"), target("registers")
CPU_DTYPES = {"T": ("f32", "bf16", "f16")}

VECTORS = Parameter("VW", (16, 8, 4))
"""Floats per vector."""

NATIVE: Expr = BYTES == VW * 4
NATIVE_OR_HALF: Expr = (BYTES == VW * 4) | (BYTES == VW * 8)

DOT_FITS: Expr = MR * NR + minimum(MR, NR) + 1 <= REGISTERS
"""The accumulators, the vectors of the shorter side and one of the longer side; the rest is read as operands."""

TILE_FITS: tuple[Expr, ...] = (
    NATIVE_OR_HALF,
    # Without fused multiply-add (vectors of 16 bytes), a product needs a register of its own.
    MR * NV + NV + 1 + (BYTES == 16) <= REGISTERS,
    MR * NV * 2 >= REGISTERS,
    (KU == 1) | (BYTES > 16),
    # One address register per row of A.
    (PACK_A == 1) | (MR <= 8),
)


CPU_KERNELS = (
    Kernel("generic", "gemm/cpu/generic.cpp.j2", generic=True, dtypes=CPU_DTYPES),
    Kernel(
        "skinny_nk",
        "gemm/cpu/dot.cpp.j2",
        dtypes=CPU_DTYPES,
        parameters=(
            VECTORS,
            Parameter("MR", (1, 2)),
            Parameter("NR", (4, 6, 8)),
            Parameter("KC", (2048, 16384)),
            Parameter("MC", (4,)),
            Parameter("NC", (48,)),
            Parameter("PF", (0,)),
            Parameter("PACK_A", (False,)),
            Parameter("SPLIT", ("n",)),
        ),
        constraints=(NATIVE, DOT_FITS),
        requires=(stride("a", 1) == 1, stride("b", 0) == 1, stride("out", 1) == 1),
        worthwhile=(M <= 3,),
        tile={"M": MR, "N": NR, "K": parameter("KC")},
        order=table(
            "MR NR KC",
            (1, 8, 2048),
            (1, 6, 16384),
            (1, 8, 16384),
            (1, 4, 16384),
            (2, 8, 16384),
            (2, 4, 16384),
        ),
    ),
    Kernel(
        "skinny_kn",
        "gemm/cpu/skinny_kn.cpp.j2",
        dtypes=CPU_DTYPES,
        parameters=(
            VECTORS,
            Parameter("MR", (1, 2, 4)),
            Parameter("KR", (4, 6, 8)),
            Parameter("NC", (1024, 65536)),
            Parameter("PF", (0, 1)),
            Parameter("SPLIT", ("k", "n")),
        ),
        constraints=(NATIVE, MR * KR + (MR > 1) * KR + 2 <= REGISTERS),
        requires=(stride("b", 1) == 1, stride("out", 1) == 1),
        worthwhile=(M <= 8,),
        tile={"M": MR, "N": VW, "K": KR},
        order=table(
            "MR KR NC PF SPLIT",
            (1, 8, 65536, 0, "k"),
            (1, 6, 65536, 0, "k"),
            (1, 4, 65536, 0, "k"),
            (4, 4, 1024, 0, "k"),
            (2, 4, 1024, 0, "k"),
            (1, 8, 65536, 0, "n"),
        ),
    ),
    Kernel(
        "dot",
        "gemm/cpu/dot.cpp.j2",
        dtypes=CPU_DTYPES,
        parameters=(
            VECTORS,
            Parameter("MR", (3, 4, 5)),
            Parameter("NR", (3, 4, 5, 6)),
            Parameter("KC", (512, 1024)),
            Parameter("MC", (16, 64, 128)),
            Parameter("NC", (48, 192)),
            Parameter("PF", (0, 1, 2)),
            Parameter("PACK_A", (True, False)),
            Parameter("SPLIT", ("n", "m")),
        ),
        constraints=(NATIVE_OR_HALF, DOT_FITS, MR * NR * 2 >= REGISTERS),
        requires=(stride("a", 1) == 1, stride("b", 0) == 1, stride("out", 1) == 1),
        worthwhile=(M >= 3,),
        tile={"M": MR, "N": NR, "K": parameter("KC")},
        order=table(
            "VW MR NR KC MC NC PF PACK_A SPLIT",
            (16, 4, 6, 512, 16, 48, 2, True, "n"),
            (16, 4, 6, 1024, 128, 192, 1, True, "n"),
            (16, 4, 6, 1024, 128, 192, 1, True, "m"),
            (16, 4, 6, 1024, 64, 192, 2, True, "n"),
            (16, 4, 6, 512, 64, 192, 2, True, "n"),
            (16, 4, 6, 1024, 64, 192, 2, False, "n"),
            (8, 4, 3, 1024, 64, 192, 1, True, "n"),
            (8, 4, 3, 512, 16, 48, 1, True, "n"),
            (8, 3, 4, 512, 64, 192, 1, True, "n"),
            (8, 4, 3, 1024, 128, 192, 1, True, "m"),
            (4, 4, 3, 512, 64, 48, 1, True, "n"),
            (4, 4, 3, 512, 16, 48, 1, True, "n"),
            (4, 4, 3, 1024, 128, 192, 1, True, "m"),
            (4, 3, 3, 512, 64, 48, 1, True, "n"),
        ),
    ),
    Kernel(
        "packed",
        "gemm/cpu/packed.cpp.j2",
        dtypes=CPU_DTYPES,
        parameters=(
            VECTORS,
            Parameter("MR", (4, 5, 6, 8, 12, 14)),
            Parameter("NV", (2, 3, 4)),
            Parameter("KC", (256, 512, 1024)),
            Parameter("MC", (64, 128)),
            Parameter("NC", (768, 1536)),
            Parameter("KU", (1, 4)),
            Parameter("PACK_A", (True, False)),
            Parameter("PACK_B", (True,)),
            Parameter("PF", (0,)),
            Parameter("PART", ("m", "n", "mn")),
        ),
        constraints=TILE_FITS,
        requires=(stride("out", 1) == 1,),
        worthwhile=(M >= 16,),
        tile={"M": MR, "N": NV * VW, "K": parameter("KC")},
        order=table(
            "VW MR NV KC MC NC KU PACK_A PART",
            (16, 8, 3, 1024, 64, 768, 4, True, "mn"),
            (16, 6, 4, 1024, 64, 768, 4, True, "n"),
            (16, 12, 2, 512, 64, 768, 4, True, "m"),
            (16, 14, 2, 1024, 64, 768, 4, True, "n"),
            (16, 8, 3, 512, 64, 768, 4, True, "n"),
            (16, 8, 3, 512, 128, 1536, 4, False, "m"),
            (16, 14, 2, 256, 128, 1536, 4, True, "m"),
            (8, 6, 2, 1024, 64, 768, 4, True, "n"),
            (8, 6, 2, 512, 64, 768, 4, True, "m"),
            (8, 4, 3, 512, 64, 768, 1, True, "n"),
            (8, 6, 2, 256, 64, 768, 4, False, "mn"),
            (4, 6, 2, 512, 64, 768, 1, True, "n"),
            (4, 5, 2, 512, 64, 768, 1, True, "n"),
            (4, 6, 2, 512, 64, 768, 1, True, "m"),
        ),
    ),
    Kernel(
        "direct_kn",
        "gemm/cpu/packed.cpp.j2",
        dtypes=CPU_DTYPES,
        parameters=(
            VECTORS,
            Parameter("MR", (4, 6, 8)),
            Parameter("NV", (2, 3, 4)),
            Parameter("KC", (128, 256)),
            Parameter("MC", (64,)),
            Parameter("NC", (1536,)),
            Parameter("KU", (1, 4)),
            Parameter("PACK_A", (True, False)),
            Parameter("PACK_B", (False,)),
            Parameter("PF", (0, 1)),
            Parameter("PART", ("m", "n", "mn")),
        ),
        constraints=TILE_FITS,
        requires=(stride("b", 1) == 1, stride("out", 1) == 1),
        worthwhile=(M >= 4,),
        tile={"M": MR, "N": NV * VW, "K": parameter("KC")},
        order=table(
            "VW MR NV KC KU PACK_A PF PART",
            (16, 8, 3, 128, 4, True, 0, "n"),
            (16, 8, 3, 256, 4, True, 1, "n"),
            (16, 8, 3, 256, 4, True, 1, "mn"),
            (16, 4, 4, 128, 4, True, 0, "n"),
            (16, 8, 3, 128, 4, False, 0, "n"),
            (8, 4, 3, 128, 4, True, 0, "n"),
            (8, 4, 3, 256, 4, True, 1, "n"),
            (4, 6, 2, 128, 1, True, 0, "n"),
        ),
    ),
)
