"""Random legal calls of operators, from what they declare, and their results by the operators' own references."""

import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from drawn_tensors import Placed, numbers, place, split, strides_of

from aot_tune.bench.host.odd_problems import legal_problem
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.comparison import compare
from aot_tune.bench.worker.inputs import draw as draw_values
from aot_tune.bench.worker.inputs import layout
from aot_tune.bench.worker.reference_results import EXACT, Bounds, run_reference
from aot_tune.bench.worker.stored_elements import limits_of, stored_as
from aot_tune.expr.integer_expressions import all_of
from aot_tune.spec import Drawn, Operator, Problem, Tensor, problem
from aot_tune.spec.calls import followed, following_dims, outputs_to_pass, ways_to_follow
from aot_tune.spec.generators import ROWWISE

_SIZES = (1, 1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 100)
_FEW = 3
"""Of more dims, most are short."""
_SHORT, _LONG = 8, (33, 64, 80, 130, 300)
"""So many of the sizes are short; a dim may also be long."""
_MOST_ELEMENTS, _MOST_FLOPS = 1 << 17, 1 << 24
_EMPTY = 0.03
_NEAR = {"f32": (2e-5, 2e-5), "bf16": (2**-7.5, 2**-8), "f16": (2**-10.5, 2**-11), "f8e4m3": (2**-4, 2**-20)}
_TF32 = (2**-10, 2**-10)


@dataclass
class DrawnCall:
    """A legal call: what is passed by name, where it lies, and what has to come out.

    `given` has inputs, outputs that are passed, True for optional ones that are asked for, scalars and attributes.
    `lead` are the leading dims, where these are not the one axis.
    """

    operator: Operator
    problem: Problem
    given: dict[str, Any]
    placed: dict[str, Placed]
    lead: tuple[int, ...] | None
    scalars: dict[str, Any]

    @property
    def text(self) -> str:
        told = [f"{n} {_told(v)}" for n, v in self.given.items() if v is not None]
        return f"{self.operator.name}({', '.join(told)})"

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs by position up to the last that is there, and the rest by name."""
        inputs = sorted((t for t in self.operator.inputs), key=lambda t: t.optional)
        names = [t.name for t in inputs]
        while names and self.given.get(names[-1]) is None:
            names.pop()
        return tuple(self.given.get(n) for n in names), {k: v for k, v in self.given.items() if k not in names}

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape that its caller sees of a tensor."""
        shape = self.operator.shape(self.problem, tensor)
        folds = self.lead is not None and folded(self.operator, tensor)
        return (*(self.lead or ()), *shape[1:]) if folds else shape

    def truth(self) -> dict[str, Any]:
        """Outputs in float64, with the leading dims of the call."""
        operator = self.operator.concrete(self.problem.dtypes)
        shapes = {t.name: self.shape(t) for t in operator.outputs if operator.is_present(self.problem, t)}
        if all(0 in shape for shape in shapes.values()):  # of which references need not be defined
            return {name: np.empty(shape) for name, shape in shapes.items()}
        arrays = {}
        for tensor in operator.inputs:
            if tensor.name in self.placed:
                values = self.placed[tensor.name].values
                arrays[tensor.name] = values.reshape(operator.shape(self.problem, tensor))
        check = Check(problem=self.problem, scalars=self.scalars)
        with np.errstate(all="ignore"):
            found = run_reference(operator, check, arrays, np, wide=True)
        return {name: value.reshape(shapes[name]) for name, value in found.items()}


def _told(value: Any) -> str:
    if not hasattr(value, "shape"):
        return repr(value)
    strides = value.stride() if isinstance(value, torch.Tensor) else value.strides
    return f"{type(value).__module__}:{value.dtype}{tuple(value.shape)}/{tuple(strides)}"


def folded(operator: Operator, tensor: Tensor) -> bool:
    """Whether a tensor's first axis stands for leading dims."""
    return bool(operator.fold) and bool(tensor.shape) and tensor.shape[0].key() == operator.fold


