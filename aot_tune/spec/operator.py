"""An operator: what is computed, with all that is needed to call, verify, time and tune it, checked as a whole."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError

from aot_tune.expr.integer_expressions import Expr
from aot_tune.spec.calls import (
    bound_dims,
    check_aliases,
    check_call,
    check_fold,
    check_layouts,
    check_work,
    following_dims,
)
from aot_tune.spec.dtypes import DTYPES, DType, dtype
from aot_tune.spec.fragment_programs import check_fragments
from aot_tune.spec.fragments import Activate, AddTensor
from aot_tune.spec.generators import Drawn, Generator, IntegerSums, check_values
from aot_tune.spec.kernel import Kernel, check_guard_parameters
from aot_tune.spec.names import check_among, check_identifier, check_several
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.problem import Problem
from aot_tune.spec.regimes import MOST_REGIMES, OTHER
from aot_tune.spec.targets import refuse_device_facts
from aot_tune.spec.tensors import FLOATING, INTERMEDIATES, OffBy, Tensor
from aot_tune.support.errors import Mistakes, SpecError, did_you_mean

# Names that a library and its Python module have beside their operators, and suffixes of an operator's functions.
_THREADS = ("set_num_threads", "get_num_threads")
_TAKEN = ("last_error", "manifest", "preload", "explain", "is_tuned", "operators", "signatures", *_THREADS)
_ERRORS = ("Error", "ArgumentTypeError", "ArgumentValueError", "CallError")
_SUFFIXES = ("_workspace", "_explain", "_is_tuned", "_infer", "_xla_cpu", "_xla_cuda", "_xla_hip")


@dataclass(frozen=True, kw_only=True)
class Operator(OperatorFields):
    """An operator and its kernels. It is checked as a whole when it is made.

    Args:
        name: unique in a library. The C function is `<prefix>_<name>`.
        dims: names of the symbolic dims. Each is bound by the shape of a tensor that is always present, or by an
            integer.
        tensors: inputs and outputs in the order of the C arguments.
        scalars, attributes: further arguments, in order.
        reference: `reference(xp, call)` returns a dict of output name to array. It computes with array-API functions of
            `xp`, in the dtype of the arrays that it gets: float64 for the truth, the operator's own dtypes for the
            tolerance.
        flops: number of floating-point operations of a problem.
        epilogue: what `store_output` applies to one output.
        fragments: formulas that kernels apply by name, such as a change of attention scores.
        workload: problems worth tuning: a tuple, or one tuple for each family of devices (`cpu`, `cuda`).
        dtypes: dtype variables that tensors name, with their choices. The first choice is the default.
        checks: problems to verify, in addition to the workload and to derived odd problems.
        ranges: dim to the least and the largest extent that calls are expected to have. Without it, the range is from
            half the least to twice the largest extent of the workload. Surveys draw shapes from it.
        values: dim to the extents that callers have, such as widths of heads, in place of a range. An extent may be an
            expression of other dims: `{"NB": (1, N, ceildiv(N, 128))}`.
        regimes: name to conditions over facts of a call, such as `{"one row": (M == 1,), "many rows": (M > 1,)}`. A
            call is of the first regime whose conditions hold, or of "other". Each has as many surveyed shapes, and a
            decision of its own. Without regimes, they are implied by numbers that guards of kernels compare dims with.
        expected: further conditions that calls are expected to meet, such as `H % HK == 0`. Surveys draw only such
            shapes. Other calls work as well.
        tolerance: how many times the yardstick's error a result may be off, 4 by default. It is a number, `off_by` for
            integers, or a dict of output to one of them. The yardstick is the reference, computed as kernels of these
            dtypes do: products are accumulated in f32, and each intermediate result is rounded.
        intermediates: the dtype that intermediate results are rounded to in the yardstick, such as "f32". The default
            is the narrowest floating dtype among the tensors.
        baselines: what users would call otherwise.
        legal: conditions over dims, strides, alignments, presence, attributes and dtypes that every call must meet,
            such as `stride("x", 1) == 1`. Other calls get an error. All kernels may rely on the conditions, the generic
            ones too.
        exact: declares that results on small integers are exact in any order of summation. Candidates are verified so
            too.
        deterministic: whether equal calls must give equal bits. Then a candidate whose repeated runs differ is wrong.
            With False, they need not. Otherwise, only a winner of a race whose runs differ is wrong.
        workspace_max: bytes of workspace that a candidate may ask for, if that is less than AOT_TUNE_WORKSPACE_MAX.
        kernels: at least one kernel, and exactly one generic kernel for each backend that has generic variants.
        documentation: what it computes, for `help` and the C header.
        fold: a dim that stands for any number of leading dims in Python. With `fold="R"`, a call takes an x of shape
            [2, 3, D], or [D], where (R, D) is declared, and makes outputs alike. This holds for all tensors that have
            the dim as their first axis.
        folder: the folder with the files of `from_file`. It is set when the operator is loaded.
        weights: how much each problem of the workload counts, by id, 1 by default. It is set from AOT_TUNE_WORKLOAD.
    """

    def _check(self) -> None:
        _check_operator(self)


def _check_operator(op: OperatorFields) -> None:
    """Check one operator. Raises one SpecError for everything that is wrong, with values and remedies."""
    where = f"operator {op.name!r}"
    mistakes = Mistakes()
    for check in (
        _check_names,
        _check_dtypes,
        _check_legal,
        _check_dims,
        _check_ranges,
        _check_values,
        _check_regimes,
        check_aliases,
        check_layouts,
        check_fold,
        _check_inputs,
        _check_exact,
        _check_epilogue,
        check_fragments,
        _check_kernels,
    ):
        with mistakes.gather():
            check(op, where)
    with mistakes.gather():
        _check_tolerance(op, where)
    with mistakes.gather():
        if not callable(op.reference):
            raise SpecError(
                f"{where}: reference {str(op.reference)[:80]!r} is not a function",
                fix="write def reference(xp, call): ...",
            )
    if not mistakes:  # problems are evaluated with all of the above
        _check_workload(op, where)
    mistakes.tell()


def _check_workload(op: OperatorFields, where: str) -> None:
    by_family = op.workload if isinstance(op.workload, Mapping) else {"": op.workload}
    if not any(by_family.values()):
        raise SpecError(f"{where}: its workload is empty", fix="list at least one problem worth tuning")
    for family, problems in by_family.items():
        _check_problems(op, f"workload for {family}" if family else "workload", problems)
    _check_problems(op, "checks", op.checks)


def check_unique_operators(names: Iterable[str]) -> None:
    """Raise SpecError if a library would have two operators, or two functions, with the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SpecError(
                f"operator {name!r} is declared twice",
                why="an operator's name is its C function",
                fix="rename one, or leave one of the two folders out",
            )
        seen.add(name)
    for name in sorted(seen):
        for suffix in _SUFFIXES:
            if name + suffix in seen:
                raise SpecError(
                    f"operator {name + suffix!r} has the name of a function of operator {name!r}", fix="rename one"
                )


