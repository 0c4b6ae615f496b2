"""What link is given: the chosen variants, the decision trees per target, and the identity of the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aot_tune.spec import ConfigValue, Expr, Operator, Problem

__all__ = [
    "DecisionNode",
    "LibrarySpec",
    "LinkedVariant",
    "OperatorTable",
    "TargetTable",
    "family_of",
]


@dataclass(frozen=True, kw_only=True)
class LinkedVariant:
    """A candidate that is kept.

    Args:
        name: unique in the operator, for people: `packed_3fa2b1c9`.
        symbol: its functions are `<symbol>_workspace` and `<symbol>_launch`.
        kernel, target, level, config: what it was made of; `level` is the target's.
        requires: guards; all must hold for a call, else the next variant is tried.
        object_path: the object file that was measured; only its content enters the library.
        object_digest: SHA-256 of that file.
        generic: answers every legal call; one per operator and family of devices.
        rebuilt: compiled by another compiler version than the one whose object was measured.
    """

    name: str
    symbol: str
    kernel: str
    target: str
    level: int
    object_path: str
    object_digest: str
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    requires: tuple[Expr, ...] = ()
    generic: bool = False
    rebuilt: bool = False


@dataclass(frozen=True, kw_only=True)
class DecisionNode:
    """A node of a decision tree; the root is node 0.

    With a fact: `facts[fact] <= threshold` goes to node `below`, else to node `above`. Without one: a leaf, whose
    variants (indices into the operator's variants) are tried in order, before the generic one.
    """

    fact: str = ""
    threshold: int = 0
    below: int = 0
    above: int = 0
    leaf: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TargetTable:
    """The decision tree of an operator for one target, and the problems that it was measured on."""

    target: str
    level: int
    nodes: tuple[DecisionNode, ...]
    tuned: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """Everything that the library holds of one operator."""

    operator: Operator
    variants: tuple[LinkedVariant, ...]
    tables: tuple[TargetTable, ...] = ()

    def generic(self, family: str) -> int:
        """Index of the generic variant for a family of devices (checked to exist by `check_library`)."""
        return next(i for i, v in enumerate(self.variants) if v.generic and family_of(v.target) == family)

    @property
    def families(self) -> tuple[str, ...]:
        """Families of devices that there is a generic variant for, sorted."""
        return tuple(sorted({family_of(v.target) for v in self.variants if v.generic}))


@dataclass(frozen=True, kw_only=True)
class LibrarySpec:
    """A library: `lib<output>.so`, header `header`, Python extension module `module`.

    An empty `output` stands for `<prefix>_<name>`, an empty `module` for `name`.

    `devices` describes the devices that were measured on, `policy` how; `tools` the versions that made the objects.
    They are written to the manifest as they are, so they hold no paths, host names or times.
    """

    operators: tuple[OperatorTable, ...]
    name: str = "ops"
    prefix: str = "aot_tune"
    header: str = "aot_tune/ops.h"
    module: str = "ops"
    output: str = ""
    mode: str = "auto"
    devices: tuple[Mapping[str, object], ...] = ()
    policy: Mapping[str, object] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)

    @property
    def library(self) -> str:
        """The base name of the shared library, without `lib` and `.so`."""
        return self.output or f"{self.prefix}_{self.name}"

    @property
    def face(self) -> str:
        """The name of the Python module."""
        return self.module or self.name


def family_of(target: str) -> str:
    """The family of devices of a target's name: `cpu` of `cpu-x86-64-v4`."""
    return target.split("-", 1)[0]