def draw_problem(operator: Operator, draw: random.Random, **more: Any) -> Problem:
    """Legal dims, some of them 0, and legal dtypes; `more` is what else the problem says."""
    every, following = ways_to_follow(operator), following_dims(operator)
    extents = [d for d in operator.dims if all(s.binds != d for s in operator.scalars)]
    sizes = _SIZES if len(operator.dims) - len(following) <= _FEW else _SIZES[:_SHORT]
    while True:
        dims = {}
        for name in operator.dims:
            usual = operator.values.get(name, ()) if name not in following else ()
            among = usual if usual and draw.random() < 0.3 else sizes
            dims[name] = draw.choice(_LONG if draw.random() < 0.15 else among)
        if draw.random() < _EMPTY:
            dims[draw.choice(extents)] = 0
        about_dims = [c for c in operator.legal if c.facts() <= set(dims)]
        ways = [w for w in every if all_of(about_dims, followed(w, dims))] or every
        way = draw.choice(ways) if draw.random() < 0.8 else {}
        dtypes = {v: draw.choice(choices) for v, choices in operator.dtypes.items()}
        found = legal_problem(operator, way, problem(dtypes=dtypes, **more, **followed(way, dims)))
        if found is None or not all_of(operator.legal, operator.facts(found)):
            continue
        elements = sum(math.prod(operator.shape(found, t)) for t in operator.tensors)
        if elements <= _MOST_ELEMENTS and operator.flops.evaluate(operator.facts(found)) <= _MOST_FLOPS:
            return found


def draw_call(operator: Operator, draw: random.Random, *, frameworks: Sequence[str], device: str = "cpu") -> DrawnCall:
    """A legal call; its tensors are of one of the frameworks, or of several."""
    attributes = {a.name: draw.choice(a.choices) for a in operator.attributes if draw.random() < 0.6}
    inputs = [t.name for t in operator.inputs if t.optional and draw.random() < 0.5]
    asked = [t.name for t in operator.tensors if t.output and t.optional and draw.random() < 0.5]
    one = draw_problem(operator, draw, present=[*inputs, *asked], attributes=attributes)
    lead = split(one.dims[operator.fold], draw) if operator.fold and draw.random() < 0.6 else None
    narrow = not all(operator.dtype(one, t).numpy for t in operator.tensors)
    mixed = not narrow and draw.random() < 0.2
    usual = draw.choice([f for f in frameworks if f == "torch" or not narrow] or ["torch"])
    call = DrawnCall(operator, one, {}, {}, lead, _scalars(operator, one, draw))
    passed, to_pass = {}, outputs_to_pass(operator)
    for tensor in operator.tensors:
        if not operator.is_present(one, tensor):
            continue
        if not tensor.output or tensor.name in to_pass or draw.random() < 0.5:
            passed[tensor.name] = draw.choice(frameworks) if mixed else usual
        elif tensor.optional:
            call.given[tensor.name] = True
    _place(call, passed, draw, device)
    call.given |= call.scalars | attributes
    _alias(call, draw)
    return call


def _scalars(operator: Operator, one: Problem, draw: random.Random) -> dict[str, Any]:
    """The scalars that are passed: those that must be, and some others."""
    passed: dict[str, Any] = {}
    for scalar in operator.scalars:
        values = [v for v in (scalar.sample, scalar.another, scalar.inexact) if v is not None]
        value = one.dims[scalar.binds] if scalar.binds else draw.choice(values)
        if draw.random() < 0.6 or scalar.default is None or (scalar.binds and value != scalar.default):
            passed[scalar.name] = value
    return passed