def _check_names(op: OperatorFields, where: str) -> None:
    if op.name in _TAKEN + _ERRORS:
        raise SpecError(
            f"{where} has a reserved name",
            why="every library uses that name for something else",
            fix="choose another name",
        )
    seen: dict[str, str] = {}
    arguments = [(t.name, "tensor") for t in op.tensors]
    arguments += [(s.name, "scalar") for s in op.scalars] + [(a.name, "attribute") for a in op.attributes]
    for name, kind in arguments:
        if name in seen:
            raise SpecError(f"{where}: {kind} {name!r} has the name of a {seen[name]}", fix="rename one")
        seen[name] = kind
    constants: dict[str, str] = {}
    for attribute in op.attributes:
        for choice in attribute.choices:
            constant, text = f"{attribute.name}_{choice}".upper(), f"{attribute.name}={choice}"
            if constant in constants:
                raise SpecError(
                    f"{where}: {text!r} and {constants[constant]!r} have the same name in C, which ends in _{constant}",
                    fix="rename a choice",
                )
            constants[constant] = text
    if not any(t.written and not t.optional for t in op.tensors):
        raise SpecError(
            f"{where} has no output that is always written", fix="declare Tensor(..., output=True), or inout=True"
        )


def _check_dtypes(op: OperatorFields, where: str) -> None:
    for variable, choices in op.dtypes.items():
        check_identifier(variable, f"{where}: dtype variable")
        if variable in op.dims or not choices or len(set(choices)) != len(choices):
            raise SpecError(
                f"{where}: dtype variable {variable!r} is a dim's name, has no choices or lists one twice: {choices}",
                fix='write dtypes={"T": ("f32", "bf16")}',
            )
        for choice in choices:
            dtype(choice, f"{where}: dtype variable {variable!r}")
        bound = [t for t in op.tensors if t.dtype_name == variable and not t.optional]
        if not bound:
            raise SpecError(
                f"{where}: dtype variable {variable!r} is bound by no tensor",
                why="a call learns it from an input or output that is always passed",
                fix=f"give one the dtype {variable}, or remove the variable",
            )
    for tensor in op.tensors:
        if tensor.dtype_name not in DTYPES and tensor.dtype_name not in op.dtypes:
            raise SpecError(
                f"{where}: tensor {tensor.name!r}: unknown dtype {tensor.dtype_name!r}",
                fix=did_you_mean(tensor.dtype_name, [*DTYPES, *op.dtypes]),
            )
    for kernel in op.kernels:
        for variable, choices in kernel.dtypes.items():
            for choice in choices:
                check_among(
                    choice,
                    op.dtypes.get(variable, ()),
                    f"{where}: kernel {kernel.name!r}: {variable}={choice!r} is not a dtype of the operator",
                    choices=op.dtypes.get(variable, op.dtypes),
                )


