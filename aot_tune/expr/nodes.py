"""Nodes: operations on other nodes, and leaves. Python's operators make them, and tables of texts print them."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
}
"""Operations that stand between their operands. Nodes name them so."""

_Self = TypeVar("_Self", bound="ExprNode")


def _operator(op: str) -> Callable[[_Self, object], _Self]:
    """What Python calls for `node op other`."""

    def apply(node: _Self, other: object) -> _Self:
        if isinstance(other, ExprNode) and other.rank > node.rank:
            return NotImplemented  # type: ignore[no-any-return]  # Python asks the other one
        return node.made(op, node, other)

    return apply


def _reflected(op: str) -> Callable[[_Self, object], _Self]:
    """What Python calls for `other op node`."""
    return lambda node, other: node.made(op, other, node)


class ExprNode:
    """An operation `op` on the nodes `args`, or a leaf with a `value`. It is frozen; `memo` keeps what was made of it.

    Use `&`, `|` and `~` for and, or and not. `and`, `or` and chained comparisons raise, because Python would evaluate
    them.
    """

    __slots__ = ("args", "memo", "op", "value")
    op: str
    args: tuple[Any, ...]
    value: Any
    memo: dict[str, Any]
    rank = 0
    """An operation of two classes is of the class with the higher rank."""

    def __init__(self, op: str, args: tuple[Any, ...] = (), value: Any = None) -> None:
        _SET_OP(self, op)
        _SET_ARGS(self, args)
        _SET_VALUE(self, value)
        _SET_MEMO(self, {})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an expression never changes: write a new one instead of setting its {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.op, self.args, self.value)

    @classmethod
    def made(cls: type[_Self], op: str, *operands: object) -> _Self:
        """An operation on nodes, or on values that become nodes."""
        return cls(op, tuple(map(cls.wrapped, operands)))

    @classmethod
    @abstractmethod
    def wrapped(cls: type[_Self], value: Any) -> _Self:
        """A value as a node. A node stays as it is."""

    @abstractmethod
    def key(self) -> str:
        """A canonical text: equal for equal nodes, stable across processes."""

    def __hash__(self) -> int:
        return hash(self.key())

    def __pos__(self: _Self) -> _Self:
        return self

    __add__ = _operator("+")
    __radd__ = _reflected("+")
    __sub__ = _operator("-")
    __rsub__ = _reflected("-")
    __mul__ = _operator("*")
    __rmul__ = _reflected("*")
    __truediv__ = _operator("/")
    __rtruediv__ = _reflected("/")
    __floordiv__ = _operator("//")
    __rfloordiv__ = _reflected("//")
    __mod__ = _operator("%")
    __rmod__ = _reflected("%")
    __and__ = _operator("and")
    __rand__ = _reflected("and")
    __or__ = _operator("or")
    __ror__ = _reflected("or")
    __eq__ = _operator("==")  # type: ignore[assignment]
    __ne__ = _operator("!=")  # type: ignore[assignment]
    __lt__ = _operator("<")
    __le__ = _operator("<=")
    __gt__ = _operator(">")
    __ge__ = _operator(">=")


_SET_ARGS, _SET_MEMO, _SET_OP, _SET_VALUE = (vars(ExprNode)[name].__set__ for name in ExprNode.__slots__)


def printed(node: Any, leaf: Callable[[Any], str], texts: Mapping[str, str]) -> str:
    """A node as text.

    Args:
        leaf: prints a leaf.
        texts: forms of operations, such as `"min({0}, {1})"`. Others stand between their operands, in parentheses.
    """
    if not node.args:
        return leaf(node)
    args = [printed(a, leaf, texts) for a in node.args]
    return texts.get(node.op, f"({{}} {node.op} {{}})").format(*args)
