"""Attention on CPUs."""

from __future__ import annotations

from aot_tune.spec import Expr, Kernel, dims, parameter, stride, table, target

H, HK, M = dims("H HK M")
VW, KB, ROWS = (parameter(name) for name in ("VW", "KB", "ROWS"))
CPU_DTYPES = {"T": ("f32", "bf16", "f16")}

NATIVE: Expr = target("vector_bytes") == VW * 4
"""Floats per vector: as many as the target's."""
UNIT_COLUMNS: tuple[Expr, ...] = (stride("v", 3) == 1, stride("out", 3) == 1)

CPU_KERNELS = (
    Kernel("generic", "flash_attention/generic.cpp.j2", generic=True, dtypes=CPU_DTYPES),
    Kernel(
        "few_rows",
        "flash_attention/cpu/few_rows.cpp.j2",
        dtypes=CPU_DTYPES,
        follows={"f16": "bf16"},
        listed=table(
            "VW ROWS KB NV",
            (16, 8, 256, 4),
            (16, 8, 64, 8),
            (16, 16, 128, 4),
            (8, 8, 256, 4),
            (4, 4, 256, 4),
        ),
        constraints=(NATIVE,),
        requires=(stride("k", 3) == 1, *UNIT_COLUMNS),
        worthwhile=(M * H <= 8 * HK,),
        tile={"B": 1, "M": ROWS, "N": KB},
    ),
    Kernel(
        "blocks",
        "flash_attention/cpu/blocks.cpp.j2",
        dtypes=CPU_DTYPES,
        follows={"f16": "bf16"},
        listed=table(
            "VW MR NV ROWS KB KU",
            (16, 6, 4, 64, 96, 4),
            (16, 8, 2, 64, 64, 4),
            (16, 8, 3, 96, 96, 4),
            (8, 6, 2, 64, 96, 4),
            (8, 4, 3, 96, 96, 1),
            (4, 4, 2, 64, 64, 1),
        ),
        constraints=(NATIVE,),
        requires=UNIT_COLUMNS,
        worthwhile=(M * H > 8 * HK,),
        tile={"B": 1, "M": ROWS, "N": KB},
    ),
)
"""With vectors of floats as wide as the target has them."""
