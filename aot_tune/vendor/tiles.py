"""Sizes of cuBLASLt's tiles and clusters by their ids."""

from __future__ import annotations

from functools import cache

__all__ = ["CLUSTERS", "tile_sizes"]

CLUSTERS = {
    2: (1, 1),
    3: (2, 1),
    4: (4, 1),
    5: (1, 2),
    6: (2, 2),
    7: (4, 2),
    8: (1, 4),
    9: (2, 4),
    10: (4, 4),
    11: (8, 1),
    12: (1, 8),
}
"""Cluster id (`cublasLtClusterShape_t`) to blocks along rows and columns of the column-major result; 0 is automatic."""

_FIRST = (
    "8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 128x32 64x128 128x64 64x256 "
    "128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 128x160 160x128 192x128 128x192 128x96 "
    "32x256 256x32"
)
_LAST = "256x512 256x1024 512x512 512x1024 4x1 8x1 16x1 24x1 32x1 40x1 48x1 64x1 128x1 192x1 256x1"


@cache
def tile_sizes() -> dict[int, tuple[int, int]]:
    """Tile id (`cublasLtMatmulTile_t`) to rows and columns of the column-major result (columns and rows of ours).

    The numbers follow rules.
    """
    sizes = _parsed(_FIRST)
    for step_rows, step_columns, most in ((8, 64, 768 * 64), (64, 8, 256 * 256)):
        known = set(sizes)
        sizes += [
            (rows, columns)
            for rows in range(step_rows, 769, step_rows)
            for columns in range(step_columns, 769, step_columns)
            if rows * columns <= most and (rows, columns) not in known
        ]
    sizes += _parsed(_LAST)
    return dict(enumerate(sizes, start=1))


def _parsed(text: str) -> list[tuple[int, int]]:
    pairs = (word.split("x") for word in text.split())
    return [(int(rows), int(columns)) for rows, columns in pairs]
