"""How kernels want their factors stored: what 16 bytes at a time can be copied from."""

from __future__ import annotations

from aot_tune.spec import Expr, alignment, stride

ROWS_OF_A: tuple[Expr, ...] = (stride("a", 1) == 1, stride("a", 0) % 8 == 0, alignment("a") >= 16)
COLUMNS_OF_B: tuple[Expr, ...] = (stride("b", 0) == 1, stride("b", 1) % 8 == 0, alignment("b") >= 16)
ROWS_OF_B: tuple[Expr, ...] = (stride("b", 1) == 1, stride("b", 0) % 8 == 0, alignment("b") >= 16)
