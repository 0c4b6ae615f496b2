"""What calls of an operator may be: how tensors bind dims, what may alias, combinations of facts, legal problems."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from aot_tune.expr.integer_expressions import EXTENT, Expr, all_of, as_expr, dim
from aot_tune.spec.dtypes import dtype
from aot_tune.spec.generators import ROWWISE, Drawn
from aot_tune.spec.kernel import Kernel, may_serve
from aot_tune.spec.names import check_among
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.problem import DEFAULT_ALIGNMENT, Problem
from aot_tune.spec.tensors import Tensor
from aot_tune.support.errors import SpecError, did_you_mean

_KINDS = ("present.", "attribute.", "dtype.")

_MOST = 2**63 - 1
_MOST_WAYS = 64


@dataclass(frozen=True)
class BoundDim:
    """The source of a dim: an axis of `tensor`, or the integer `scalar`.

    `value` computes the dim from the axis' extent, which is the fact `EXTENT`, and from dims that are bound before it.
    """

    tensor: str = ""
    axis: int = 0
    scalar: str = ""
    value: Expr = Expr("fact", value=EXTENT)  # noqa: RUF009  (nothing of an expression changes)

    @property
    def plain(self) -> bool:
        """Whether the dim is the extent or integer itself."""
        return self.value.op == "fact"

    def cpp(self, name: Callable[[str], str]) -> str:
        """The dim as C++, for arguments that are checked already. `name` prints other dims."""
        if self.scalar:
            return f"static_cast<int64_t>({self.scalar})"
        read = f"{self.tensor}->shape[{self.axis}]"
        return self.value.cpp(lambda fact: read if fact == EXTENT else name(fact))


def bound_dims(op: OperatorFields) -> dict[str, BoundDim]:
    """The source of each bound dim. A dim comes after those that it is solved from.

    Inputs that are always passed come first, then integers, then solved extents of inputs, and outputs last.
    """
    inputs = [t for t in op.tensors if not t.output and not t.optional]
    outputs = [t for t in op.tensors if t.output and not t.optional]
    bound: dict[str, BoundDim] = {}
    _read(bound, inputs)
    for scalar in op.scalars:
        if scalar.binds:
            bound.setdefault(scalar.binds, BoundDim(scalar=scalar.name))
    _solve(bound, inputs)
    _read(bound, outputs)
    _solve(bound, [*inputs, *outputs])
    plain = [name for name in op.dims if name in bound and bound[name].plain]
    solved = [name for name in bound if not bound[name].plain]
    return {name: bound[name] for name in (*plain, *solved)}


def dims_of_scalars(op: OperatorFields) -> dict[str, Expr]:
    """The integers that bind dims, by name. A Triton function that takes one of them may be passed the dim."""
    return {s.name: dim(s.binds) for s in op.scalars if s.binds}


def dims_beside_inputs(op: OperatorFields) -> tuple[str, ...]:
    """The dims that may be 0 though every input has elements."""
    seen = {f for t in op.tensors if not t.output and not t.optional for s in t.shape for f in _factors(s)}
    return tuple(name for name in op.dims if name not in seen)


def extents_exist(op: OperatorFields) -> tuple[Expr, ...]:
    """Conditions that extents such as `N - 1` are not negative, and that integers can hold the dims that they bind."""
    shapes = (s >= 0 for t in op.tensors for s in t.shape if _subtracts(s))
    integers = ((dim(s.binds), int(dtype(s.dtype_name).limits[1])) for s in op.scalars if s.binds)
    return (*shapes, *(name <= most for name, most in integers if most < _MOST))


def following_dims(op: OperatorFields) -> dict[str, tuple[Expr, ...]]:
    """The dims whose values are expressions of other dims, with all their values, each after those it follows from.

    Raises CycleError where values follow from each other.
    """
    values = {d: tuple(map(as_expr, ns)) for d, ns in op.values.items()}
    following = {d: es for d, es in values.items() if any(e.facts() for e in es)}
    order = TopologicalSorter({d: sorted({n for e in es for n in e.facts()}) for d, es in following.items()})
    return {d: following[d] for d in order.static_order() if d in following}


Way = Mapping[str, Expr]
"""How the extents of dims follow from those of others: one value for each of `following_dims`."""


def ways_to_follow(op: OperatorFields) -> list[Way]:
    """Every way in which extents may follow, legal or not. Without such dims, there is one, which is empty."""
    following = following_dims(op)
    every = itertools.islice(itertools.product(*following.values()), _MOST_WAYS)
    return [dict(zip(following, extents, strict=True)) for extents in every]


def followed(way: Way, dims: Mapping[str, int]) -> dict[str, int]:
    """The extents of all dims, with those that follow from others."""
    extents = dict(dims)
    for name, extent in way.items():
        extents[name] = extent.evaluate(extents)
    return extents


def outputs_to_pass(op: OperatorFields) -> dict[str, tuple[str, ...]]:
    """The outputs that a caller has to pass, each with the dims and dtype variables that only it can tell.

    A new output is allocated where an input lies. If no input is always passed, the first output must be passed.
    """
    told_by: dict[str, list[str]] = {}
    for name, bound in bound_dims(op).items():
        if bound.tensor and op.tensor(bound.tensor).output:
            told_by.setdefault(bound.tensor, []).append(name)
    required = [t for t in op.tensors if not t.optional]
    for variable in op.dtypes:
        tensors = [t for t in required if t.dtype_name == variable]
        if tensors and all(t.output for t in tensors):
            told_by.setdefault(tensors[0].name, []).append(variable)
    if all(t.output for t in required):
        told_by.setdefault(required[0].name, [])
    return {name: tuple(told) for name, told in told_by.items()}


def _read(bound: dict[str, BoundDim], tensors: Iterable[Tensor]) -> None:
    """Bind dims that are themselves the extent of an axis."""
    for tensor, axis, extent in _axes(tensors):
        if extent.op == "fact":
            bound.setdefault(str(extent.value), BoundDim(tensor=tensor, axis=axis))


def _solve(bound: dict[str, BoundDim], tensors: Iterable[Tensor]) -> None:
    """Bind dims that are the only unknown of an extent, as long as there are any."""
    axes = list(_axes(tensors))
    before = -1
    while before != len(bound):
        before = len(bound)
        for tensor, axis, extent in axes:
            unknown = [name for name in sorted(extent.facts()) if name not in bound]
            value = _solved(extent, unknown[0]) if len(unknown) == 1 else None
            if value is not None:
                bound[unknown[0]] = BoundDim(tensor=tensor, axis=axis, value=value)


def _solved(extent: Expr, name: str) -> Expr | None:
    """The dim `name` computed from an extent; None if sums and products do not determine it."""
    value = Expr("fact", value=EXTENT)
    while extent.op != "fact":
        if extent.op not in ("+", "-", "*"):
            return None
        left, right = extent.args
        if (name in left.facts()) == (name in right.facts()):
            return None
        inner, other = (left, right) if name in left.facts() else (right, left)
        if extent.op == "-":
            value = Expr("+", (value, other)) if inner is left else Expr("-", (other, value))
        else:
            value = Expr("-" if extent.op == "+" else "//", (value, other))
        extent = inner
    return value


def _axes(tensors: Iterable[Tensor]) -> Iterator[tuple[str, int, Expr]]:
    for tensor in tensors:
        for axis, extent in enumerate(tensor.shape):
            yield tensor.name, axis, extent


def _subtracts(extent: Expr) -> bool:
    return extent.op == "-" or any(map(_subtracts, extent.args))


def _factors(extent: Expr) -> Iterator[str]:
    """Dims that make an extent 0 when they are 0."""
    if extent.op == "fact":
        yield str(extent.value)
    elif extent.op == "*":
        for factor in extent.args:
            yield from _factors(factor)


def folds(op: OperatorFields, tensor: Tensor) -> bool:
    """Whether a tensor's first axis stands for leading dims."""
    return bool(op.fold) and tensor.shape[0].key() == dim(op.fold).key()