def _check_dims(op: OperatorFields, where: str) -> None:
    for name in op.dims:
        check_identifier(name, f"{where}: dim")
    bound = bound_dims(op)
    for name in op.dims:
        if name not in bound:
            raise SpecError(
                f"{where}: dim {name!r} is bound by no tensor and no scalar",
                why="a call learns each dim from the shape of a tensor that is always passed, or from an integer. "
                f"It can be computed from an extent of {name} * 2 or {name} + 1, but not from {name} // 2",
                fix=f'give a tensor an axis of extent {name}, declare Scalar("n", "i64", binds="{name}"), or remove it',
            )
    _check_scalars(op, where)
    for tensor in op.tensors:
        for extent in tensor.shape:
            _check_facts(extent, op.dims, f"{where}: shape of tensor {tensor.name!r}")
        if tensor.below is not None:
            _check_facts(tensor.below, op.dims, f"{where}: below of tensor {tensor.name!r}")
    stated = [(op.flops, "flops"), *((e, "legal") for e in op.legal), *((e, "expected") for e in op.expected)]
    stated += [(t.read, f"what is read of tensor {t.name!r}") for t in op.tensors if t.read is not None]
    for expr, what in stated:
        _check_facts(expr, op.fact_names(), f"{where}: {what}")


def _check_scalars(op: OperatorFields, where: str) -> None:
    """Check integers that bind dims: the dims exist, and each is bound once."""
    binding: dict[str, str] = {}
    for scalar in (s for s in op.scalars if s.binds):
        check_among(scalar.binds, op.dims, f"{where}: scalar {scalar.name!r} binds the unknown dim {scalar.binds!r}")
        if scalar.binds in binding:
            raise SpecError(
                f"{where}: scalars {binding[scalar.binds]!r} and {scalar.name!r} bind the dim {scalar.binds!r}",
                fix="leave `binds` out of one",
            )
        binding[scalar.binds] = scalar.name


def _check_inputs(op: OperatorFields, where: str) -> None:
    before: list[str] = []
    for tensor in op.inputs:
        for name in (isinstance(tensor.values, Drawn) and tensor.values.reads) or ():
            check_among(name, before, f"{where}: values of tensor {tensor.name!r}: no input before it is {name!r}")
        before.append(tensor.name)
        for name in op.dtypes.get(tensor.dtype_name, (tensor.dtype_name,)):
            what = f"{where}: values of tensor {tensor.name!r}"
            check_values(tensor.values, dtype(name), op.dims, what)


