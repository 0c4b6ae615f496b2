"""The fields of an operator, and what follows from them."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec

from aot_tune.expr.integer_expressions import Expr, ExprLike, all_of, as_expr
from aot_tune.spec.dtypes import DType, dtype
from aot_tune.spec.fragments import Activate, AddTensor, Epilogue, Fragment
from aot_tune.spec.generators import Generator, IntegerSums
from aot_tune.spec.kernel import Kernel
from aot_tune.spec.names import check_identifier, check_several
from aot_tune.spec.problem import DEFAULT_ALIGNMENT, Problem
from aot_tune.spec.tensors import (
    DEFAULT_TOLERANCE,
    FLOATING,
    TOLERANCE_OF_8_BITS,
    Attribute,
    OffBy,
    Scalar,
    Tensor,
    Tolerance,
    canonical_strides,
    narrowest,
    row_major,
)
from aot_tune.support.errors import SpecError, did_you_mean

T = TypeVar("T", bound="OperatorFields")

_MOST_FACTS = 4096
"""Of so many problems, the facts are remembered: each candidate is asked about the same ones."""

Call = SimpleNamespace
"""The arguments of one call by name: arrays (None when absent), scalars as floats, attributes as strings."""


@functools.cache
def _facts_of(tensor: str, rank: int) -> tuple[str, str, tuple[str, ...]]:
    """The names of the facts about a tensor: presence, alignment, strides."""
    return f"present.{tensor}", f"alignment.{tensor}", tuple(f"stride.{tensor}.{i}" for i in range(rank))


@dataclass(frozen=True)
class Baseline:
    """What users would call otherwise.

    `prepare(xp_module, call)` gets the imported module that `requires` names, and the call's arrays of that framework,
    outputs included. It returns a function without arguments that computes into the outputs.

    Wrong results do not count in a race, except on problems of which it is `partial`: of these it computes less, such
    as a product without its epilogue.
    """

    name: str
    requires: str
    prepare: Callable[[Any, Call], Callable[[], object]]
    supports: Callable[[Problem], bool] = lambda _problem: True
    partial: Callable[[Problem], bool] = lambda _problem: False


@dataclass(frozen=True, kw_only=True)
class OperatorFields:
    """The fields of an operator, see `Operator`. The whole is not checked."""

    name: str
    dims: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    reference: Callable[[Any, Call], Mapping[str, Any]]
    flops: Expr
    workload: tuple[Problem, ...] | Mapping[str, tuple[Problem, ...]]
    kernels: tuple[Kernel, ...]
    scalars: tuple[Scalar, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    epilogue: Epilogue | None = None
    fragments: Mapping[str, Fragment] = field(default_factory=dict)
    checks: tuple[Problem, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    values: Mapping[str, tuple[ExprLike, ...]] = field(default_factory=dict)
    regimes: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)
    expected: tuple[Expr, ...] = ()
    tolerance: Tolerance | None = None
    intermediates: str = ""
    legal: tuple[Expr, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    exact: IntegerSums | None = None
    deterministic: bool | None = None
    workspace_max: int | None = None
    documentation: str = ""
    fold: str = ""
    folder: str = field(default="", compare=False)
    weights: Mapping[str, float] = field(default_factory=dict, compare=False)
    left_out: frozenset[str] = field(default=frozenset(), compare=False)  # composed kernels with excluded stages
    _by_name: dict[str, Tensor] = field(init=False, repr=False, compare=False, default_factory=dict)
    _workloads: dict[str, tuple[Problem, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _concrete: dict[tuple[str, ...], Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    _facts: dict[str, dict[str, int]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _regimes: tuple[tuple[str, tuple[Expr, ...]], ...] | None = field(
        init=False, repr=False, compare=False, default=None
    )

    def __post_init__(self) -> None:
        check_identifier(self.name, "operator")
        self._check_tuples()
        object.__setattr__(self, "flops", as_expr(self.flops, f"operator {self.name!r}: flops"))
        self._check()
        self._by_name.update({t.name: t for t in self.tensors})
        workload = self.workload if isinstance(self.workload, Mapping) else {"": self.workload}
        self._workloads.update({f: tuple(self._without_defaults(p) for p in ps) for f, ps in workload.items()})
        object.__setattr__(self, "checks", tuple(self._without_defaults(p) for p in self.checks))

    def _check(self) -> None:
        """Raise for contradictions. Here nothing is checked."""

    def _check_tuples(self) -> None:
        where = f"operator {self.name!r}"
        for name in ("dims", "tensors", "kernels", "scalars", "attributes", "checks", "expected", "legal", "baselines"):
            check_several(getattr(self, name), f"{where}: {name}")
        for problems in self.workload.values() if isinstance(self.workload, Mapping) else [self.workload]:
            check_several(problems, f"{where}: workload")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that are read, in order. Those that are also written are among them."""
        return tuple(t for t in self.tensors if not t.output)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Tensors that are written, in order. Those that are also read are among them."""
        return tuple(t for t in self.tensors if t.written)

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """The choices of each attribute by its name."""
        return {a.name: a.choices for a in self.attributes}

    @property
    def arguments(self) -> list[str]:
        """The names of tensors, scalars and attributes, in this order."""
        tensors, scalars = (t.name for t in self.tensors), (s.name for s in self.scalars)
        return [*tensors, *scalars, *self.choices]

    @property
    def generics(self) -> tuple[Kernel, ...]:
        """The kernels that accept every legal call: one for each backend that has one."""
        return tuple(k for k in self.kernels if k.generic)

    def workload_for(self, family: str) -> tuple[Problem, ...]:
        """Problems worth tuning on a family of devices."""
        return self._workloads.get(family, self._workloads.get("", ()))

    def weight(self, problem: Problem) -> float:
        """The weight of a problem of the workload."""
        return self.weights.get(problem.id, 1.0)

    def weights_for(self, family: str) -> dict[str, float]:
        """The weights of a family's problems by id; empty if all are equal."""
        weights = {p.id: self.weight(p) for p in self.workload_for(family)}
        return weights if len(set(weights.values())) > 1 else {}

    def dtype_choices(self, kernel: Kernel) -> list[dict[str, str]]:
        """The legal dtypes for which a kernel has candidates, each as a dict of variable to dtype."""
        values = [kernel.dtypes.get(v, choices) for v, choices in self.dtypes.items()]
        every = (dict(zip(self.dtypes, row, strict=True)) for row in itertools.product(*values))
        facts = {f"dtype.{v}" for v in self.dtypes}
        legal = tuple(c for c in self.legal if c.facts() and c.facts() <= facts)
        return [chosen for chosen in every if all_of(legal, self._dtype_facts(chosen))]

    def _dtype_facts(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        return {f"dtype.{v}": self.dtypes[v].index(name) for v, name in dtypes.items()}

    def concrete(self: T, dtypes: Mapping[str, str]) -> T:
        """The operator with a dtype in place of each variable. A variable that is not given has its default."""
        chosen = {v: dtypes.get(v, choices[0]) for v, choices in self.dtypes.items()}
        key = tuple(chosen.values())
        if key not in self._concrete:
            self._concrete[key] = self._with_tensors(
                t.with_dtype(chosen[t.dtype_name]) if t.dtype_name in chosen else t for t in self.tensors
            )
        return cast(T, self._concrete[key])

    def in_folder(self: T, folder: str, tensors: Iterable[Tensor]) -> T:
        """The operator with its folder, and with what its tensors are now that their files are read.

        It is not checked again: that takes long for a large workload, and neither can make it wrong.
        """
        changed = self._with_tensors(tensors)
        object.__setattr__(changed, "folder", folder)
        return changed

    def _with_tensors(self: T, tensors: Iterable[Tensor]) -> T:
        changed, given = copy.copy(self), tuple(tensors)
        object.__setattr__(changed, "tensors", given)
        object.__setattr__(changed, "_by_name", {t.name: t for t in given})
        object.__setattr__(changed, "_concrete", {})
        object.__setattr__(changed, "_facts", {})
        return changed

    def dtype(self, problem: Problem, tensor: Tensor) -> DType:
        """The element type of a tensor on a problem."""
        choices = self.dtypes.get(tensor.dtype_name)
        return dtype(tensor.dtype_name if choices is None else problem.dtypes.get(tensor.dtype_name, choices[0]))

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name. Raises SpecError when there is none."""
        try:
            return self._by_name[name]
        except KeyError:
            raise SpecError(
                f"operator {self.name!r} has no tensor {name!r}", fix=did_you_mean(name, self._by_name)
            ) from None

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name. Raises SpecError when there is none."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise SpecError(
            f"operator {self.name!r} has no kernel {name!r}", fix=did_you_mean(name, [k.name for k in self.kernels])
        )

    def is_present(self, problem: Problem, tensor: Tensor) -> bool:
        """Whether the problem passes the tensor."""
        return not tensor.optional or tensor.name in problem.present

    def shape(self, problem: Problem, tensor: Tensor) -> tuple[int, ...]:
        """Extents of a tensor's axes."""
        return tuple([s.evaluate(problem.dims) for s in tensor.shape])

    def strides(self, problem: Problem, tensor: Tensor) -> tuple[int, ...]:
        """Strides of a tensor's axes, in elements."""
        if tensor.name in problem.strides:
            return problem.strides[tensor.name]
        shape = self.shape(problem, tensor)
        return row_major(shape, problem.order.get(tensor.name))

    def canonical_strides(self, problem: Problem, tensor: Tensor) -> tuple[int, ...]:
        """Strides of a tensor's axes as predicates see them. An absent tensor counts as row-major."""
        shape = self.shape(problem, tensor)
        given = problem.strides.get(tensor.name)
        return canonical_strides(shape, row_major(shape, problem.order.get(tensor.name)) if given is None else given)

    def facts(self, problem: Problem) -> dict[str, int]:
        """Everything that predicates may ask of a call, as dispatch sees it. An absent tensor counts as row-major."""
        facts = self._facts.get(problem.id)
        if facts is None:
            if len(self._facts) >= _MOST_FACTS:
                self._facts.clear()
            facts = self._facts[problem.id] = self._facts_anew(problem)
        return facts.copy()

    def fact_names(self) -> frozenset[str]:
        """The names of all facts of its calls."""
        tensors = (_facts_of(t.name, t.rank) for t in self.tensors)
        names = {name for present, alignment, axes in tensors for name in (present, alignment, *axes)}
        attributes, dtypes = (f"attribute.{a.name}" for a in self.attributes), (f"dtype.{v}" for v in self.dtypes)
        return frozenset(names).union(self.dims, attributes, dtypes)

    def _facts_anew(self, problem: Problem) -> dict[str, int]:
        facts = {d: problem.dims[d] for d in self.dims}  # a problem may list them in another order
        for tensor in self.tensors:
            present, alignment, axes = _facts_of(tensor.name, tensor.rank)
            facts[present] = int(self.is_present(problem, tensor))
            facts[alignment] = problem.alignment.get(tensor.name, DEFAULT_ALIGNMENT)
            facts.update(zip(axes, self.canonical_strides(problem, tensor), strict=True))
        for attribute in self.attributes:
            value = problem.attributes.get(attribute.name, attribute.choices[0])
            facts[f"attribute.{attribute.name}"] = attribute.choices.index(value)
        for variable, choices in self.dtypes.items():
            facts[f"dtype.{variable}"] = choices.index(problem.dtypes.get(variable, choices[0]))
        return facts

    def factor(self, tensor: Tensor) -> float:
        """How many times the yardstick's error an output of a floating dtype may be off."""
        tolerance = self.tolerance.get(tensor.name) if isinstance(self.tolerance, Mapping) else self.tolerance
        if isinstance(tolerance, (int, float)):
            return float(tolerance)
        return TOLERANCE_OF_8_BITS if tensor.dtype.saturates else DEFAULT_TOLERANCE

    def step(self, tensor: Tensor) -> OffBy | None:
        """By how much integers of an output may be off; None if they must be exact."""
        tolerance = self.tolerance.get(tensor.name) if isinstance(self.tolerance, Mapping) else self.tolerance
        return tolerance if isinstance(tolerance, OffBy) else None

    def rounds_to(self, problem: Problem) -> DType:
        """The dtype that intermediate results are rounded to in the yardstick of the tolerance."""
        if self.intermediates:
            return dtype(self.intermediates)
        return narrowest(self.dtype(problem, t) for t in self.tensors if self.is_present(problem, t))

    def roundings(self, *, declared: bool = True) -> list[str]:
        """The dtype that intermediate results are rounded to in the yardstick, for each choice of the dtype variables.

        Without `declared`, the dtype is what it would be without the operator's `intermediates`.
        """
        names = []
        for row in itertools.product(*self.dtypes.values()):
            chosen = dict(zip(self.dtypes, row, strict=True))
            names.append(narrowest(dtype(chosen.get(t.dtype_name, t.dtype_name)) for t in self.tensors).name)
        return [self.intermediates if declared and self.intermediates else name for name in names]

    def special(self, problem: Problem) -> Tensor | None:
        """The first input that NaN and infinities can be put into, if the problem has it."""
        for tensor in self.inputs:
            floating = self.dtype(problem, tensor).code in FLOATING
            if floating and not tensor.finite and isinstance(tensor.values, Generator):
                return tensor if self.is_present(problem, tensor) else None
        return None

    def without_epilogue(self, problem: Problem) -> Problem:
        """The problem without what the epilogue adds or applies; the problem itself if there is nothing of it."""
        steps = self.epilogue.steps if self.epilogue is not None else ()
        gone = {s.tensor for s in steps if isinstance(s, AddTensor)}.intersection(problem.present)
        applied = {s.attribute for s in steps if isinstance(s, Activate)}
        applied = {a.name for a in self.attributes if a.name in applied and a.choices[0] == "none"}
        if not gone and not applied.intersection(problem.attributes):
            return problem
        return msgspec.structs.replace(
            problem,
            present=tuple(t for t in problem.present if t not in gone),
            attributes={a: v for a, v in problem.attributes.items() if a not in applied},
            order={t: v for t, v in problem.order.items() if t not in gone},
            strides={t: v for t, v in problem.strides.items() if t not in gone},
            alignment={t: v for t, v in problem.alignment.items() if t not in gone},
        )

    def compulsory_bytes(self, problem: Problem, *, cold: bool = False) -> int:
        """Bytes of a call that must cross the memory bus: what is read and written of all present, or cold, tensors."""
        total = 0
        for tensor in (t for t in self.tensors if (t.cold or not cold) and self.is_present(problem, t)):
            count = math.prod(self.shape(problem, tensor)) * (2 if tensor.inout else 1)
            if tensor.read is not None:
                count = min(count, tensor.read.evaluate(self.facts(problem)))
            total += count * self.dtype(problem, tensor).itemsize
        return total

    def amount(self, problem: Problem) -> int:
        """FLOPs or compulsory bytes of a call, whichever are more; at least 1."""
        return max(self.flops.evaluate(self.facts(problem)), self.compulsory_bytes(problem), 1)

    def tensor_bytes(self, problem: Problem) -> int:
        """Bytes that the problem's tensors take, each from its first element to its last."""
        total = 0
        for tensor in (t for t in self.tensors if self.is_present(problem, t)):
            shape = self.shape(problem, tensor)
            reach = sum((n - 1) * abs(s) for n, s in zip(shape, self.strides(problem, tensor), strict=True))
            total += (reach + 1) * self.dtype(problem, tensor).itemsize if all(shape) else 0
        return total

    def _without_defaults(self, problem: Problem) -> Problem:
        """The problem without dtypes that are defaults, so that equal problems are equal data."""
        stated = {v: d for v, d in problem.dtypes.items() if d != self.dtypes[v][0]}
        return msgspec.structs.replace(problem, dtypes=stated) if stated != problem.dtypes else problem
