"""A call's arguments as a function's heuristics and pruners see them: as expressions, or as numbers.

Shapes, strides, dtypes, presence and integers are known. Reading anything else raises, because only a running kernel
knows it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aot_tune.render.triton.recipe import of_data
from aot_tune.spec import DTYPES, Expr, Facts, present
from aot_tune.support.errors import SpecError
from aot_tune.triton.triton_messages import Given, TensorFacts

__all__ = ["KernelArguments", "TensorView", "UnknownValueError"]


class UnknownValueError(Exception):
    """A function read something that is unknown before a kernel runs."""


class _Unknown:
    """A scalar, or memory that the build provides. It is known to exist, but its value is not known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _unknown(self, *_others: object) -> Any:
        raise UnknownValueError(f"it reads the value of {self._name!r}")

    __bool__ = __int__ = __float__ = __index__ = __neg__ = __abs__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __eq__ = __ne__ = _unknown
    __hash__ = None  # type: ignore[assignment]


class _ElementType:
    """An element type for when torch is not loaded: its size, and its name as torch shows it."""

    def __init__(self, name: str) -> None:
        self.itemsize, self.is_floating_point = DTYPES[name].itemsize, DTYPES[name].is_floating
        self._name = f"torch.{DTYPES[name].torch}"

    def __repr__(self) -> str:
        return self._name

    def __eq__(self, other: object) -> bool:
        return str(other) == self._name

    def __hash__(self) -> int:
        return hash(self._name)


class TensorView:
    """What is known of a tensor. `value` turns an expression into what the reader gets."""

    def __init__(self, facts: TensorFacts, value: Callable[[Expr], Any], block: Sequence[Any] = ()) -> None:
        self._facts, self._value, self._block = facts, value, block
        self.shape = tuple(value(Expr.of(e)) for e in facts.shape)
        self.strides = tuple(value(Expr.of(e)) for e in facts.strides)
        self.ndim = len(self.shape)
        self.is_cuda = True
        if block:
            self.base = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownValueError(f"it reads {name!r} of the tensor {self._facts.name!r}")

    def __getitem__(self, index: object) -> Any:
        raise UnknownValueError(f"it reads elements of the tensor {self._facts.name!r}")

    def _unknown(self) -> Any:
        return self[0]

    __bool__ = __len__ = __float__ = __int__ = __index__ = _unknown

    @property
    def block_shape(self) -> list[Any]:
        """Extents of a descriptor's blocks. A config may decide them."""
        if not self._block:
            raise UnknownValueError(f"it reads 'block_shape' of the tensor {self._facts.name!r}")
        return [self._value(Expr.of(e)) for e in self._block]

    @property
    def _name(self) -> str:
        """The spec's name of the element type. If a call decides it, each choice is followed."""
        for index, name in enumerate(self._facts.dtypes[:-1]):
            if bool(self._value(Expr("fact", value=self._facts.dtype_fact) == index)):
                return name
        return self._facts.dtypes[-1]

    @property
    def dtype(self) -> Any:
        """torch's dtype, if torch is loaded."""
        torch: Any = sys.modules.get("torch")
        return getattr(torch, DTYPES[self._name].torch) if torch is not None else _ElementType(self._name)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self._name].itemsize

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.itemsize

    def dim(self) -> int:
        """Number of axes."""
        return self.ndim

    def size(self, axis: int | None = None) -> Any:
        """Extents of all axes, or of one."""
        return self.shape if axis is None else self.shape[axis]

    def stride(self, axis: int | None = None) -> Any:
        """Strides of all axes in elements, or of one."""
        return self.strides if axis is None else self.strides[axis]

    def numel(self) -> Any:
        """Number of elements."""
        count: Any = 1
        for extent in self.shape:
            count = count * extent
        return count

    def is_contiguous(self) -> bool:
        """Whether it is row-major without gaps."""
        below: Any = 1
        for extent, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if step != below and extent != 1:
                return False
            below = below * extent
        return True


class KernelArguments(Mapping[str, Any]):
    """The arguments of a function, by name. `facts` are those of one call; None gives expressions.

    An absent optional tensor is None. With expressions, the reader is followed for both cases.
    """

    def __init__(
        self,
        given: Mapping[str, Given],
        facts: Facts | None,
        element_type: Callable[[str], Any],
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._given, self._facts, self._element_type = given, facts, element_type
        self._more = dict(more or {})

    def __getitem__(self, name: str) -> Any:
        if name in self._more:
            value = self._more[name]
            return self._value(value) if isinstance(value, Expr) else value
        given = self._given[name]
        return self._read(name, given)

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*self._given, *self._more))

    def __len__(self) -> int:
        return len(set(self._given) | set(self._more))

    def copy(self) -> dict[str, Any]:
        """All of them."""
        return dict(self)

    def _value(self, expr: Expr) -> Any:
        return expr if self._facts is None else expr.evaluate(self._facts)

    def _integer(self, name: str, expr: Expr) -> Any:
        try:
            return self._value(expr)
        except SpecError:  # a config or the device decides it
            return _Unknown(name)

    def _read(self, name: str, given: Given) -> Any:
        if given.kind == "integer":
            return self._integer(name, Expr.of(given.expr))
        if given.kind == "constant":
            return of_data(given.value)
        tensor = given.tensor
        if tensor is None:
            return of_data(given.value) if given.kind == "scalar" and self._facts is not None else _Unknown(name)
        if tensor.optional and not bool(self._value(present(tensor.name))):
            return None
        view = TensorView(tensor, self._value, given.block)
        return self._element_type(view._name) if given.kind == "dtype" else view