def _check_exact(op: OperatorFields, where: str) -> None:
    if op.deterministic is not None and not isinstance(op.deterministic, bool):
        raise SpecError(f"{where}: deterministic {op.deterministic!r} is not a boolean", fix="write True or False")
    most = op.workspace_max
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise SpecError(f"{where}: workspace_max {most!r} is not a number of bytes", fix="write for example 64 << 20")
    if op.exact is None:
        return
    if not isinstance(op.exact, IntegerSums) or not all(isinstance(e, Expr) for e in op.exact.requires):
        raise SpecError(
            f"{where}: exact is not an IntegerSums, or its `requires` are not expressions",
            fix='write exact=IntegerSums(K, thinned="b"), with requires=(attribute("activation") == 0,)',
        )
    thinned = next((t for t in op.inputs if t.name == op.exact.thinned), None)
    if thinned is None or not _may_be_thinned(thinned):
        raise SpecError(
            f"{where}: exact has the `thinned` input {op.exact.thinned!r}, which is not a required input "
            "with normal or uniform values",
            why="if a sum has too many terms, elements of this factor are set to 0",
            fix=did_you_mean(op.exact.thinned, [t.name for t in op.inputs if _may_be_thinned(t)]),
        )
    _check_facts(op.exact.terms, op.dims, f"{where}: exact: terms")
    for expr in op.exact.requires:
        _check_facts(expr, op.fact_names(), f"{where}: exact: requires")


def _may_be_thinned(tensor: Tensor) -> bool:
    return not tensor.optional and isinstance(tensor.values, Generator)


def _check_facts(expr: Expr, names: Collection[str], where: str) -> None:
    refuse_device_facts(expr.facts().difference(names), where)
    for fact in sorted(expr.facts()):
        check_among(fact, names, f"{where} uses {fact!r}, which is not bound")


def _check_epilogue(op: OperatorFields, where: str) -> None:
    if op.epilogue is None:
        return
    tensors = {t.name: t for t in op.tensors}
    output = tensors.get(op.epilogue.output)
    if output is None or not output.written:
        raise SpecError(f"{where}: its epilogue writes {op.epilogue.output!r}, which is not an output")
    for step in op.epilogue.steps:
        if isinstance(step, AddTensor):
            added = tensors.get(step.tensor)
            if added is None or added.written:
                raise SpecError(
                    f"{where}: its epilogue adds {step.tensor!r}, which is not an input",
                    fix=did_you_mean(step.tensor, [t.name for t in op.tensors if not t.written]),
                )
            if len(step.axes) != added.rank or any(a >= output.rank for a in step.axes):
                raise SpecError(f"{where}: epilogue axes {step.axes} do not fit tensor {step.tensor!r}")
        elif isinstance(step, Activate) and step.attribute not in {a.name for a in op.attributes}:
            raise SpecError(
                f"{where}: its epilogue uses the unknown attribute {step.attribute!r}",
                fix=did_you_mean(step.attribute, [a.name for a in op.attributes]),
            )


def _check_kernels(op: OperatorFields, where: str) -> None:
    names = [k.name for k in op.kernels]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{where} declares kernel {name!r} twice", fix="rename one")
    generic = [k for k in op.kernels if k.generic]
    if not generic or len({k.backend for k in generic}) != len(generic):
        raise SpecError(
            f"{where} has {len(generic)} generic kernels: {[k.name for k in generic]}",
            why="one variant must serve every legal call",
            fix="mark exactly one kernel of each backend with generic=True",
        )
    mistakes = Mistakes()
    for kernel in op.kernels:
        with mistakes.gather():
            _check_kernel(op, kernel, where)
    mistakes.tell()


def _check_kernel(op: OperatorFields, kernel: Kernel, where: str) -> None:
    facts = op.fact_names()
    for expr in (*kernel.requires, *kernel.worthwhile):
        if not isinstance(expr, Expr):
            raise SpecError(
                f"{where}: kernel {kernel.name!r}: {str(expr)[:80]!r} in requires or worthwhile is not an expression",
                fix='compare facts of the call, such as stride("x", 1) == 1',
            )
        parameters = {fact for fact in expr.facts() if fact.startswith("parameter.")}  # these are checked below
        _check_facts(expr, facts | parameters, f"{where}: kernel {kernel.name!r}")
    if kernel.triton is None or kernel.parameters:  # otherwise its function has the configs
        check_guard_parameters(kernel)
    if "epilogue" in kernel.stages and op.epilogue is None:
        raise SpecError(f"{where} has no epilogue for a stage of kernel {kernel.name!r}", fix="declare epilogue=")
    if kernel.scratch is not None:
        sizes = {*op.dims, *(f"parameter.{p.name}" for p in kernel.parameters)}
        _check_facts(kernel.scratch, sizes, f"{where}: kernel {kernel.name!r}: scratch")
    for pinned in kernel.pins.values():
        for name in pinned:
            check_among(name, op.dims, f"{where}: kernel {kernel.name!r} pins the unknown dim {name!r}")
    for parameter in kernel.parameters:
        if parameter.name in op.arguments:
            raise SpecError(
                f"{where}: kernel {kernel.name!r}: parameter {parameter.name!r} has the name of an argument",
                fix="rename the parameter; capitals are usual",
            )


