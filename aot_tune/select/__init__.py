"""Which variants to keep, and the decision function for every shape."""

from __future__ import annotations

from aot_tune.select.selection import REGRET_LIMIT, select
from aot_tune.select.selection_records import Costs, Node, Selection
from aot_tune.select.tree import rank

__all__ = ["REGRET_LIMIT", "Costs", "Node", "Selection", "rank", "select"]
