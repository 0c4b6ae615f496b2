"""The input of link: the chosen variants, what decides by target, and the identity of the library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from aot_tune.compile import Variant
from aot_tune.select import NEAREST, Rule, Terms, TimeModel
from aot_tune.spec import Expr, Operator, Problem
from aot_tune.spec.regimes import OTHER

SHARED_FUNCTIONS = ("last_error", "manifest", "preload", "set_num_threads", "get_num_threads")
"""What every library exports beside the functions of its operators."""


@dataclass(frozen=True, kw_only=True)
class FamilyFacts:
    """Facts of a family of devices.

    Args:
        on_host: a call runs on the CPU, and enters no device.
        preloads: its variants have the function `<symbol>_preload`.
        late: prefixes of the names of libraries that are linked statically, or found at a call.
        device: DLPack's name of the type of its devices.
        platform: XLA's name of them. Empty if XLA has none, so that a library has no handler for them.
    """

    on_host: bool = False
    preloads: bool = False
    late: tuple[str, ...] = ()
    device: str = ""
    platform: str = ""


FAMILIES = {
    "cpu": FamilyFacts(on_host=True, device="kDLCPU", platform="cpu"),
    "cuda": FamilyFacts(
        preloads=True,
        late=("libcuda.", "libcudart.", "libcublas", "libcudnn", "libnvrtc", "libnvJitLink", "libnvidia-"),
        device="kDLCUDA",
        platform="CUDA",
    ),
    "hip": FamilyFacts(preloads=True, late=("libamdhip64.",), device="kDLROCM", platform="ROCM"),
}


def family_of(target: str) -> str:
    """The family of devices in a target's name: `cpu` of `cpu-x86-64-v4`."""
    return target.split("-", 1)[0]


def family_facts(target: str) -> FamilyFacts:
    """The facts of the family of a target's name."""
    return FAMILIES.get(family_of(target), FamilyFacts())


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """The time that a variant (by its index) is expected to take on a call that nobody measured.

    It is valid for calls with these `facts`, of these regimes. What is the `vendor`'s choice needs no caution.
    """

    variant: int
    terms: Terms
    model: TimeModel
    facts: tuple[tuple[str, int], ...] = ()
    regimes: frozenset[str] = frozenset({OTHER})
    vendor: bool = False


@dataclass(frozen=True, kw_only=True)
class RegimeCalls:
    """The calls of one kind, with these `facts`, and one regime.

    Args:
        facts: of the kind.
        regime: its name.
        dims: each dim's least and largest extent where times are known; empty if there are none.
        rule: how calls are decided that nobody measured.
    """

    facts: tuple[tuple[str, int], ...] = ()
    regime: str = OTHER
    dims: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rule: Rule = field(default_factory=partial(Rule, NEAREST))


@dataclass(frozen=True, kw_only=True)
class TargetTable:
    """How an operator's calls are decided for one target.

    A call may be like one of the problems `tuned`, and `exact` may have variants for it. These are tried first. If none
    of them serves, or there are none, the rule of its kind and regime decides. By one of the rules, variants with an
    `expected` time follow, the likeliest first. By the other, and for calls that no rule is for, those of the nearest
    problem follow, among `tuned` and the shapes that were `surveyed`. Then come those in `rest`. If all these leave a
    call that was not measured to the generic variant, those in `filling_in` are tried.

    It was learned from the calls in `regimes`, on a device with so many `processors`: multiprocessors of a GPU, threads
    of CPU kernels, or 0 if nobody knows. The variants `alone` get one thread on calls like the problems `tuned`.

    Devices from `level` to `last` (0: no last) use it, unless another table is more specific: it has a higher level, or
    at the same level a higher `rank`, or it is for fewer devices.
    """

    target: str
    level: int
    rest: tuple[int, ...] = ()
    tuned: tuple[Problem, ...] = ()
    exact: tuple[tuple[int, ...], ...] = ()
    expected: tuple[ExpectedTime, ...] = ()
    surveyed: tuple[tuple[Problem, tuple[int, ...]], ...] = ()
    filling_in: tuple[int, ...] = ()
    regimes: tuple[RegimeCalls, ...] = ()
    processors: int = 0
    last: int = 0
    rank: int = 0
    alone: tuple[tuple[int, ...], ...] = ()

    @property
    def specificity(self) -> tuple[int, int, float, str]:
        """The order of tables. A device uses the greatest of those that it can use."""
        # The names `cuda-sm_90a` and `cuda-sm_90` put architecture-specific targets after plain ones.
        return self.level, self.rank, -(self.last or math.inf), self.target

    @property
    def used(self) -> tuple[int, ...]:
        """Indices of the variants that it names, sorted."""
        named = {index for ranked in (*self.exact, *(r for _, r in self.surveyed), self.rest) for index in ranked}
        return tuple(sorted(named | {expectation.variant for expectation in self.expected} | set(self.filling_in)))


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """Everything that the library holds of one operator.

    On each device, it has one generic variant for each combination of dtypes. If code only runs on one architecture, a
    family of devices has one per architecture. Several generic variants may share this by guards over optional tensors
    and attributes. Then each call meets the guards of exactly one.

    Args:
        rooflines: by a variant's name, the best `share` of the roofline that it reached, on the `problem`, by the peaks
            that `of` names.
        worth: by a variant's name, conditions that hold where its kernel is meant for a call.
        varying: names of variants whose results vary between equal calls, for explain().
        uncaptured: names of variants whose calls could not be captured in a graph, for explain().
        noting: symbols of variants with a function `<symbol>_note`, which writes a line of text for explain().
            `generate` finds these out from the objects, and the `settled` ones.
        settled: symbols of variants that load nothing more on a device after their first run there, and whose workspace
            only depends on the call's dims, strides, alignments, numbers and presence.
    """

    operator: Operator
    variants: tuple[Variant, ...]
    tables: tuple[TargetTable, ...] = ()
    rooflines: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    worth: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    uncaptured: frozenset[str] = frozenset()
    noting: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()

    def generics(self, family: str) -> tuple[int, ...]:
        """Indices of the generic variants for a family of devices. Their dtypes or their levels differ."""
        return tuple(i for i, v in enumerate(self.variants) if v.candidate.generic and v.target.family == family)

    def bounded(self, family: str) -> bool:
        """Whether a family's generic variants have a highest level: then there may be several for the same dtypes."""
        return any(self.variants[i].target.last for i in self.generics(family))

    def choices(self, variant: Variant) -> tuple[int, ...]:
        """The index of the variant's choice, for each dtype variable of the operator."""
        return tuple(c.index(variant.candidate.dtypes.get(v, c[0])) for v, c in self.operator.dtypes.items())

    def targets(self, family: str) -> tuple[str, ...]:
        """Targets of a family of devices for which there are variants, sorted."""
        return tuple(sorted({v.candidate.target for v in self.variants if v.target.family == family}))

    @property
    def families(self) -> tuple[str, ...]:
        """Families of devices for which there is a generic variant, sorted."""
        return tuple(sorted({v.target.family for v in self.variants if v.candidate.generic}))


@dataclass(frozen=True, kw_only=True)
class LibrarySpec:
    """A library: `lib<output>.so`, its header `header`, its Python extension module `module`.

    An empty `output` stands for `<prefix>_<name>`, and an empty `module` for `name`. With `xla_ffi`, it also exports
    handlers of XLA's FFI.

    `devices` describes the devices that were measured on, and `policy` how. `tools` are the versions of the tools that
    made the objects. The manifest gets them as they are, so they hold no paths, host names or times.
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