def _place(call: DrawnCall, frameworks: Mapping[str, str], draw: random.Random, device: str) -> None:
    """Make the tensors that are passed, each of a framework, with the values that the operator declares."""
    operator = call.operator
    tensors = [operator.tensor(name) for name in frameworks]
    strides = {t.name: _strides(call, t, draw, frameworks[t.name]) for t in tensors}
    check = Check(problem=msgspec.structs.replace(call.problem, strides=strides), scalars=call.scalars)
    seed = draw.getrandbits(32)
    for tensor in tensors:
        dtype, strided, values = operator.dtype(call.problem, tensor), layout(operator, check, tensor), None
        if not tensor.output:
            drawn = draw_values(operator, check, tensor, strided.extent(), seed)
            if tensor.below is not None and os.environ.get("AOT_TUNE_CHECK"):
                drawn = drawn.clip(0, tensor.below.evaluate(call.problem.dims) - 1)
            values = np.resize(stored_as(dtype, drawn), strided.extent())
        lead = call.lead if folded(operator, tensor) else None
        shift = draw.choice((0, 0, 0, 1, 3, 16 // dtype.itemsize)) * dtype.itemsize
        made = place(
            strided, lead, getattr(torch, dtype.torch), values,
            shift=shift, framework=frameworks[tensor.name], device=device,
        )  # fmt: skip
        call.placed[tensor.name], call.given[tensor.name] = made, made.tensor


def _strides(call: DrawnCall, tensor: Tensor, draw: random.Random, framework: str) -> tuple[int, ...]:
    """Strides that a call may have: no elements share memory that are written, or drawn by rows."""
    shape = call.operator.shape(call.problem, tensor)
    first = call.lead is not None and folded(call.operator, tensor)  # leading dims must stay one by their strides
    shared = not tensor.written and not isinstance(tensor.values, (*ROWWISE, Drawn))
    return strides_of(shape, draw, shared=shared, backward=range(first, len(shape)) if framework == "numpy" else ())


def _alias(call: DrawnCall, draw: random.Random) -> None:
    """Let some outputs lie where an input does, if the operator takes that and no two elements are one."""
    for tensor in call.operator.tensors:
        names = [n for n in tensor.may_alias if n in call.placed and distinct(call.placed[n].view)]
        if tensor.name not in call.placed or not names or draw.random() < 0.6:
            continue
        name = draw.choice(names)
        if all(call.placed[name] is not other for n, other in call.placed.items() if n != name):
            call.placed[tensor.name] = call.placed[name]
            call.given[tensor.name] = call.given[name]


def distinct(view: torch.Tensor) -> bool:
    """Whether no two elements share memory; never for what has strides of 0."""
    return all(s > 0 for n, s in zip(view.shape, view.stride(), strict=True) if n > 1)


def near(call: DrawnCall, name: str, got: Any, want: Any) -> str:
    """What is wrong with an output; empty when nothing is."""
    operator = call.operator.concrete(call.problem.dtypes)
    dtype = operator.tensor(name).dtype
    framework = "torch" if isinstance(got, torch.Tensor) else "numpy"
    if str(got.dtype).removeprefix("torch.") != dtype.torch:
        return f"{name} is {got.dtype} of {framework}, wanted {dtype.name}"
    if tuple(got.shape) != want.shape:
        return f"{name} has shape {tuple(got.shape)}, wanted {want.shape}"
    highest, bounds, step = np.inf, EXACT, operator.step(operator.tensor(name))
    if dtype.is_floating:
        tf32 = call.problem.attributes.get("math") == "tf32" and dtype.name == "f32"
        relative, absolute = _TF32 if tf32 else _NEAR[dtype.name]
        scale = float(np.max(np.abs(want), initial=0.0, where=np.isfinite(want))) + 1
        eps, tiny, highest = limits_of(dtype)
        bounds = Bounds(absolute=absolute * scale + eps * tiny, relative=relative)
    elif step is not None:
        bounds = Bounds(absolute=float(step.most), relative=0.0, share=step.share)
    with np.errstate(all="ignore"):
        return compare(np, name, numbers(got), want, bounds, highest)[0]


def results_by_name(call: DrawnCall, returned: Any, *, all_outputs: bool) -> dict[str, Any]:
    """What a call wrote, by name. It returned all outputs that are present, or only those that it made."""
    outputs = [t.name for t in call.operator.outputs if call.operator.is_present(call.problem, t)]
    names = [n for n in outputs if call.operator.tensor(n).output and (all_outputs or n not in call.placed)]
    values = () if returned is None else returned if isinstance(returned, tuple) else (returned,)
    return {n: call.given[n] for n in outputs if n in call.placed} | dict(zip(names, values, strict=True))


def snapshot(placed: Mapping[str, Placed]) -> dict[str, torch.Tensor]:
    """All memory that a call can reach."""
    return {name: one.memory.clone() for name, one in placed.items()}


def fault_of_legal(
    call: DrawnCall, results: Mapping[str, Any], before: Mapping[str, torch.Tensor], truth: Mapping[str, Any]
) -> str:
    """What is wrong after a legal call; empty when nothing is. `before` and `truth` were taken in front of it."""
    for name, got in results.items():
        if name in call.placed and got is not call.given[name]:
            return f"{name} is another object than was passed"
        wrong = near(call, name, got, truth[name])
        if wrong:
            return wrong
    written = {id(call.placed[t.name]) for t in call.operator.outputs if t.name in call.placed}
    for name, one in call.placed.items():
        if id(one) not in written and not torch.equal(one.memory, before[name]):
            return f"the input {name} was written to"
        if id(one) in written:
            after = one.beside()
            one.memory.copy_(before[name])
            if not torch.equal(one.beside(), after):
                return f"memory beside {name} was written to"
    return ""