def check_fold(op: OperatorFields, where: str) -> None:
    """Raise SpecError for a `fold` that is not a dim, or that is not the first axis of any required input."""
    if not op.fold:
        return
    check_among(op.fold, op.dims, f"{where}: fold={op.fold!r} is not a dim of it")
    if not any(folds(op, t) for t in op.tensors if not t.output and not t.optional):
        raise SpecError(
            f"{where}: fold={op.fold!r}, but no input that is always passed has that dim as its first axis",
            why="such a tensor tells the leading dims of a call",
            fix="name another dim, or leave fold out",
        )


def check_aliases(op: OperatorFields, where: str) -> None:
    """Raise SpecError for an output that may alias a non-input, or an input of another shape or dtype."""
    tensors = {t.name: t for t in op.tensors}
    read_only = [t.name for t in op.tensors if not t.written]
    for tensor in op.tensors:
        for name in tensor.may_alias:
            if name not in read_only:
                fault = "is written too" if name in tensors else "is not one of its tensors"
                raise SpecError(
                    f"{where}: tensor {tensor.name!r} may alias {name!r}, which {fault}",
                    fix=did_you_mean(name, read_only),
                )
            other = tensors[name]
            same = [e.key() for e in tensor.shape] == [e.key() for e in other.shape]
            if not same or tensor.dtype_name != other.dtype_name:
                raise SpecError(
                    f"{where}: tensor {tensor.name!r} may alias {name!r}, which has another shape or dtype",
                    why="both use the same memory, element by element",
                    fix="declare both alike, or leave may_alias out",
                )


