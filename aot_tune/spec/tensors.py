"""What an operator takes and gives: tensors, scalars, attributes."""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from aot_tune.spec.dtypes import DTYPES, DType, dtype
from aot_tune.spec.expr import Expr, ExprLike, as_expr
from aot_tune.spec.generators import Values, normal
from aot_tune.spec.names import check_identifier, check_several
from aot_tune.support.errors import SpecError

__all__ = ["Attribute", "Scalar", "Tensor"]

_F32_MAX = 3.4028234663852886e38
_SCALARS = ("f32", "f64", "bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
_VARIABLE = re.compile(r"[A-Z][A-Za-z0-9]{0,15}\Z")


class Tensor:
    """A named tensor of an operator.

    Args:
        name: identifier; it is the argument's name in C and Python.
        shape: one expression per axis, such as `(M, K)`; its length is the rank.
        dtype_name: element type, or the name of one of the operator's dtype variables, which begins with a capital.
        output: written by the operator, never read.
        inout: read and written in place (a residual, the pages of a cache): callers pass it and find the new values in
            it.
        optional: may be left out of a call.
        cold: its bytes are not in the caches when a call begins (weights); False is for activations.
        read: how many of its elements a call must read at least, over facts of the call: `N * D` of a table of which
            rows are looked up. Without it, a call that takes less time than all of them need is not believed. Of an
            inout tensor, elements that are read and elements that are written count, each once.
        may_alias: of an output: inputs of its shape and dtype in whose very memory a caller may have it written, each
            element being read before it is written. Candidates are verified so, too.
        layout_of: of an output: the input, of as many axes, whose order of axes in memory a new one has that is made
            where a caller passes none; without it, and where that input is broadcast, it is row-major.
        finite: no call has NaN or infinities in it (coordinates, lengths), and none are put into it to verify.
        values: how test inputs are drawn, see `spec.generators`; by default `normal()`.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[ExprLike],
        dtype_name: str = "f32",
        *,
        output: bool = False,
        inout: bool = False,
        optional: bool = False,
        cold: bool = False,
        finite: bool = False,
        read: ExprLike | None = None,
        may_alias: Sequence[str] = (),
        layout_of: str = "",
        values: Values | None = None,
    ) -> None:
        self.name = check_identifier(name, "tensor", argument=True)
        if isinstance(shape, str):
            raise SpecError(f"tensor {name!r}: its shape is the text {shape!r}", fix=f'write dims("{shape}")')
        check_several(shape, f"tensor {name!r}: shape")
        self.shape: tuple[Expr, ...] = tuple(as_expr(s, f"tensor {name!r}: an axis") for s in shape)
        self.dtype_name = dtype_name
        if not _VARIABLE.match(dtype_name):
            dtype(dtype_name, f"tensor {name!r}")
        self.output, self.optional, self.cold, self.finite = output, optional, cold, finite
        _check_in_place(name, output=output, inout=inout, may_alias=may_alias)
        self.inout, self.may_alias = inout, tuple(may_alias)
        if values is not None and (output or not isinstance(values, Values)):
            raise SpecError(
                f"tensor {name!r}: its values cannot be {str(values)[:80]}",
                why="an output is written, not drawn" if output else "they are drawn anew for each problem",
                fix="leave them out" if output else "use normal, integers, from_file or another of aot_tune.spec",
            )
        if layout_of and not output:
            raise SpecError(
                f"tensor {name!r}: layout_of has no effect", why="only outputs are made", fix="leave it out"
            )
        self.layout_of = layout_of
        if read is not None and output:
            raise SpecError(f"tensor {name!r}: an output is not read", fix="leave out read=")
        self.read = None if read is None else as_expr(read, f"tensor {name!r}: read")
        self.values: Values = values or normal()
        if not self.shape:
            raise SpecError(f"tensor {name!r} has no axes", fix="use a Scalar for a single number")

    @property
    def written(self) -> bool:
        """Whether calls write to it: an output, or a tensor that is read and written."""
        return self.output or self.inout

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        """The element type.

        Raises:
            SpecError: when it is a variable, which has a value only in `Operator.concrete`.
        """
        if self.dtype_name not in DTYPES:
            raise SpecError(
                f"tensor {self.name!r}: its dtype is the variable {self.dtype_name!r}",
                fix="ask Operator.concrete(problem.dtypes) for it",
            )
        return DTYPES[self.dtype_name]

    def with_dtype(self, name: str) -> Tensor:
        """The same tensor with another element type."""
        other = copy.copy(self)
        other.dtype_name = name
        return other

    def with_values(self, values: Values) -> Tensor:
        """The same tensor with other test values."""
        other = copy.copy(self)
        other.values = values
        return other


def _check_in_place(name: str, *, output: bool, inout: bool, may_alias: Sequence[str]) -> None:
    """Raise SpecError for a tensor that is both an output and inout, or that may alias others but is no output."""
    check_several(may_alias, f"tensor {name!r}: may_alias")
    if output and inout:
        raise SpecError(
            f"tensor {name!r} is declared with output=True and with inout=True",
            why="an output is never read, and is made if it is not passed",
            fix="leave output=True out for a tensor that is read and written",
        )
    if may_alias and not output:
        raise SpecError(
            f"tensor {name!r}: may_alias={tuple(may_alias)} has no effect",
            why="it says in whose memory an output may lie"
            + (", and an inout tensor is its own input" if inout else ""),
            fix="declare it of the output",
        )


@dataclass(frozen=True)
class Scalar:
    """A number passed by value: `dtype_name` is f32, f64, bool or one of integers, i8 to i64 and u8 to u64.

    `default` is what Python callers get that pass none, and what calls are verified and timed with; without one they
    have to pass it. `other` is a value that every second odd problem is verified with in its place: one which shows,
    as an epsilon of 1e-5 does not, that a kernel takes what it is passed. Of bool it is the other one anyway. `binds`
    names the dim that an integer is, as one that says how many results are wanted; where an input has that dim as well,
    the two must agree.
    """

    name: str
    dtype_name: str = "f32"
    default: float | None = None
    other: float | None = None
    binds: str = ""

    def __post_init__(self) -> None:
        check_identifier(self.name, "scalar", argument=True)
        dtype(self.dtype_name, f"scalar {self.name!r}")
        if self.dtype_name not in _SCALARS:
            raise SpecError(
                f"scalar {self.name!r}: {self.dtype_name} cannot be passed by value",
                fix=f"use f32, or another of {', '.join(_SCALARS)}",
            )
        for value, what in ((self.default, "default"), (self.other, "other")):
            if value is not None:
                _check_number(value, self.dtype_name, f"scalar {self.name!r}: {what}")
        if self.binds:
            self._check_binds()
        if self.other is not None and self.other == self.sample:
            raise SpecError(
                f"scalar {self.name!r}: `other` is the value that it is verified with in any case",
                fix="name another value",
            )

    def _check_binds(self) -> None:
        where = f"scalar {self.name!r}: it binds the dim {self.binds!r}"
        if self.dtype_name[0] not in "iu":
            raise SpecError(f"{where}, and is {self.dtype_name}", why="extents are integers", fix="make it i32 or i64")
        if self.other is not None or (self.default or 0) < 0:
            raise SpecError(
                f"{where}, and has `other` or a negative default",
                why="it is verified with the extents of each problem",
                fix="leave `other` out. Give no default, or a default that can be an extent",
            )

    @property
    def sample(self) -> float | int:
        """What calls are verified and timed with: the default, else a number that hides no mistake, as 0 or 1 would.

        It depends on the name, so that two scalars that change places are noticed, and is exact in every dtype.
        """
        if self.default is not None:
            return self._passed(self.default)
        if self.dtype_name == "bool":
            return True
        number = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")
        return 1.25 + number % 61 / 64 if self.dtype_name.startswith("f") else 2 + number % 5

    @property
    def another(self) -> float | int | None:
        """`other` as it is passed."""
        if self.dtype_name == "bool":
            return not self.sample
        return None if self.other is None else self._passed(self.other)

    def _passed(self, value: float) -> float | int:
        if self.dtype_name == "bool":
            return bool(value)
        return float(value) if self.dtype_name.startswith("f") else int(value)


def _check_number(value: float, dtype_name: str, what: str) -> None:
    """Raise SpecError when a dtype of scalars does not hold a number."""
    if dtype_name == "bool":
        if value not in (0, 1):
            raise SpecError(f"{what} {value} is no boolean", fix="write True or False")
        return
    if dtype_name.startswith("f"):
        if dtype_name == "f32" and _F32_MAX < abs(value) < math.inf:
            raise SpecError(f"{what} {value} does not fit {dtype_name}", fix="name a smaller one, or another dtype")
        return
    if not math.isfinite(value) or value != int(value):
        raise SpecError(f"{what} {value} is no whole number", fix="name one")
    low, high = dtype(dtype_name).limits
    if not low <= value <= high:
        raise SpecError(
            f"{what} {value} does not fit {dtype_name}",
            why=f"it holds whole numbers from {low} to {high}",
            fix="name a smaller one, or another dtype",
        )


@dataclass(frozen=True)
class Attribute:
    """A choice among names, such as an activation; the first choice is the default. In C it is its index.

    With `mode`, kernels differ by it as they do by dtype: calls of each choice have variants of their own.
    """

    name: str
    choices: tuple[str, ...] = field(default=())
    mode: bool = False

    def __post_init__(self) -> None:
        check_identifier(self.name, "attribute", argument=True)
        if not self.choices:
            raise SpecError(f"attribute {self.name!r} has no choices", fix="list at least one")
        for choice in self.choices:
            check_identifier(choice, f"choice of attribute {self.name!r}")
        if len(set(self.choices)) != len(self.choices):
            raise SpecError(f"attribute {self.name!r} lists a choice twice: {self.choices}", fix="remove one")
