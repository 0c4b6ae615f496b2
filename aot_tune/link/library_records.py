"""What link is given: the chosen variants, the decision trees per target, and the identity of the library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from aot_tune.link.families import family_facts, family_of
from aot_tune.select import Terms, TimeModel
from aot_tune.spec import ConfigValue, Expr, Operator, Problem

__all__ = [
    "SHARED_FUNCTIONS",
    "DecisionNode",
    "ExpectedTime",
    "LibrarySpec",
    "LinkedVariant",
    "OperatorTable",
    "SeenCalls",
    "TargetTable",
]

SHARED_FUNCTIONS = ("last_error", "manifest", "preload", "set_num_threads", "get_num_threads")
"""What every library exports beside the functions of its operators."""


@dataclass(frozen=True, kw_only=True)
class LinkedVariant:
    """A candidate that is kept.

    Args:
        name: unique in the operator, for people: `packed_3fa2b1c9`.
        symbol: its functions are `<symbol>_workspace` and `<symbol>_launch`, for CUDA `<symbol>_preload` too.
        kernel, target, level, last, config: what it was made of; devices from `level` to `last` run it (0: no last).
        dtypes: the value of each dtype variable of the operator; one that is left out has its first choice.
        requires: guards; all must hold for a call, else the next variant is tried.
        object_path: the object file that was measured; only its content enters the library.
        object_digest: SHA-256 of that file.
        device_digest: digest of what a GPU runs of it, as its toolchain tells; empty for a CPU.
        generic: answers every legal call in its dtypes; on each device an operator has one for each dtypes. Where code
            runs on one architecture alone, a family of devices has one per architecture, with a `last`. Several may
            share that by guards over optional tensors and attributes, of which each call meets those of one.
        notes: it has the function `<symbol>_note` too, which writes a line of text for explain(); `generate` finds out
            from its object.
        settled: once it ran on a device it loads nothing there any more, and what it says of its workspace depends on
            the call's dims, strides, alignments, numbers and presence alone; `generate` finds out as well.
        resources: what its code takes, by name: `registers`, `spill_bytes`, `shared`, `stack`.
        roofline: the best `share` of the roofline that it came to, on the `problem`, by the peaks that `of` names.
        rebuilt: compiled by another compiler version than the one whose object was measured; for a GPU, by one that
            makes other device code.
    """

    name: str
    symbol: str
    kernel: str
    target: str
    level: int
    object_path: str
    object_digest: str
    device_digest: str = ""
    last: int = 0
    dtypes: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    requires: tuple[Expr, ...] = ()
    generic: bool = False
    rebuilt: bool = False
    notes: bool = False
    settled: bool = False
    resources: Mapping[str, int] = field(default_factory=dict)
    roofline: Mapping[str, object] = field(default_factory=dict)

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions that its object must define, sorted."""
        names = {"launch", "workspace"}
        names |= {"preload"} if family_facts(self.target).preloads else set()
        names |= {"note"} if self.notes else set()
        return tuple(f"{self.symbol}_{name}" for name in sorted(names))


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
class ExpectedTime:
    """What a variant (by its index) is expected to take on a call that nobody measured.

    That is, on one that has these `facts`, and for which all that is in `within` holds: what its kernel is meant for.
    `caution` is added to the expected log2 ns in 1/4096 where variants are ranked.
    """

    variant: int
    terms: Terms
    model: TimeModel
    caution: int = 0
    facts: tuple[tuple[str, int], ...] = ()
    within: tuple[Expr, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SeenCalls:
    """The calls of one kind, which have these `facts`, that times are known of: each dim's least and largest extent."""

    facts: tuple[tuple[str, int], ...]
    dims: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class TargetTable:
    """How calls of an operator are decided for one target.

    A call like one of the problems `tuned` tries the variants that `exact` has for it, if that has any; else, and where
    none of them serves, come the variants with an `expected` time, the likeliest first, and then those of the tree.
    Where none of all these but a generic one takes a call that was not measured, those come that are `filling_in`.

    It was learned from the calls in `seen`, on a device of so many `processors`: multiprocessors of a GPU, threads of
    CPU kernels, 0 where nobody knows.

    Devices from `level` to `last` (0: no last) use it, unless another table is more specific: of a higher level, or at
    the same level of a higher `rank` or for fewer devices.
    """

    target: str
    level: int
    nodes: tuple[DecisionNode, ...]
    tuned: tuple[Problem, ...] = ()
    exact: tuple[tuple[int, ...], ...] = ()
    expected: tuple[ExpectedTime, ...] = ()
    filling_in: tuple[int, ...] = ()
    seen: tuple[SeenCalls, ...] = ()
    processors: int = 0
    last: int = 0
    rank: int = 0

    @property
    def specificity(self) -> tuple[int, int, float, str]:
        """What tables are ordered by; of those that a device can use, it uses the greatest."""
        # the names `cuda-sm_90a` and `cuda-sm_90` order architecture-specific targets after plain ones
        return self.level, self.rank, -(self.last or math.inf), self.target

    @property
    def used(self) -> tuple[int, ...]:
        """Indices of the variants that it names, sorted."""
        named = {index for leaf in (*self.exact, *(node.leaf for node in self.nodes)) for index in leaf}
        return tuple(sorted(named | {one.variant for one in self.expected} | set(self.filling_in)))


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """Everything that the library holds of one operator."""

    operator: Operator
    variants: tuple[LinkedVariant, ...]
    tables: tuple[TargetTable, ...] = ()

    def generics(self, family: str) -> tuple[int, ...]:
        """Indices of the generic variants for a family of devices; their dtypes or their levels differ."""
        return tuple(i for i, v in enumerate(self.variants) if v.generic and family_of(v.target) == family)

    def bounded(self, family: str) -> bool:
        """Whether generic variants for a family of devices end at some level: there may be several for each dtypes."""
        return any(self.variants[i].last for i in self.generics(family))

    def choices(self, variant: LinkedVariant) -> tuple[int, ...]:
        """For each dtype variable of the operator the index of the variant's choice."""
        return tuple(c.index(variant.dtypes.get(v, c[0])) for v, c in self.operator.dtypes.items())

    def targets(self, family: str) -> tuple[str, ...]:
        """Targets of a family of devices that there are variants for, sorted."""
        return tuple(sorted({v.target for v in self.variants if family_of(v.target) == family}))

    @property
    def families(self) -> tuple[str, ...]:
        """Families of devices that there is a generic variant for, sorted."""
        return tuple(sorted({family_of(v.target) for v in self.variants if v.generic}))


@dataclass(frozen=True, kw_only=True)
class LibrarySpec:
    """A library: `lib<output>.so`, header `header`, Python extension module `module`.

    An empty `output` stands for `<prefix>_<name>`, an empty `module` for `name`. With `xla_ffi` it exports handlers of
    XLA's FFI, too.

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
    xla_ffi: bool = False

    @property
    def library(self) -> str:
        """The base name of the shared library, without `lib` and `.so`."""
        return self.output or f"{self.prefix}_{self.name}"

    @property
    def face(self) -> str:
        """The name of the Python module."""
        return self.module or self.name
