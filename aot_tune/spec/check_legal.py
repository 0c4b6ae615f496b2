"""Checks that what an operator declares as legal or expected are conditions, and that they leave something to do."""

from __future__ import annotations

from aot_tune.expr.integers import Expr
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.support.errors import SpecError

__all__ = ["check_legal"]


def check_legal(op: OperatorFields, where: str) -> None:
    """Check that `legal` and `expected` hold conditions, and that each kernel serves legal dtypes.

    Raises:
        SpecError: naming the condition, or the kernel.
    """
    for expr, what in [*((e, "legal") for e in op.legal), *((e, "expected") for e in op.expected)]:
        if not isinstance(expr, Expr):
            raise SpecError(
                f"{where}: {what} holds {str(expr)[:80]!r}, which is not a condition",
                why="it has one value in all calls" if isinstance(expr, (bool, int)) else "",
                fix='compare facts of the call, as in stride("x", 1) == 1 or attribute("causal") == 0',
            )
    for kernel in op.kernels:
        served = all(set(chosen) <= set(op.dtypes.get(v, ())) for v, chosen in kernel.dtypes.items())
        if served and not op.dtype_choices(kernel):
            conditions = " and ".join(c.key() for c in op.legal)
            raise SpecError(
                f"{where}: kernel {kernel.name!r} serves no legal dtypes: {conditions}",
                fix="give it other dtypes, or change what is legal",
            )
