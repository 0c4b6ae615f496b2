"""Random legal calls of operators, from what they declare, and their results by the operators' own references."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from drawn_tensors import TORCH, Placed, place, split

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.reference_results import run_reference
from aot_tune.spec import Operator, Problem, Tensor, problem

SIZES = (1, 1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 100)
_SMALL = {"B": (1, 1, 2, 3), "H": (1, 2, 4, 6), "HK": (1, 2, 3), "D": (1, 3, 8, 16, 33, 64, 80, 300)}
_EMPTY = 0.03
_NEAR = {"f32": (2e-5, 2e-5), "bf16": (2**-7.5, 2**-8), "f16": (2**-10.5, 2**-11)}
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
    more: dict[str, Any] = field(default_factory=dict)

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


def sizes_of(operator: Operator, draw: random.Random) -> dict[str, int]:
    """Extents of dims, some of them 0."""
    found = {d: draw.choice(_SMALL.get(d, SIZES) if len(operator.dims) > 2 else SIZES) for d in operator.dims}
    if draw.random() < _EMPTY:
        found[draw.choice(operator.dims)] = 0
    return found


def draw_call(operator: Operator, draw: random.Random, *, frameworks: Sequence[str], device: str = "cpu") -> DrawnCall:
    """A legal call; its tensors are of one of the frameworks, or of several."""
    dtypes = {v: draw.choice(choices) for v, choices in operator.dtypes.items()}
    narrow = "bf16" in [*dtypes.values(), *(t.dtype_name for t in operator.tensors)]
    mixed = not narrow and draw.random() < 0.2
    usual = draw.choice([f for f in frameworks if f == "torch" or not narrow] or ["torch"])
    attributes = {a.name: draw.choice(a.choices) for a in operator.attributes if draw.random() < 0.6}
    inputs = [t.name for t in operator.inputs if t.optional and draw.random() < 0.5]
    asked = [t.name for t in operator.outputs if t.optional and draw.random() < 0.5]
    dims: dict[str, Any] = sizes_of(operator, draw)
    one = problem(present=[*inputs, *asked], dtypes=dtypes, attributes=attributes, **dims)
    lead = split(one.dims[operator.fold], draw) if operator.fold and draw.random() < 0.6 else None
    scalars = {s.name: dims[s.binds] for s in operator.scalars if s.binds}
    free = [s for s in operator.scalars if not s.binds]
    scalars |= {s.name: draw.choice((s.default, s.other, 0.5)) for s in free if draw.random() < 0.6}
    call = DrawnCall(operator, one, {}, {}, lead, scalars)
    for tensor in operator.tensors:
        if not operator.is_present(one, tensor) or (tensor.output and draw.random() < 0.5):
            if tensor.name in asked:
                call.given[tensor.name] = True
            continue
        made = place(
            operator.shape(one, tensor),
            lead if folded(operator, tensor) else None,
            TORCH[operator.dtype(one, tensor).name],
            draw,
            output=tensor.output,
            framework=draw.choice(frameworks) if mixed else usual,
            device=device,
        )
        call.placed[tensor.name], call.given[tensor.name] = made, made.tensor
    call.given |= scalars | attributes
    _alias(call, draw)
    return call


def _alias(call: DrawnCall, draw: random.Random) -> None:
    """Let some outputs lie where an input does, if the operator takes that and no two elements are one."""
    for tensor in call.operator.outputs:
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
    dtype = call.operator.dtype(call.problem, call.operator.tensor(name)).name
    framework = "torch" if isinstance(got, torch.Tensor) else "numpy"
    if str(got.dtype).removeprefix("torch.") != str(TORCH[dtype]).removeprefix("torch."):
        return f"{name} is {got.dtype} of {framework}, wanted {dtype}"
    if tuple(got.shape) != want.shape:
        return f"{name} has shape {tuple(got.shape)}, wanted {want.shape}"
    values = got.double().cpu().numpy() if isinstance(got, torch.Tensor) else got.astype(np.float64)
    relative, absolute = _NEAR[dtype]
    if call.problem.attributes.get("math") == "tf32" and dtype == "f32":
        relative, absolute = _TF32
    scale = float(np.max(np.abs(want), initial=0.0)) + 1
    off = np.abs(values - want) - relative * np.abs(want) - absolute * scale
    if not np.isfinite(values).all() or float(np.max(off, initial=-1.0)) > 0:
        return f"{name} is off by {float(np.max(np.abs(values - want), initial=0.0)):g}, largest is {scale - 1:g}"
    return ""


def without(one: Problem, name: str) -> Problem:
    """The problem of a call that lacks an optional tensor."""
    return msgspec.structs.replace(one, present=tuple(n for n in one.present if n != name))


def results_by_name(call: DrawnCall, returned: Any) -> dict[str, Any]:
    """What a call returned, by the names of the outputs that are present."""
    names = [t.name for t in call.operator.outputs if call.operator.is_present(call.problem, t)]
    found = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(names, found, strict=True))


def snapshot(placed: Mapping[str, Placed]) -> dict[str, torch.Tensor]:
    """All memory that a call can reach."""
    return {name: one.memory.clone() for name, one in placed.items()}


def fault_of_legal(call: DrawnCall, returned: Any, before: Mapping[str, torch.Tensor], truth: Mapping[str, Any]) -> str:
    """What is wrong after a legal call; empty when nothing is. `before` and `truth` were taken in front of it."""
    for name, got in results_by_name(call, returned).items():
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
