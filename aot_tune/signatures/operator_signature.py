"""What a module says of its operators, and the overloads that torch gets for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from aot_tune.expr.integer_expressions import EXTENT, Expr
from aot_tune.support.errors import AotTuneError

_SCHEMA = 1


@dataclass(frozen=True)
class TensorSignature:
    """A tensor of an operator. `dtype` is a name such as `f32`, or the name of a dtype variable.

    The axes of a new output have the same order in memory as those of `layout_of`; without it, the output is row-major.
    If it `folds`, its first axis stands for any number of leading dims.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    output: bool = False
    inout: bool = False
    optional: bool = False
    to_pass: bool = False
    layout_of: str = ""
    folds: bool = False


@dataclass(frozen=True)
class ScalarSignature:
    """A number that is passed by keyword. Without a default it must be passed."""

    name: str
    dtype: str
    default: float | bool | None = None


@dataclass(frozen=True)
class AttributeSignature:
    """A choice among names; the first is the default."""

    name: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class DimSource:
    """The source of a dim: the integer `scalar`, or the extent of an axis, from which `value` computes the dim."""

    dim: str
    scalar: str = ""
    tensor: str = ""
    axis: int = 0
    value: Expr = Expr("fact", value=EXTENT)  # noqa: RUF009  (nothing of an expression changes)


@dataclass(frozen=True)
class Overload:
    """It makes the outputs `made`, in order, and takes `taken`; `asked` are the optional ones that it makes."""

    name: str
    made: tuple[str, ...]
    taken: tuple[str, ...]
    asked: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorSignature:
    """An operator as its module declares it."""

    name: str
    documentation: str
    bound: tuple[DimSource, ...]
    dtypes: Mapping[str, tuple[str, ...]]
    tensors: tuple[TensorSignature, ...]
    scalars: tuple[ScalarSignature, ...]
    attributes: tuple[AttributeSignature, ...]

    @property
    def positional(self) -> tuple[TensorSignature, ...]:
        """Inputs in the order in which they are passed: first those that every call has."""
        inputs = [t for t in self.tensors if not t.output]
        return tuple(sorted(inputs, key=lambda t: t.optional))

    @property
    def outputs(self) -> tuple[TensorSignature, ...]:
        """Tensors that calls write but do not read."""
        return tuple(t for t in self.tensors if t.output)

    def tensor(self, name: str) -> TensorSignature:
        """The tensor of that name."""
        return next(t for t in self.tensors if t.name == name)

    def overloads(self) -> tuple[Overload, ...]:
        """The default makes what a call always returns, `all_outputs` also optional outputs. `out` takes all outputs.

        No two overloads differ only in their names. Otherwise torch would confuse them when it forgets these.
        """
        always = tuple(t.name for t in self.outputs if not t.optional and not t.to_pass)
        optional = tuple(t.name for t in self.outputs if t.optional)
        passed = tuple(t.name for t in self.outputs if t.to_pass)
        overloads = [Overload("", always, passed)]
        if optional:
            every = tuple(t.name for t in self.outputs if not t.to_pass)
            overloads.append(Overload("all_outputs", every, passed, optional))
        if len(passed) < len(self.outputs):
            overloads.append(Overload("out", (), tuple(t.name for t in self.outputs)))
        return tuple(overloads)


def read_signatures(module: ModuleType, error: type[AotTuneError]) -> tuple[OperatorSignature, ...]:
    """The operators of a library's module. Raises `error` when it is none, or of another version."""
    function = getattr(module, "signatures", None)
    if not hasattr(module, "operators") or not callable(function):
        raise error(
            f"{module!r:.80} is not a module of a tuned library with signatures",
            why="register() generates operators from the module's function signatures()",
            fix="pass the module that aot_tune_add_library(... MODULE name) made; build it again if it is an old one",
        )
    said = function()
    if said.get("schema") != _SCHEMA:
        raise error(
            f"the signatures of {module.__name__} have schema {said.get('schema')!r}, wanted {_SCHEMA}",
            why="another version of aot_tune built the module",
            fix="build the module again with the version that is installed",
        )
    return tuple(_operator(one) for one in said["operators"])


def _source(data: Mapping[str, Any]) -> DimSource:
    value = {"value": Expr.of(data["value"])} if "value" in data else {}
    return DimSource(**{**data, **value})


def _tensor(data: Mapping[str, Any]) -> TensorSignature:
    return TensorSignature(**{**data, "shape": tuple(map(Expr.of, data["shape"]))})


def _operator(data: Mapping[str, Any]) -> OperatorSignature:
    return OperatorSignature(
        name=data["name"],
        documentation=data["documentation"],
        bound=tuple(map(_source, data["bound"])),
        dtypes={variable: tuple(choices) for variable, choices in data["dtypes"].items()},
        tensors=tuple(map(_tensor, data["tensors"])),
        scalars=tuple(ScalarSignature(**one) for one in data["scalars"]),
        attributes=tuple(AttributeSignature(one["name"], tuple(one["choices"])) for one in data["attributes"]),
    )
