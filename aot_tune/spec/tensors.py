"""An operator's arguments: tensors, scalars, attributes. How they lie in memory, and how far off outputs may be."""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aot_tune.expr.integer_expressions import Expr, ExprLike, as_expr
from aot_tune.spec.dtypes import DTYPES, DType, dtype
from aot_tune.spec.generators import Values, normal
from aot_tune.spec.names import check_identifier, check_several
from aot_tune.support.errors import SpecError

MAX_RANK = 8
"""The most axes of a tensor (kMaxRank of the runtime)."""

DEFAULT_TOLERANCE = 4.0
"""How many times the yardstick's error a result may be off by default."""

TOLERANCE_OF_8_BITS = 2.0
"""The same for outputs in floats of 8 bits. Four times their rounding is a quarter or a half of the value."""

INTERMEDIATES = ("f32", "f16", "bf16")
"""The dtypes that a kernel's intermediate results may be declared to be rounded to."""

FLOATING = (2, 4, 10, 12)
"""DLPack's codes of floating-point dtypes."""


@dataclass(frozen=True)
class OffBy:
    """Integers may be off by `most`, in at most a `share` of an output's elements; see `off_by`."""

    most: int
    share: float = 1.0


Tolerance = float | OffBy | Mapping[str, float | OffBy]
"""One tolerance for all outputs, or one by output. Outputs that are not named have the default."""


