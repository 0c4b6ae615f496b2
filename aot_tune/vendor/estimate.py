"""Estimates the time of a product in a config of cuBLASLt, so that likely ones are tried first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aot_tune.vendor.tiles import CLUSTERS, tile_sizes

__all__ = ["Estimate", "estimate_for"]


@dataclass(frozen=True)
class Estimate:
    """An estimate of time, in products of a multiprocessor. It only orders configs of one product.

    A tile takes the longer of two times, for its products and for loading their factors, and a part of the shorter one.

    Args:
        load: products in the time of loading one element of a row of A or B.
        exposed: the part of the shorter of the two times that the longer one does not hide.
        wave: extra time of a wave of tiles, in products per element of the tile.
        split: for a split product, products in the time of writing and reading an element of a part.
        alone: factor on loads of blocks without a neighbour in a cluster.
        doubling: share of the time that each doubling of a cluster adds.
        crowded: share of the multiprocessors that clusters of more than eight blocks can use.
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
        """The time of a batch of column-major rows x columns products of some depth (`extents`, the batch last)."""
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

    The estimate for 16 bits was fitted to an H200's record: the 2,227 times of 170 products with one algorithm. Its
    first config is 2 % behind the best measured one for products with 64 rows or more, and 15 % for fewer rows. The
    best of its first three is 0.5 % behind.
    """
    return _FLOATS if dtype == "f32" else _HALVES
