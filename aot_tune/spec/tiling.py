"""How a kernel divides a call into blocks. The model of its time uses this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from aot_tune.expr.integers import Expr, ExprLike, as_expr
from aot_tune.spec.device_facts import refuse_device_facts
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["Tile", "TileOf", "TileOfConfigs", "Tiling"]

Tile = Mapping[str, ExprLike]
"""Dim to how much of it one block computes, or covers in one step: integers, or expressions over parameters."""

TileOf = Callable[[Mapping[str, object]], Mapping[str, int] | None]
"""The same as a function of a config, for parameters that are a vendor's numbers. None: the tile is unknown."""


@dataclass(frozen=True)
class Tiling:
    """The tile of one config: extents by dim, and how many blocks share the steps of a tile.

    Blocks come in clusters of `cluster` tiles along dims. `occupancy` blocks run at a time on a multiprocessor or core.
    """

    extents: Mapping[str, int]
    split: int = 1
    cluster: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    occupancy: int = 1


@dataclass(frozen=True)
class TileOfConfigs:
    """What a kernel declares of its tiles: the same values as expressions over its parameters."""

    tile: Tile | TileOf
    split: ExprLike
    cluster: Tile
    occupancy: ExprLike

    def of(self, parameters: Mapping[str, int], config: Mapping[str, object]) -> Tiling | None:
        """The tile of a config whose parameters are given as integers; None if no tile is declared.

        Raises:
            SpecError: for an extent, a split, a cluster or an occupancy below 1.
        """
        declared = self.tile(config) if callable(self.tile) else self.tile
        if not declared:
            return None
        facts = {f"parameter.{n}": v for n, v in parameters.items()}
        extents = {d: as_expr(e, f"the tile of {d!r}").evaluate(facts) for d, e in declared.items()}
        cluster = {d: as_expr(e, f"the cluster along {d!r}").evaluate(facts) for d, e in self.cluster.items()}
        split = as_expr(self.split, "the split").evaluate(facts)
        occupancy = as_expr(self.occupancy, "the occupancy").evaluate(facts)
        along = ((f"a cluster along {d}", n) for d, n in cluster.items())
        for what, value in (*extents.items(), ("split", split), *along, ("occupancy", occupancy)):
            if value < 1:
                raise SpecError(f"the tile of config {dict(config)} has {what} = {value}", fix="give 1 or more")
        return Tiling(extents, split, {d: n for d, n in cluster.items() if n > 1}, occupancy)

    def check(self, kernel: str, parameters: list[str]) -> None:
        """Refuse a tile that uses anything but parameters of its kernel.

        Raises:
            SpecError: naming it.
        """
        known = {f"parameter.{n}" for n in parameters}
        declared = [] if callable(self.tile) else list(self.tile.values())
        for extent in (*declared, self.split, *self.cluster.values(), self.occupancy):
            facts = sorted(extent.facts() - known) if isinstance(extent, Expr) else []
            refuse_device_facts(facts, f"kernel {kernel!r}: its tile, split, cluster or occupancy")
            for fact in facts:
                raise SpecError(
                    f"kernel {kernel!r}: its tile, split, cluster or occupancy uses {fact!r}",
                    why="they range over the kernel's parameters",
                    fix=did_you_mean(fact.removeprefix("parameter."), parameters),
                )