def check_layouts(op: OperatorFields, where: str) -> None:
    """Raise SpecError if an output's `layout_of` is not a required input, or has another number of axes."""
    tensors = {t.name: t for t in op.tensors}
    inputs = [t.name for t in op.tensors if not t.output and not t.optional]
    for tensor in (t for t in op.tensors if t.layout_of):
        check_among(
            tensor.layout_of,
            inputs,
            f"{where}: tensor {tensor.name!r} has the layout of {tensor.layout_of!r}, which is not an input that "
            "is always passed",
        )
        if tensors[tensor.layout_of].rank != tensor.rank:
            raise SpecError(
                f"{where}: tensor {tensor.name!r} has {tensor.rank} axes and the layout of {tensor.layout_of!r}, "
                f"which has {tensors[tensor.layout_of].rank} axes",
                fix="leave layout_of out",
            )


def aliases_on(op: OperatorFields, problem: Problem) -> Iterator[dict[str, str]]:
    """Which outputs can use the memory of which inputs on a problem. All such pairs come up in some of the results.

    Both tensors of a pair have the same layout, and no input is the memory of two outputs.
    """
    pairs = [(t.name, name) for t in op.tensors for name in t.may_alias if _are_alike(op, problem, t.name, name)]
    while pairs:
        chosen: dict[str, str] = {}
        for output, name in pairs:
            if output not in chosen and name not in chosen.values():
                chosen[output] = name
        yield chosen
        pairs = [(o, n) for o, n in pairs if chosen.get(o) != n]


def _are_alike(op: OperatorFields, problem: Problem, one: str, other: str) -> bool:
    first, second = op.tensor(one), op.tensor(other)
    return (
        op.is_present(problem, first)
        and op.is_present(problem, second)
        and op.strides(problem, first) == op.strides(problem, second)
        and problem.alignment.get(one) == problem.alignment.get(other)
    )


def is_taken(op: OperatorFields, problem: Problem, kernels: Iterable[Kernel], *, worthwhile: bool = False) -> bool:
    """Whether one of these kernels takes a problem; with `worthwhile`, whether it is also worth trying on it."""
    facts = op.facts(problem)
    dtypes = {v: problem.dtypes.get(v, choices[0]) for v, choices in op.dtypes.items()}
    return any(dtypes in op.dtype_choices(k) and may_serve(k, facts, worthwhile=worthwhile) for k in kernels)


def is_of_combination(expr: Expr) -> bool:
    """Whether an expression depends only on optional tensors, attributes and dtypes."""
    return all(fact.startswith(_KINDS) for fact in expr.facts())


def values_of_fact(op: OperatorFields, fact: str) -> Sequence[int]:
    """The possible values of such a fact: 0 before 1, and indices of choices in their order."""
    kind, _, name = fact.partition(".")
    if kind == "present":
        return (0, 1) if op.tensor(name).optional else (1,)
    if kind == "attribute":
        return range(len(op.choices[name]))
    return range(len(op.dtypes[name]))


def legal_combinations(
    op: OperatorFields, facts: Sequence[str], values: Sequence[Sequence[int]]
) -> Iterator[dict[str, int]]:
    """The combinations of values that facts may have, as far as `legal` restricts only them."""
    about = tuple(c for c in op.legal if c.facts() and c.facts() <= set(facts))
    for row in itertools.product(*values):
        call = dict(zip(facts, row, strict=True))
        if all_of(about, call):
            yield call


def is_empty(op: OperatorFields, problem: Problem) -> bool:
    """Whether no output has elements, so that there is nothing to compute."""
    present = [t for t in op.outputs if op.is_present(problem, t)]
    return not any(math.prod(op.shape(problem, t)) for t in present)


def check_work(op: OperatorFields, problem: Problem, where: str) -> None:
    """Raise SpecError for a problem on which there is nothing to compute. `where` names the list that holds it."""
    if is_empty(op, problem):
        raise SpecError(
            f"{where} lists problem '{problem.id}', on which there is nothing to compute",
            why="no output has elements there, and such a call returns at once",
            fix="leave it out",
        )