def _check_problems(op: OperatorFields, listed: str, problems: Sequence[Problem]) -> None:
    """Check the problems of a list, one by one and together, and what flops and kernels need to know of them."""
    where = f"operator {op.name!r}: its {listed}"
    seen: list[Problem] = []
    mistakes = Mistakes()
    for problem in problems:
        with mistakes.gather():
            if not isinstance(problem, Problem):
                raise SpecError(
                    f"{where} holds {str(problem)[:80]!r}, not a problem", fix="write problem(DIM=..., ...)"
                )
            if problem in seen:
                raise SpecError(f"{where} lists problem '{problem.id}' twice", fix="remove one")
            seen.append(problem)
            check_call(op, problem)
            if listed.startswith("workload"):
                check_work(op, problem, where)
    mistakes.tell()


def _check_tolerance(op: OperatorFields, where: str) -> None:
    """Check tolerance, intermediates, and finite inputs. Raises SpecError, also for what has no effect."""
    given = op.tolerance
    if isinstance(given, Mapping):
        names = {t.name for t in op.outputs}
        for name, tolerance in given.items():
            check_among(name, names, f"{where}: tolerance names {name!r}, which is not an output")
            _check_one(op, f"{where}: tolerance of {name!r}", tolerance, [t for t in op.outputs if t.name == name])
    elif given is not None:
        _check_one(op, f"{where}: tolerance", given, list(op.outputs))
    _check_intermediates(op, where)
    for tensor in op.tensors:
        if tensor.finite and (tensor.output or not _are_floating(op, tensor)):
            raise SpecError(
                f"{where}: finite=True of tensor {tensor.name!r} has no effect",
                why="NaN and infinities are put only into floating-point inputs",
                fix="leave it out",
            )


def _check_one(op: OperatorFields, where: str, given: object, outputs: list[Tensor]) -> None:
    if isinstance(given, OffBy):
        if not any(any(d.code not in FLOATING for d in _choices(op, t)) for t in outputs):
            raise SpecError(
                f"{where}: off_by has no effect",
                why="it is for integers, and no output here is of an integer dtype",
                fix="give a number: how many times the error of the yardstick a result may be off",
            )
        return
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
        raise SpecError(
            f"{where} {given!r} is not a positive number",
            fix="leave it out for 4.0, or give off_by(1) where it is for integers",
        )
    if not any(_are_floating(op, t) for t in outputs):
        raise SpecError(
            f"{where} {given!r} has no effect",
            why="integers are compared as they are, and no output here is of a floating dtype",
            fix="leave it out, or give off_by(1, share=0.01)",
        )


def _check_intermediates(op: OperatorFields, where: str) -> None:
    if not op.intermediates:
        return
    if op.intermediates not in INTERMEDIATES:
        raise SpecError(
            f"{where}: intermediates cannot be {op.intermediates!r}",
            fix=did_you_mean(str(op.intermediates), INTERMEDIATES) or f"use one of {', '.join(INTERMEDIATES)}",
        )
    others = op.roundings(declared=False)
    if set(others) == {op.intermediates} or not any(_are_floating(op, t) for t in op.outputs):
        raise SpecError(
            f"{where}: intermediates={op.intermediates!r} has no effect",
            why=f"{op.intermediates} is the narrowest floating dtype of its tensors, or no output is floating",
            fix="leave it out",
        )


def _choices(op: OperatorFields, tensor: Tensor) -> list[DType]:
    return [dtype(n) for n in op.dtypes.get(tensor.dtype_name, (tensor.dtype_name,))]


def _are_floating(op: OperatorFields, tensor: Tensor) -> bool:
    return any(d.code in FLOATING for d in _choices(op, tensor))


