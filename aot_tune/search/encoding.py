"""A space as numbers: the input of surrogates, and a measure of which configs are close to each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aot_tune.spec import Config, ConfigValue

__all__ = ["Encoding"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Encoding:
    """The configs of a space by number, as ranks of their values and as points.

    Args:
        configs: of one space, all with the same parameters.

    The attributes that are arrays have a row for each config. `ranks`, int16, has a column for each parameter with
    several values: the place of a value among the parameter's values. `named` says which of these columns have no
    order. `evenness`, float64, says how often 2 divides a value; it has a column for each parameter where that adds
    something. `points`, float64, 0 to 1, has the rank of ordered values, a column for each choice of three or more
    names, and the evenness. `sizes`, float64, is log2 of the product of each two sizes, such as a tile and a block:
    many limits of a device are on such products.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        names = sorted(configs[0]) if configs else []
        columns = {name: [c[name] for c in configs] for name in names}
        codes = {name: _codes(column) for name, column in columns.items()}
        varied = [name for name in names if len(set(codes[name])) > 1]
        self.named = np.array([not _ordered(columns[n]) for n in varied], dtype=bool)
        self.ranks = np.array([codes[n] for n in varied], dtype=np.int16).T.reshape(len(configs), len(varied))
        self.evenness = _evenness([columns[n] for n in varied if _is_size(columns[n])], len(configs))
        self.points = np.hstack([_points(self.ranks, self.named), self.evenness])
        self.sizes = _products([columns[n] for n in varied if _is_size(columns[n])], len(configs))

    def distances(self, number: int) -> Ints:
        """By config: the number of parameters in which it differs from config `number`."""
        found: Ints = np.count_nonzero(self.ranks != self.ranks[number], axis=1)
        return found

    def steps(self, number: int) -> Ints:
        """By config: how many places its values are away from those of config `number`. A changed name is one place."""
        away = np.abs(self.ranks.astype(np.int64) - self.ranks[number])
        away[:, self.named] = np.minimum(away[:, self.named], 1)
        found: Ints = away.sum(axis=1)
        return found


def _ordered(values: Sequence[ConfigValue]) -> bool:
    return all(isinstance(v, int | float) for v in values)


def _is_size(values: Sequence[ConfigValue]) -> bool:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    return len(numbers) == len(values) and max(numbers) > 2


def _codes(values: Sequence[ConfigValue]) -> list[int]:
    """The rank of each value among the distinct ones. `True` differs from 1; names and `None` have any fixed order."""
    ordered = _ordered(values)
    keys = [(v, isinstance(v, bool)) if ordered else (type(v).__name__, str(v)) for v in values]
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return [rank[k] for k in keys]


def _points(ranks: NDArray[np.int16], named: NDArray[np.bool_]) -> Floats:
    columns: list[Floats] = []
    for column, has_no_order in zip(ranks.T.astype(np.float64), named, strict=True):
        top = int(column.max())
        if has_no_order and top > 1:
            columns += [(column == value).astype(np.float64) for value in range(top + 1)]
        else:
            columns.append(column / top)
    return _side_by_side(columns, len(ranks))


def _evenness(sizes: Sequence[Sequence[ConfigValue]], count: int) -> Floats:
    """How often 2 divides each size, scaled to 0 to 1, if that adds something to the order of the sizes.

    A multiple of a device's power of two is aligned and fills its units, so it is fast.
    """
    found: list[Floats] = []
    for column in sizes:
        powers = [_twos(v) for v in column if isinstance(v, int)]
        known = sorted(set(zip(column, powers, strict=False)))
        if len(powers) == count and any(b[1] < a[1] for a, b in itertools.pairwise(known)):
            found.append(np.array(powers) / max(powers))
    return _side_by_side(found, count)


def _twos(value: int) -> int:
    return (value & -value).bit_length() - 1


def _products(sizes: Sequence[Sequence[ConfigValue]], count: int) -> Floats:
    logs = [[math.log2(v) for v in column if not isinstance(v, str)] for column in sizes]
    rows = np.array(logs, dtype=np.float64).reshape(len(logs), count)
    pairs = [rows[i] + rows[j] for i in range(len(rows)) for j in range(i)]
    return _side_by_side(pairs, count)


def _side_by_side(columns: Sequence[Floats], count: int) -> Floats:
    """float64 [count, columns]. There may be no columns."""
    found: Floats = np.array(columns, dtype=np.float64).T.reshape(count, len(columns))
    return found
