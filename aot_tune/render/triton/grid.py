"""The grid of a Triton function as C++: its Python function is run once with expressions of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from aot_tune.expr.integer_expressions import as_expr
from aot_tune.render.triton.binding import Argument
from aot_tune.spec import DTYPES, Expr, Operator, TritonFunction, stride, trace
from aot_tune.support.errors import AotTuneError, RenderError, did_you_mean

_CPP = {
    "min": "launcher::least({}, {})",
    "max": "launcher::greatest({}, {})",
    "//": "launcher::floor_divide({}, {}, &aot_undefined)",
    "%": "launcher::floor_modulo({}, {}, &aot_undefined)",
    "next_power_of_2": "launcher::next_power_of_2({})",
    "where": "({} ? {} : {})",
    "and": "({} && {})",
    "or": "({} || {})",
}


def print_expr(expr: Expr, name: Callable[[str], str]) -> str:
    """An expression as C++ on int64_t, equal to Python's also for negative numbers; `name` prints a fact.

    A divisor that can be 0 needs the variable `bool aot_undefined` in scope: it becomes true where Python would raise.
    """
    return expr.cpp(name, _CPP)


def grid_values(
    arguments: Sequence[Argument], config: Mapping[str, Any], pins: Mapping[str, int], facts: Mapping[str, int]
) -> dict[str, Any]:
    """What a grid gets by name: config values, and integers and constants that are arguments."""
    values: dict[str, Any] = dict(config)
    for a in arguments:
        if a.kind == "integer" and a.expr is not None:
            expr = a.expr.substitute(facts)
            constant = pins.get(a.pin, expr.value if expr.op == "const" else None)
            values[a.name] = expr if constant is None else int(constant)
        elif a.kind == "constant":
            values[a.name] = a.value
        elif a.kind == "pointer" and pins.get(f"{a.pin}.none"):
            values[a.name] = None
    return values


def trace_grid(
    operator: Operator, function: TritonFunction, arguments: Sequence[Argument], values: Mapping[str, Any], what: str
) -> tuple[Expr, ...]:
    """The extents of a grid, one to three.

    Args:
        operator: with concrete dtypes.
        function: whose grid it is.
        arguments: the function's parameters.
        values: what the grid may ask for beside tensors: config values, constants and expressions by name.
        what: names operator and kernel in messages.

    Raises:
        RenderError: when the grid asks for what only the device knows, or gives something else than extents.
    """
    given = function.grid
    if callable(given):
        meta = _Meta(operator, arguments, values, what)
        try:
            given = trace(lambda: function.grid(meta), f"{what}: the grid")  # type: ignore[operator]
        except AotTuneError as error:
            placed = error.what if error.what.startswith(what) else f"{what}: the grid: {error.what}"
            raise RenderError(placed, why=error.why, fix=error.fix) from error
        except Exception as error:
            raise RenderError(
                f"{what}: the grid raised {type(error).__name__}: {error}",
                why="it is run with expressions in place of sizes",
                fix="use + - * / // % << >>, comparisons, min, max, math.ceil, ceildiv and next_power_of_2",
            ) from error
    if not isinstance(given, (tuple, list)) or not 1 <= len(given) <= 3:
        raise RenderError(
            f"{what}: the grid is {str(given)[:80]!r}",
            why="a grid has one to three extents",
            fix="give a tuple of them",
        )
    try:
        return tuple(as_expr(extent, f"{what}: an extent of the grid") for extent in given)
    except AotTuneError as error:
        raise RenderError(
            error.what, why=error.why, fix="give integers and expressions of the call, quotients rounded"
        ) from error


class _Meta(Mapping[str, Any]):
    """What a grid is called with, as Triton does it: arguments and config values by name."""

    def __init__(self, operator: Operator, arguments: Sequence[Argument], values: Mapping[str, Any], what: str) -> None:
        self._operator, self._values, self._what = operator, values, what
        self._arguments = {a.name: a for a in arguments}

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        argument = self._arguments.get(name)
        if argument is not None and argument.tensor:
            return _Tensor(self._operator, argument, self._what)
        if argument is not None:
            raise RenderError(
                f"{self._what}: the grid uses the {argument.kind} argument {name!r}",
                why="a grid is a function of sizes, strides and config values",
                fix="use a dim of the operator in its place",
            )
        raise RenderError(
            f"{self._what}: the grid uses {name!r}, which is no argument or parameter",
            fix=did_you_mean(name, list(self)),
        )

    def __contains__(self, name: object) -> bool:
        return name in self._arguments or name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        there = name in self
        return self[name] if there else default

    def __iter__(self) -> Iterator[str]:
        return iter({**self._arguments, **self._values})

    def __len__(self) -> int:
        return len({**self._arguments, **self._values})


class _TypeName(str):
    """The name of an element type, equal to torch's too."""

    def __eq__(self, other: object) -> bool:
        return str(self) == other or str(other) == f"torch.{DTYPES[str(self)].torch}"

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)


class _Tensor:
    """A tensor as a grid may see it: its shape, strides and element type, and nothing that is in its memory."""

    def __init__(self, operator: Operator, argument: Argument, what: str) -> None:
        declared = operator.tensor(argument.tensor)
        self._argument, self._what = argument, what
        self._axes = (argument.descriptor.order if argument.descriptor else ()) or tuple(range(declared.rank))
        self.shape = tuple(declared.shape[axis] for axis in self._axes)
        self.dtype, self.ndim = _TypeName(declared.dtype.name), declared.rank
        self._element_size = declared.dtype.itemsize

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def stride(self, axis: int | None = None) -> Any:
        strides = tuple(stride(self._argument.tensor, i) for i in self._axes)
        return strides if axis is None else strides[axis]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> Expr:
        count = as_expr(1)
        for extent in self.shape:
            count = extent if count.op == "const" else count * extent
        return count

    def element_size(self) -> int:
        return self._element_size

    def _refuse(self, used: str) -> NoReturn:
        raise RenderError(
            f"{self._what}: the grid reads {used} of the tensor argument {self._argument.name!r}",
            why="the tensor is on the device, and what is in it is not known when a kernel is launched",
            fix="use its .shape, .stride(), .numel() or .element_size(), or a dim of the operator",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    def __getitem__(self, _index: object) -> NoReturn:
        self._refuse("an element")

    def __bool__(self) -> bool:
        return self._refuse("the truth")

    def __int__(self) -> int:
        return self._refuse("the value")

    __index__ = __int__