def _check_regimes(op: OperatorFields, where: str) -> None:
    if len(op.regimes) > MOST_REGIMES:
        raise SpecError(
            f"{where} has {len(op.regimes)} regimes, at most {MOST_REGIMES} are possible",
            why="each has surveyed shapes and a decision of its own",
            fix="leave out those in which the same variants are the best",
        )
    for name, conditions in op.regimes.items():
        what = f"{where}: regime {str(name)!r}"
        if not isinstance(name, str) or not name or not name.isprintable() or '"' in name or name == OTHER:
            why = "a name is one line without quotes" if name != OTHER else "calls of no regime have this name"
            raise SpecError(f"{what} has no name of its own", why=why, fix='write regimes={"one row": (M == 1,), ...}')
        check_several(conditions, what)
        if not conditions or not all(isinstance(c, Expr) for c in conditions):
            raise SpecError(
                f"{what} has no conditions, or something else among them: {str(conditions)[:80]}",
                why=f"calls that meet the conditions of no regime are of the regime {OTHER!r}",
                fix="compare facts of the call, as in (M == 1,) or (M > 1, M <= 32)",
            )
        for condition in conditions:
            _check_facts(condition, op.fact_names(), what)


def _check_values(op: OperatorFields, where: str) -> None:
    for name, extents in op.values.items():
        check_among(name, op.dims, f"{where}: values name the unknown dim {name!r}")
        if name in op.ranges:
            raise SpecError(
                f"{where}: {name!r} has both a range and values",
                why="a survey draws the extents of a dim from one of them",
                fix="leave one out: values where callers have few extents, a range where they may have any",
            )
        check_several(extents, f"{where}: the values of {name!r}")
        texts = {n.key() if isinstance(n, Expr) else repr(n) for n in extents}
        whole = all(n.facts() if isinstance(n, Expr) else type(n) is int and n >= 1 for n in extents)
        if not extents or len(texts) < len(extents) or not whole:
            raise SpecError(
                f"{where}: the values of {name!r} are {tuple(extents)!r}",
                fix="give different whole numbers from 1 on, such as (64, 96, 128), or expressions of dims",
            )
        for extent in extents:
            if isinstance(extent, Expr):
                _check_facts(extent, op.dims, f"{where}: the values of {name!r}")
    try:
        following_dims(op)
    except CycleError as circle:
        raise SpecError(
            f"{where}: the values of dims follow from each other in a circle: {' from '.join(circle.args[1])}",
            fix="state one of them by a range, or by numbers",
        ) from None


def _check_ranges(op: OperatorFields, where: str) -> None:
    """Check that ranges and tiles are of existing dims. Raises SpecError naming the dim, or the invalid range."""
    for name, between in op.ranges.items():
        check_among(name, op.dims, f"{where}: ranges name the unknown dim {name!r}")
        if len(between) != 2 or not all(isinstance(n, int) for n in between) or not 1 <= between[0] <= between[1]:
            raise SpecError(f"{where}: the range of {name!r} is {between!r}", fix="give the least and largest extent")
    for kernel in op.kernels:
        for name in (*(() if callable(kernel.tile) else kernel.tile), *kernel.cluster):
            check_among(
                name, op.dims, f"{where}: the tile or cluster of kernel {kernel.name!r} has the unknown dim {name!r}"
            )


def _check_legal(op: OperatorFields, where: str) -> None:
    """Check conditions of `legal` and `expected`, and that kernels serve legal dtypes. Raises SpecError."""
    for expr, what in [*((e, "legal") for e in op.legal), *((e, "expected") for e in op.expected)]:
        if not isinstance(expr, Expr):
            raise SpecError(
                f"{where}: {what} holds {str(expr)[:80]!r}, which is not a condition",
                why="it has one value in all calls" if isinstance(expr, (bool, int)) else "",
                fix='compare facts of the call, as in stride("x", 1) == 1 or attribute("causal") == 0',
            )
    for kernel in op.kernels:
        served = all(set(chosen) <= set(op.dtypes.get(v, ())) for v, chosen in kernel.dtypes.items())
        if served and not op.dtype_choices(kernel):
            conditions = " and ".join(c.key() for c in op.legal)
            raise SpecError(
                f"{where}: kernel {kernel.name!r} serves no legal dtypes: {conditions}",
                fix="give it other dtypes, or change what is legal",
            )