def check_call(op: OperatorFields, problem: Problem) -> None:
    """Check that a problem is a legal call, and all of it can be evaluated. Raises SpecError with the value."""
    check_problem(op, problem)
    _check_values_of(op, problem)


def _check_values_of(op: OperatorFields, problem: Problem) -> None:
    """Evaluate what tuning asks about a problem, in that order. Raises SpecError where that is not possible."""
    what = "a shape"
    try:
        facts = op.facts(problem)
        for condition in extents_exist(op):
            if not condition.evaluate(facts):
                raise SpecError(f"{condition.key()} does not hold", fix="give a larger dim, or leave the problem out")
        what = "legal"
        for condition in op.legal:
            if not condition.evaluate(facts):
                raise SpecError(f"{condition.key()} does not hold", fix="change the problem, or what is legal")
        what = "flops"
        op.flops.evaluate(facts)
        for name, conditions in op.regimes.items():
            what = f"regime {name!r}"
            all_of(conditions, facts)
        for kernel in op.kernels:
            what = f"kernel {kernel.name!r}: requires or worthwhile"
            may_serve(kernel, facts, worthwhile=True)
    except SpecError as error:
        raise SpecError(
            f"operator {op.name!r}: {what}: {error.what} on problem '{problem.id}'",
            fix=error.fix or "write maximum(..., 1) for a divisor that may be 0, or leave the problem out",
        ) from error


def check_problem(op: OperatorFields, problem: Problem) -> None:
    """Check that a problem states every dim, and nothing that the operator lacks. Raises SpecError."""
    where = f"operator {op.name!r}: problem '{problem.id}'"
    strange = "".join(f" in place of {n}" for n in problem.dims if n not in op.dims)
    for name in op.dims:
        if name not in problem.dims:
            raise SpecError(f"{where}: dim {name!r} is not bound", fix=f"state {name}=...{strange}")
    for name in problem.dims:
        check_among(name, op.dims, f"{where}: unknown dim {name!r}")
    for variable, name in problem.dtypes.items():
        check_among(
            name,
            op.dtypes.get(variable, ()),
            f"{where}: {variable}={name!r} is not a dtype of the operator",
            choices=op.dtypes.get(variable, op.dtypes),
        )
    _check_problem_tensors(op, problem, where)
    choices = op.choices
    for name, value in problem.attributes.items():
        check_among(name, choices, f"{where}: unknown attribute {name!r}")
        check_among(value, choices[name], f"{where}: attribute {name!r} cannot be {value!r}")


def _check_problem_tensors(op: OperatorFields, problem: Problem, where: str) -> None:
    tensors = {t.name: t for t in op.tensors}
    for name in (*problem.order, *problem.strides, *problem.present, *problem.alignment):
        check_among(name, tensors, f"{where}: unknown tensor {name!r}")
    for name in problem.present:
        if not tensors[name].optional:
            raise SpecError(f"{where}: {name!r} is always present", fix="list only optional tensors")
    for name, order in problem.order.items():
        if sorted(order) != list(range(tensors[name].rank)):
            raise SpecError(f"{where}: order {order} of {name!r} is not a permutation of its axes")
    for name, strides in problem.strides.items():
        if len(strides) != tensors[name].rank:
            raise SpecError(f"{where}: {name!r} has {tensors[name].rank} axes, {len(strides)} strides were given")
        _check_strides(tensors[name], strides, where)
    for name, alignment in problem.alignment.items():
        size = op.dtype(problem, tensors[name]).itemsize
        if alignment < size or alignment > DEFAULT_ALIGNMENT or alignment & (alignment - 1):
            raise SpecError(f"{where}: alignment {alignment} of {name!r} is not a power of two from {size} to 64")


def _check_strides(tensor: Tensor, strides: tuple[int, ...], where: str) -> None:
    """Refuse strides of 0 along axes whose elements are written, or drawn, and must be distinct."""
    if tensor.inout and 0 in strides:
        raise SpecError(
            f"{where}: {tensor.name!r} has a stride of 0",
            why="its elements share one place, so they cannot be read and written one by one",
            fix="give that axis another stride",
        )
    if isinstance(tensor.values, Drawn) and 0 in strides and not tensor.output:
        raise SpecError(
            f"{where}: {tensor.name!r} has stride 0 on an axis, and a function draws its values",
            why="the elements that the function draws would share one place",
            fix="give that axis another stride",
        )
    if isinstance(tensor.values, ROWWISE) and strides[-1] == 0 and not tensor.output:
        raise SpecError(
            f"{where}: {tensor.name!r} has stride 0 on its last axis",
            why=f"all elements of a row share one place, so they cannot be {type(tensor.values).__name__}",
            fix="give that axis another stride",
        )