def off_by(most: int, *, share: float = 1.0) -> OffBy:
    """Integers may be off by `most` (bools by 1), in at most a `share` of an output's elements.

    A kernel that rounds to integers may decide ties and near ties differently from the reference.

    Raises:
        SpecError: when `most` is not a positive integer, or `share` is not above 0 and at most 1.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise SpecError(f"off_by({most!r}) is not a step of integers", fix="give how far off one may be, such as 1")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise SpecError(f"off_by: share {share!r} is not a share", fix="give a number above 0, at most 1")
    return OffBy(most, float(share))


def narrowest(dtypes: Iterable[DType]) -> DType:
    """The narrowest floating dtype of some. Among equally narrow ones, it is the one with fewer bits of fraction.

    It is f32 if none is narrower or floating. Floats of 8 bits do not count: values are stored in them, but nobody
    computes in them.
    """
    floating = [d for d in dtypes if d.code in FLOATING and not d.saturates]
    return min((DTYPES["f32"], *floating), key=lambda d: (d.bits, d.fraction))


_INEXACT = 1.0 + 77.0 / 8192.0
"""Times a number of few bits, this has no place in the 11 bits of an f16."""
_F32_MAX = 3.4028234663852886e38
_SCALARS = ("f32", "f64", "bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
_VARIABLE = re.compile(r"[A-Z][A-Za-z0-9]{0,15}\Z")


class Tensor:
    """A named tensor of an operator.

    Args:
        name: an identifier: the argument's name in C and Python.
        shape: one expression for each axis, such as `(M, K)`. Their number is the rank.
        dtype_name: an element type, or one of the operator's dtype variables, which begin with a capital.
        output: written by the operator, never read.
        inout: read and written in place, such as a residual or the pages of a cache. Callers pass it and find the new
            values in it.
        optional: may be left out of a call.
        cold: its bytes are not in the caches when a call begins, as for weights. For activations it is False.
        read: how many of its elements a call must read at least, over facts of the call: `N * D` for a table whose rows
            are looked up. By default, all of them. A call that is faster than that many can be read is not believed.
            For an inout tensor, elements that are read count once, and elements that are written count once.
        below: for an input of integers: callers pass numbers from 0 to `below` - 1, over dims, such as a cache's pages.
            AOT_TUNE_CHECK looks, and a call with another one is an error. Without it, the operator says what happens.
        may_alias: for an output: inputs of its shape and dtype. A caller may have the output written into their memory;
            each element is then read before it is written. Candidates are verified so too.
        layout_of: for an output: an input with as many axes. If a caller passes no output, a new one has this input's
            order of axes in memory. Without it, or if that input is broadcast, a new output is row-major.
        finite: no call has NaN or infinities in it (coordinates, lengths), so verification puts none into it.
        values: how test inputs are drawn, see `spec.generators`. The default is `normal()`.
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
        below: ExprLike | None = None,
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
        if below is not None and (output or dtype_name[0] not in "iu"):
            raise SpecError(
                f"tensor {name!r}: below has no effect", why="only numbers of inputs are looked at", fix="leave it out"
            )
        self.below = None if below is None else as_expr(below, f"tensor {name!r}: below")
        self.values: Values = values or normal()
        if not self.shape:
            raise SpecError(f"tensor {name!r} has no axes", fix="use a Scalar for a single number")

    @property
    def written(self) -> bool:
        """Whether calls write to it: it is an output or inout."""
        return self.output or self.inout

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        """The element type.

        Raises:
            SpecError: when it is a variable. A variable has a value only in `Operator.concrete`.
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
    """Raise SpecError for a tensor with both output and inout, or with `may_alias` but without output."""
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
            why="it says which memory an output may use" + (", and an inout tensor is its own input" if inout else ""),
            fix="declare it for the output",
        )


@dataclass(frozen=True)
class Scalar:
    """A number passed by value: `dtype_name` is f32, f64, bool or an integer type, i8 to i64 and u8 to u64.

    Python callers that pass none get `default`, and calls are verified and timed with it. Without a default, callers
    must pass a number. Every second odd problem is verified with `other` in its place. It should show whether a kernel
    uses what it is passed; an epsilon of 1e-5 does not show that. For bool it is the other value anyway. `binds` names
    the dim that an integer is, such as the number of results. If an input has that dim too, both must agree. If `least`
    is stated, a call with a smaller number or with NaN is an error.
    """

    name: str
    dtype_name: str = "f32"
    default: float | None = None
    other: float | None = None
    binds: str = ""
    least: float | None = None

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
        if self.least is not None and any(v is not None and not v >= self.least for v in (self.default, self.other)):
            raise SpecError(
                f"scalar {self.name!r}: {self.least} is the least, and its default or `other` is below",
                fix="name larger ones, or a smaller `least`",
            )
        if self.other is not None and self.other == self.sample:
            raise SpecError(
                f"scalar {self.name!r}: `other` is the value that it is verified with anyway", fix="name another value"
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
        """The value to verify and time calls with: the default, else a number that hides no mistake as 0 or 1 would.

        It depends on the name, so that exchanged scalars are noticed. It is exact in every dtype.
        """
        if self.default is not None:
            return self._passed(self.default)
        if self.dtype_name == "bool":
            return True
        number = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")
        return 1.25 + number % 61 / 64 if self.dtype_name.startswith("f") else 2 + number % 5

    @property
    def another(self) -> float | int | None:
        """`other`, in the form that is passed."""
        if self.dtype_name == "bool":
            return not self.sample
        return None if self.other is None else self._passed(self.other)

    @property
    def inexact(self) -> float | None:
        """A float near `other`, or else `sample`, that takes more than 16 bits. None if that is 0 or not finite."""
        value = self.sample if self.other is None else self.other
        return value * _INEXACT if self.dtype_name[0] == "f" and value and math.isfinite(value) else None

    @property
    def odd(self) -> tuple[float, ...]:
        """Legal floats that kernels may be wrong for: below 0, 0 and large."""
        if self.inexact is None:
            return ()
        numbers = (-self.inexact, 0.0, 1000.0 * self.inexact)
        return tuple(n for n in numbers if self.least is None or n >= self.least)

    def _passed(self, value: float) -> float | int:
        if self.dtype_name == "bool":
            return bool(value)
        return float(value) if self.dtype_name.startswith("f") else int(value)


def _check_number(value: float, dtype_name: str, what: str) -> None:
    """Raise SpecError if a scalar's dtype cannot hold a number."""
    if dtype_name == "bool":
        if value not in (0, 1):
            raise SpecError(f"{what} {value} is not a boolean", fix="write True or False")
        return
    if dtype_name.startswith("f"):
        if dtype_name == "f32" and _F32_MAX < abs(value) < math.inf:
            raise SpecError(f"{what} {value} does not fit {dtype_name}", fix="name a smaller one, or another dtype")
        return
    if not math.isfinite(value) or value != int(value):
        raise SpecError(f"{what} {value} is not a whole number", fix="name a whole number")
    low, high = dtype(dtype_name).limits
    if not low <= value <= high:
        raise SpecError(
            f"{what} {value} does not fit {dtype_name}",
            why=f"it holds whole numbers from {low} to {high}",
            fix="name a smaller one, or another dtype",
        )


@dataclass(frozen=True)
class Attribute:
    """A choice among names, such as an activation. The first choice is the default. In C it is its index.

    With `mode`, it decides about kernels as dtypes do: calls of each choice have their own variants.
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


def canonical_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides with replacements for axes of extent 1, because no element's address depends on these.

    If this makes some axis contiguous, the last such axis gets stride 1. All others get the stride of a row-major
    tensor. So guards and decisions see one form of each layout.
    """
    if 1 not in shape:
        return tuple(strides)
    result = list(strides)
    unit = any(s == 1 and extent != 1 for extent, s in zip(shape, strides, strict=True))
    for axis in reversed(range(len(result))):
        if shape[axis] != 1:
            continue
        if not unit or axis == len(result) - 1:
            result[axis] = 1
            unit = True
        else:
            result[axis] = shape[axis + 1] * result[axis + 1]
    return tuple(result)


def stride_class(strides: Sequence[int]) -> int:
    """Equal numbers mean the same order of axes, and a fastest stride of 1 in both tensors or in neither."""
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    code = int(bool(order) and strides[order[-1]] == 1)
    for axis in order:
        code = code * MAX_RANK + axis
    return code


def row_major(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides in elements of a dense tensor. `order` lists its axes from slowest to fastest."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order if order is not None else range(len(shape))):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)
