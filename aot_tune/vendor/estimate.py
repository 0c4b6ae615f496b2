"""What a product is estimated to take in a config of cuBLASLt, to try the likely ones first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aot_tune.vendor.tiles import CLUSTERS, tile_sizes

__all__ = ["Estimate", "estimate_for"]


@dataclass(frozen=True)
class Estimate:
    """An estimate of time, in products of a multiprocessor; it only orders configs of one product.

    A tile takes as long as its products or as the loads of what they need, whichever is longer, and part of the other.

    Args:
        load: products that take as long as one element of a row of A or B.
        exposed: part of the shorter of products and loads that the longer does not hide.
        wave: what a wave of tiles takes beside, in products per element of the tile.
        split: of a split product, products that take as long as writing and reading an element of a part.
        alone: loads of blocks without a neighbour in a cluster take so many times as long.
        doubling: of the time, what every doubling of a cluster adds.
        crowded: of the multiprocessors, those that clusters of more than eight blocks find room on.
    """

    load: float
    exposed: float
    wave: float
    split: float
    alone: float
    doubling: float
    crowded: float = 0.85

    def time(
        self, extents: tuple[int, int, int, int], tile: int, cluster: int, split: int, multiprocessors: int
    ) -> float:
        """Of a batch of column-major rows x columns products of some depth (`extents`, the batch last)."""
        all_rows, all_columns, depth, batch = extents
        rows, columns = tile_sizes().get(tile, (128, 128))
        down, across = CLUSTERS.get(cluster, (1, 1))
        blocks = down * across
        tiles = down * math.ceil(all_rows / (rows * down)) * across * math.ceil(all_columns / (columns * across))
        room = multiprocessors if blocks <= 8 else max(int(multiprocessors * self.crowded), 1)
        waves = math.ceil(tiles * batch * split / room)
        products, loads = rows * columns, self.load * (rows + columns) * (self.alone if blocks == 1 else 1.0)
        step = max(products, loads) + self.exposed * min(products, loads)
        work = waves * (step * depth / split + self.wave * products) * (1 + self.doubling * math.log2(blocks))
        return work + (self.split * all_rows * all_columns * batch * split / multiprocessors if split > 1 else 0.0)


_HALVES = Estimate(load=64, exposed=0, wave=800, split=5000, alone=1.25, doubling=0.05)
_FLOATS = Estimate(load=64, exposed=1, wave=0, split=1600, alone=1, doubling=0)


def estimate_for(dtype: str) -> Estimate:
    """The estimate for factors of a dtype.

    That of 16 bits was fitted to the 2,227 times of 170 products that an H200's record has of one algorithm. The config
    that it puts first is 2 % (products with 64 rows and more) and 15 % (fewer) behind the best one measured, the best
    of its first three 0.5 %.
    """
    return _FLOATS if dtype == "f32" else _HALVES
