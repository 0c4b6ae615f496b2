"""How a kernel cuts a call into blocks: what the model of its time is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aot_tune.spec.expr import Expr, ExprLike, as_expr
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["Tile", "TileOf", "Tiling"]

Tile = Mapping[str, ExprLike]
"""Dim to how much of it one block computes, or works on in one step: integers, or expressions over parameters."""

TileOf = Callable[[Mapping[str, object]], Mapping[str, int] | None]
"""The same as a function of a config, for parameters that are a vendor's numbers; None where the tile is unknown."""


@dataclass(frozen=True)
class Tiling:
    """The tile of one config: extents by dim, and into how many blocks the steps of a tile are split."""

    extents: Mapping[str, int]
    split: int = 1

    @classmethod
    def of(
        cls, tile: Tile | TileOf, split: ExprLike, parameters: Mapping[str, int], config: Mapping[str, object]
    ) -> Tiling | None:
        """The tile of a config whose parameters are given as integers; None where none is declared.

        Raises:
            SpecError: for an extent or a split below 1.
        """
        declared = tile(config) if callable(tile) else tile
        if not declared:
            return None
        facts = {f"parameter.{n}": v for n, v in parameters.items()}
        extents = {d: as_expr(e, f"the tile of {d!r}").evaluate(facts) for d, e in declared.items()}
        parts = as_expr(split, "the split").evaluate(facts)
        for what, value in (*extents.items(), ("split", parts)):
            if value < 1:
                raise SpecError(f"the tile of config {dict(config)} has {what} = {value}", fix="give 1 or more")
        return cls(extents, parts)


def check_tile(kernel: str, tile: Tile | TileOf, split: ExprLike, parameters: list[str]) -> None:
    """Refuse a tile that uses what is no parameter of its kernel.

    Raises:
        SpecError: naming it.
    """
    known = {f"parameter.{n}" for n in parameters}
    declared = [] if callable(tile) else list(tile.values())
    for extent in (*declared, split):
        for fact in sorted(extent.facts() - known) if isinstance(extent, Expr) else ():
            raise SpecError(
                f"kernel {kernel!r}: its tile or split uses {fact!r}",
                why="they range over the kernel's parameters",
                fix=did_you_mean(fact.removeprefix("parameter."), parameters),
            )
